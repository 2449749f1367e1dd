"""What stands on the pictures of benchmarks: names of sizes and of contenders."""

import doctest
import json
from pathlib import Path

import axes
import ddp_step
import pictures
import processes_picture
import pytest
import rows
import synthesis_page
from matplotlib.figure import Figure

RESULTS = Path(axes.__file__).parent / "results"


@pytest.fixture
def drawn(monkeypatch):
    """Draws the kept rows of a benchmark, and returns the figure."""
    found = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: found.append(figure))

    def draw(benchmark, name):
        kept = json.loads((RESULTS / f"{name}.json").read_text())
        benchmark.draw(kept["rows"], kept["machine"], RESULTS / f"{name}.png")
        return found[-1], kept

    return draw


def names(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.mark.parametrize("module", [axes, rows, synthesis_page])
def test_examples(module):
    failed, tried = doctest.testmod(module)
    assert tried and not failed


@pytest.mark.parametrize(
    ("sizes", "most", "wanted"),
    [
        ([1024], 7, ["1 KiB"]),
        ([1 << 16, 1 << 22, 1 << 28, 1 << 16], 7, ["64 KiB", "4 MiB", "256 MiB"]),
        ([1 << 10, 1 << 13, 1 << 16, 1 << 19], 3, ["1 KiB", "64 KiB"]),
        ([], 7, []),
    ],
)
def test_names_stand_at_sizes_that_were_measured(sizes, most, wanted):
    field = Figure().subplots()
    axes.show_sizes(field, sizes, most)
    assert [x.get_text() for x in field.get_xticklabels()] == wanted
    assert {*field.get_xticks(), *field.get_xticks(minor=True)} == set(sizes)
    assert not any(x.get_text() for x in field.get_xticklabels(minor=True))


@pytest.mark.parametrize("name", ["processes", "processes_many", "processes_gpu", "machines"])
def test_a_legend_has_every_contender_once_and_in_its_colour(drawn, name):
    figure, kept = drawn(processes_picture, name)
    lines = processes_picture.LINES
    measured = {row["contender"] for row in kept["rows"]}
    assert sorted(names(figure)) == sorted(lines[contender][1] for contender in measured)
    colors = {line.get_label(): line.get_color() for x in figure.axes for line in x.get_lines()}
    assert colors == {lines[contender][1]: lines[contender][0] for contender in measured}


def test_the_legend_of_auto_over_the_best_hides_no_line(drawn):
    figure, kept = drawn(pictures, "allreduce")
    fields = {(row["type"], row["k"]) for row in kept["rows"]}
    wanted = {f"tiles, {dtype}, {k} ranks" for dtype, k in fields} | {"1.1 wanted"}
    assert set(names(figure)) == wanted
    assert figure.axes[0].get_legend() is None  # it is below the field


def test_links_between_machines_are_named(drawn):
    figure, _ = drawn(processes_picture, "machines")
    assert "links of 1 Gbit/s" in figure.get_suptitle()
    assert figure.axes[1].get_title() == "all_reduce, 3 machines of 2 processes each"


def test_control_a_contender_without_a_colour_would_be_missed(drawn, monkeypatch):
    monkeypatch.delitem(processes_picture.LINES, "gloo")
    figure, _ = drawn(processes_picture, "processes")
    assert "Gloo" not in names(figure)


def test_parts_of_bars_are_named(drawn):
    figure, kept = drawn(ddp_step, "ddp_step")
    assert names(figure) == ["a step without sums", "synchronisation: what the sums add to it"]
    assert [x.get_title() for x in figure.axes] == [
        *dict.fromkeys(x["model"] for x in kept["rows"])
    ]
