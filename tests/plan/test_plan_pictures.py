"""Pictures of plans: time over size, and a step from one GPU to many."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from fastreduce import draw
from fastreduce.plan.pictures import MOST_COLORED, sizes_figure, step_figure
from fastreduce.plan.runs import Measured, Point
from fastreduce.plan.sizes import over_sizes
from fastreduce.plan.step import what_if


@pytest.fixture(scope="module")
def sizes():
    return over_sizes("1KB:160MB", topology="book-pcie4")


@pytest.fixture(scope="module")
def step():
    return what_if("resnet50", "20ms", topology="book-pcie4", nics=1, gbit=100)


def words(what):
    svg = ElementTree.fromstring(draw(what))
    return {e.text for e in svg.iter() if e.tag.endswith("text")}


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_all_algorithms_have_a_line_and_the_chosen_ones_a_colour(sizes):
    figure = sizes_figure(sizes)
    times, rates = figure.axes
    assert len(times.lines) == len(rates.lines) == len(sizes.algorithms)
    named = legend(figure)
    assert {plan.algorithm for plan in sizes.plans} <= set(named)
    assert len(named) == MOST_COLORED + 1 and named[-1] == "others"


def test_lines_are_where_the_plans_are(sizes):
    times, rates = sizes_figure(sizes).axes
    line = next(x for x in times.lines if x.get_label() == "sharded")
    assert list(line.get_ydata()) == sizes.times_s("sharded")
    line = next(x for x in rates.lines if x.get_label() == "sharded")
    assert line.get_ydata()[-1] == pytest.approx(16, rel=0.01)  # the rate of a link


def test_published_points_are_drawn_where_there_are_plans(sizes):
    points = [Point(nbytes, 1e-3) for nbytes in (500, 1000, 2_000_000, 160_000_000, 1 << 30)]
    run = Measured("a machine", "a medium", "NCCL", sizes.k, tuple(points), "a page")
    figure = sizes_figure(replace(sizes, published=(run,)))
    for axes in figure.axes:
        line = next(x for x in axes.lines if x.get_label() == "NCCL, published")
        assert list(line.get_xdata()) == [1000, 2_000_000, 160_000_000]
    assert "NCCL, published" in legend(figure)


def test_one_rank_has_no_busbw():
    times, rates = sizes_figure(over_sizes([1000, 2000], k=1)).axes
    assert times.lines and not rates.lines


def test_one_rank_on_a_topology_has_nothing_to_do():
    times, _ = sizes_figure(over_sizes([1000, 2000], k=1, topology="book-pcie4")).axes
    assert {0.0} < {x for line in times.lines for x in line.get_ydata()}


def test_all_times_are_in_the_same_words(sizes):
    for found, least in ((sizes, 2), (over_sizes([1000, 2000], topology="dgx-h100"), 3)):
        figure = sizes_figure(found)
        figure.draw_without_rendering()
        axis = figure.axes[0].yaxis
        assert not any(label.get_text() for label in axis.get_minorticklabels())
        low, high = axis.get_view_interval()
        assert sum(low <= x <= high for x in axis.get_majorticklocs()) >= least


def test_one_size_is_a_point_of_each_line():
    times, _ = sizes_figure(over_sizes([1000], topology="book-pcie4")).axes
    assert all(line.get_marker() == "o" for line in times.lines)


def test_what_was_not_measured_at_these_sizes_is_not_in_the_legend():
    found = over_sizes(["1KB"], topology="dgx-h100")
    assert found.others and not any("NCCL" in name for name in legend(sizes_figure(found)))
    large = over_sizes(["1MiB"], topology="dgx-h100")
    assert {"NCCL, published"} < set(legend(sizes_figure(large)))


def test_a_long_title_is_wrapped(sizes, step):
    long = "a machine of many words " * 8
    for figure in (
        sizes_figure(replace(sizes, title=long)),
        step_figure(replace(step, machine=long)),
    ):
        figure.draw_without_rendering()
        assert figure._suptitle.get_window_extent().x1 <= figure.bbox.x1


def test_a_step_shows_what_nothing_hides(step):
    figure = step_figure(step)
    shares, times = figure.axes
    assert list(shares.lines[0].get_ydata()) == [100 * x.efficiency for x in step.scales]
    tops_ms = [bar.get_y() + bar.get_height() for bar in times.patches[len(step.scales) :]]
    assert tops_ms == pytest.approx([x.step_s * 1e3 for x in step.scales])
    assert legend(figure) == ["all sums", "computing", "sums that nothing hides"]


def test_pictures_say_what_they_show(sizes, step):
    assert {"1 KB", "busbw (GB/s)", "bytes on each rank"} <= words(sizes)
    assert {"1,024", "GPUs", "scaling efficiency (%)"} <= words(step)
