"""The README and the docs: examples run, commands parse, files that are named exist."""

import itertools
import json
import re
import shlex
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from doc_pages import PAGES, ROOT, table

from fastreduce.algorithms import registry
from fastreduce.cli import _parser
from fastreduce.topology import load

# Each of these is a notebook with a kernel of its own: test_book.py runs them.
NOTEBOOKS = {page for page in PAGES if page.startswith("docs/book/")}
# Where code is: a page that names a file there names one that exists.
FOLDERS = ("benchmarks", "csrc", "fastreduce", "tests")
WITH_EXAMPLES = {
    "README.md": 2,
    "docs/algorithms.md": 6,
    "docs/calibration.md": 1,
    "docs/concepts.md": 5,
    "docs/contracts.md": 2,
    "docs/distributed.md": 1,
    "docs/fashion_mnist.md": 2,
    "docs/index.md": 1,
    "docs/kvstore.md": 2,
    "docs/planning.md": 3,
    "docs/synthesis.md": 1,
    "docs/training.md": 6,
    "docs/whatif.md": 3,
}


def blocks(text: str, language: str) -> list[str]:
    """The contents of a page's fenced blocks in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


def run(examples: list[str], page: str) -> None:
    """One after the other in one namespace, as a reader types them."""
    module = ModuleType(f"page {page}")
    sys.modules[module.__name__] = module  # where torch.compile of torch 2.11 looks names up
    try:
        for number, example in enumerate(examples):
            exec(compile(example, f"{page}, example {number}", "exec"), vars(module))
    finally:
        del sys.modules[module.__name__]


def commands(text: str) -> Iterator[list[str]]:
    """What a page tells to type, each as its words."""
    whole = (x.replace("\\\n", "") for x in blocks(text, "sh"))
    for line in itertools.chain.from_iterable(x.splitlines() for x in whole):
        words = shlex.split(line, comments=True)
        for joined, part in itertools.groupby(words, lambda word: word == "&&"):
            if not joined:
                yield list(part)


def problem(command: list[str]) -> str | None:
    """Why a command of ours would not be understood; those of others are theirs."""
    program, *arguments = itertools.dropwhile(lambda word: re.match(r"\w+=", word), command)
    if program == "fastreduce":
        try:
            _parser().parse_args(arguments)
        except SystemExit:
            return f"{shlex.join(command)}: no such command or option"
    if program in ("python", "pytest"):
        paths = [word.split("::")[0] for word in arguments if "/" in word and ".py" in word]
        missing = [path for path in paths if not (ROOT / path).exists()]
        return f"{shlex.join(command)}: there is no {missing[0]}" if missing else None
    return None


def long_lines(text: str) -> list[str]:
    """But rows of tables and pictures, which cannot be broken."""
    return [x for x in text.splitlines() if len(x) > 100 and not x.startswith(("|", "!["))]


def missing_files(text: str) -> list[str]:
    named = re.findall(rf"`((?:{'|'.join(FOLDERS)})/[\w./]*)`", text)
    return [path for path in named if not (ROOT / path).exists()]


def figures(text: str) -> dict[tuple[int, int], tuple[str, str]]:
    """By elements and ranks: the time, and the loop's time over it, as the page shows them."""
    titles, _, *rows = table(text, "elements per rank")
    ks = [int(title.split()[0]) for title in titles[1::2]]
    return {
        (int(elems.replace(",", "").replace("M", "")) << 20 * ("M" in elems), k): pair
        for elems, *cells in rows
        for k, pair in zip(ks, zip(cells[::2], cells[1::2], strict=True), strict=True)
    }


def measured() -> dict[tuple[int, int], tuple[float, float]]:
    """The same in seconds, from what the benchmark wrote."""
    found = json.loads((ROOT / "benchmarks" / "results" / "allreduce.json").read_text())
    return {
        (row["count_elems"], row["k"]): (row["called"]["time_s"], row["called"]["over_loop"])
        for row in found["rows"]
        if (row["type"], row["algorithm"], row["tensors"]) == ("float32", "auto", 1)
    }


def wrong_figures(text: str) -> list[tuple[int, int]]:
    units = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
    wrong = []
    for case, (time, over_loop) in figures(text).items():
        number, unit = time.split()
        time_s, ratio = measured()[case]
        near = float(number) * units[unit] == pytest.approx(time_s, rel=0.05)
        if not near or float(over_loop) != pytest.approx(ratio, abs=0.051):
            wrong.append(case)
    return wrong


def broken_boxes(text: str) -> list[str]:
    """Lines that begin a box ("!!! note") which the site shows as bare text: nothing but the title
    may follow on the line, and the next one is indented."""
    pairs = itertools.pairwise(text.splitlines())
    box = re.compile(r'!!! \w+( "[^"]*")?')
    return [
        line
        for line, following in pairs
        if line.startswith("!!!") and not (box.fullmatch(line) and following.startswith("    "))
    ]


@pytest.fixture(autouse=True)
def leave_nothing_behind(monkeypatch, tmp_path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)  # some examples write pictures
    before = dict(registry)
    yield
    registry.clear()
    registry.update(before)
    torch.set_grad_enabled(True)


def test_the_topology_file_loads(tmp_path):
    (text,) = blocks(PAGES["docs/planning.md"], "json")
    path = tmp_path / "mine.json"
    path.write_text(text)
    assert len(load(path).devices) == 2


@pytest.mark.parametrize("page", sorted(PAGES.keys() - NOTEBOOKS))
def test_examples_run(page):
    run(blocks(PAGES[page], "python"), page)


@pytest.mark.parametrize("page", PAGES)
class TestPage:
    def test_commands_are_understood(self, page, capsys):
        assert [x for x in map(problem, commands(PAGES[page])) if x] == []

    def test_files_exist(self, page):
        assert missing_files(PAGES[page]) == []

    def test_lines_are_no_longer_than_those_of_the_code(self, page):
        assert long_lines(PAGES[page]) == []

    def test_boxes_are_boxes(self, page):
        assert broken_boxes(PAGES[page]) == []


@pytest.mark.parametrize("page", [page for page in PAGES if "/" not in page])
def test_links_lead_somewhere(page):
    """Those of the docs are looked at by mkdocs --strict."""
    links = re.findall(r"\]\((?!https?://)([^)#]+)", PAGES[page])
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.parametrize(("page", "least"), WITH_EXAMPLES.items())
def test_there_are_examples(page, least):
    assert len(blocks(PAGES[page], "python")) >= least


def test_the_readme_is_a_page():
    lines = PAGES["README.md"].splitlines()
    assert len(lines) <= 130
    assert "**Several GPUs have never run this**" in " ".join(lines[:10])


@pytest.mark.parametrize("page", ["README.md", "docs/benchmarks.md"])
def test_figures_are_those_that_were_measured(page):
    assert wrong_figures(PAGES[page]) == []


class TestControl:
    def test_a_wrong_example_is_noticed(self):
        page = "docs/algorithms.md"
        wrong = PAGES[page].replace("== [1111.0", "== [1112.0")
        assert wrong != PAGES[page]
        with pytest.raises(AssertionError):
            run(blocks(wrong, "python"), page)

    @pytest.mark.parametrize(
        "line",
        [
            "fastreduce plan --no-such-option",
            "pip install . && fastreduce fly",
            "X=1 python benchmarks/no_such_file.py -e 64K",
            "pytest tests/no_such_file.py::TestX",
            "fastreduce plan \\\n  --no-such-option",
        ],
    )
    def test_a_wrong_command_is_noticed(self, line, capsys):
        assert list(filter(None, map(problem, commands(f"```sh\n{line}  # why\n```\n"))))

    def test_a_long_line_is_noticed(self):
        assert long_lines("a" * 100 + "\n" + "b" * 101 + "\n|" + "c" * 101) == ["b" * 101]

    def test_a_broken_box_is_noticed(self):
        assert broken_boxes('!!! note "Two"\n    words\n') == []
        for text in ('!!! note "Two" words\n    more\n', "!!! note\nwords\n"):
            assert broken_boxes(text) == text.splitlines()[:1]

    def test_a_missing_file_is_noticed(self):
        assert missing_files("see `csrc/reduce.h` and `csrc/no_such.h`") == ["csrc/no_such.h"]

    def test_a_wrong_figure_is_noticed(self):
        readme = PAGES["README.md"]
        time, ratio = figures(readme)[65536, 2]
        wrong = readme.replace(f"| {time} | {ratio} |", f"| {time} | {float(ratio) + 1} |", 1)
        assert wrong_figures(wrong) == [(65536, 2)]
