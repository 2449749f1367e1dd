"""Plans over a range of sizes."""

import math

import pytest

from fastreduce import explain
from fastreduce.algorithms import registry
from fastreduce.plan.pictures import sizes_figure
from fastreduce.plan.runs import PUBLISHED_RUNS, read
from fastreduce.plan.sizes import over_sizes, sizes_of


@pytest.fixture(scope="module")
def book():
    return over_sizes("1MB:160MB", topology="book-pcie4")


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("1KB:16KB", [1000, 4000, 16000]),
        ("1KB:10KB", [1000, 4000, 10000]),
        ("5B:5B", [5]),
        ("1:3", [1, 3]),
        ("262144:1073741823", [*(1 << e for e in range(18, 30, 2)), (1 << 30) - 1]),
    ],
)
def test_a_range_ends_where_it_says(text, sizes):
    assert sizes_of(text) == sizes


def test_from_kilobytes_to_gigabytes():
    found = sizes_of("1KB:8GB")
    assert (found[0], found[-1], len(found)) == (1000, 8 * 10**9, 13)


@pytest.mark.parametrize("text", ["1MB", "8GB:1KB", "0:1KB", "1KB:", ":", "1KB:2XB", "1K:2K:3K"])
def test_what_is_no_range_is_refused(text):
    with pytest.raises(ValueError, match="want"):
        sizes_of(text)


def test_each_size_is_planned_as_explain_does(book):
    assert [plan.nbytes for plan in book.plans] == [
        10**6,
        4 * 10**6,
        16 * 10**6,
        64 * 10**6,
        16 * 10**7,
    ]
    assert str(book.plans[-1]) == str(explain("160MB", topology="book-pcie4"))
    assert book.times_s("naive")[-1] == pytest.approx(60e-3, rel=0.01)


def test_the_fastest_at_the_largest_size_comes_first():
    found = over_sizes("1KB:160MB", topology="book-pcie4")
    first, *_, last = (
        [plan.candidate(x).prediction.time_s for x in found.algorithms] for plan in found.plans
    )
    assert last == sorted(last)
    assert first != sorted(first)  # else this would not tell the largest size from the smallest


def test_prints_a_column_for_each_algorithm(book):
    title, headings, *rows = str(book).splitlines()
    assert title == "1 MB to 160 MB on each of 4 ranks, book-pcie4: predicted"
    assert headings.split() == ["size", *book.algorithms, "choice"]
    assert rows[-1].startswith("160 MB") and rows[-1].endswith("  sharded")
    assert book._repr_html_().count("<tr>") == 1 + len(rows)


def test_in_one_memory_too():
    found = over_sizes([64, 1 << 20], k=4)
    assert found.title == "64 B to 1.049 MB on each of 4 ranks, one CPU"
    assert not any(map(math.isnan, found.times_s("ring")))


def test_sizes_may_be_in_words():
    assert over_sizes(["2MB", 1000], k=2).plans == over_sizes([1000, 2 * 10**6], k=2).plans


def test_a_program_without_stderr_has_no_bar(monkeypatch):
    """Found when tqdm ended the plan of a daemon."""
    monkeypatch.setattr("sys.stderr", None)
    assert len(over_sizes([1000], k=2, progress=True).plans) == 1


def test_an_algorithm_of_ones_own_has_a_column(tmp_path):
    registry["ring"](4).save(tmp_path / "mine.json")
    mine = f"file:{tmp_path}/mine.json"
    found = over_sizes([1000, 10**6], topology="book-pcie4", algorithm=mine)
    assert mine in str(found).splitlines()[1].split()
    assert found.times_s(mine)[1] == found.times_s("ring")[1]
    legend = sizes_figure(found).legends[0].get_texts()
    assert mine in [text.get_text() for text in legend]


def test_what_others_have_published_of_the_machine_stands_beside():
    found = over_sizes([1000, 10**6], topology="dgx1-v100")
    assert [run.machine for run in found.published] == ["8 V100, one process", "Oracle BM.GPU3.8"]
    assert {x.engine for x in found.others} == {run.engine for run in found.published} == {"NCCL"}
    flawed = [run.machine for run in read(PUBLISHED_RUNS) if run.flaw]
    assert flawed and not {run.machine for run in found.published} & {*flawed}
    assert over_sizes([1000], topology="book-pcie4").published == ()


def test_no_size_is_refused():
    with pytest.raises(ValueError, match="found no size"):
        over_sizes([])
