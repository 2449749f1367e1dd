"""Ops, dtypes and algorithms that are listed for readers are those that there are."""

import re

from doc_pages import PAGES, table

from fastreduce import _C, allreduce
from fastreduce.algorithms import built_in

KNOWN = {op: {str(x).removeprefix("torch.") for x in types} for op, types in _C.ops().items()}
CONTRACTS, GLOSSARY = PAGES["docs/contracts.md"], PAGES["docs/glossary.md"]
DOCSTRING = " ".join(str(allreduce.__doc__).split())
# Words of the docstring, and the dtypes and the ops that they mean.
MEANT = {
    "float16, bfloat16, float32 and float64 take the first five": (
        {"float16", "bfloat16", "float32", "float64"},
        ("sum", "avg", "prod", "min", "max"),
    ),
    "float8 (e4m3fn, e5m2 and their fnuz forms) takes those without prod": (
        {"float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"},
        ("sum", "avg", "min", "max"),
    ),
    "complex32, complex64 and complex128 take sum and avg": (
        {"complex32", "complex64", "complex128"},
        ("sum", "avg"),
    ),
    "integers of 8 to 64 bits, signed or not, and bool take all but avg": (
        {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)} | {"bool"},
        ("sum", "prod", "min", "max", "band", "bor", "bxor"),
    ),
}


def of_page(text: str) -> dict[str, set[str]]:
    """What a page says is defined: the dtypes of each op."""
    (_, *titles), _, *rows = table(text, "types")
    found: dict[str, set[str]] = {op: set() for title in titles for op in title.split(", ")}
    for types, *cells in rows:
        for title, cell in zip(titles, cells, strict=True):
            for op in title.split(", ") if cell.startswith("yes") else ():
                found[op] |= set(types.split(", "))
    return found


def quoted(text: str, before: str, after: str) -> list[str]:
    """What stands in quotation marks in a part of a text."""
    return re.findall(r'"([\w-]+)"', text.split(before)[1].split(after)[0])


def of_docstring(text: str) -> dict[str, set[str]]:
    """The same of a docstring."""
    found: dict[str, set[str]] = {op: set() for op in quoted(text, " op: ", "ReduceOp")}
    for words, (dtypes, ops) in MEANT.items():
        for op in found.keys() & ops if words in text else ():
            found[op] |= dtypes
    return found


def algorithms_of_docstring(text: str) -> list[str]:
    return quoted(text, "a name of `fastreduce.algorithms`: ", ", or one registered")


def ops_of_glossary(text: str) -> list[str]:
    [line] = re.findall(r"\*\*op\*\*: What is done to the values: (.*)\.", text)
    return line.split(", ")


def test_the_table_of_dtypes():
    assert of_page(CONTRACTS) == KNOWN


def test_the_docstring_of_allreduce():
    assert of_docstring(DOCSTRING) == KNOWN
    assert set(algorithms_of_docstring(DOCSTRING)) == set(built_in())


def test_the_glossary():
    assert set(ops_of_glossary(GLOSSARY)) == KNOWN.keys()


class TestControl:
    def test_a_dtype_that_is_left_out_is_noticed(self):
        without = of_page(CONTRACTS.replace("bfloat16, float32", "float32"))
        assert KNOWN["sum"] - without["sum"] == {"bfloat16"}
        without = of_docstring(DOCSTRING.replace("complex32, complex64", "complex64"))
        assert "complex32" in KNOWN["sum"] - without["sum"]

    def test_an_op_or_algorithm_that_is_left_out_is_noticed(self):
        assert KNOWN.keys() - of_docstring(DOCSTRING.replace('"bor", ', "")) == {"bor"}
        assert "tree" not in algorithms_of_docstring(DOCSTRING.replace('"tree", ', ""))
        assert "bor" not in ops_of_glossary(GLOSSARY.replace("bor, ", ""))
