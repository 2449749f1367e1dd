"""A topology with the busy share of each link."""

from xml.etree import ElementTree

import pytest

from fastreduce import algorithms, draw, simulate
from fastreduce.simulation.busy import Busy
from fastreduce.simulation.busy_picture import IDLE, busy_figure
from fastreduce.topology import preset


def busy(program, machine="book-pcie4"):
    return Busy(preset(machine), simulate(program, machine, "160MB", slices=1))


def colors(figure):
    """The colours of the links, from the idlest to the busiest, and how many have each."""
    from matplotlib.colors import to_hex

    found = [to_hex(patch.get_edgecolor()) for patch in figure.axes[0].patches]
    return {color: found.count(color) for color in dict.fromkeys(found)}


def test_both_ways_are_one_line_where_they_are_equally_busy():
    """All four GPUs are busy, the CPU is not."""
    found = colors(busy_figure(busy(algorithms.sharded(4))))
    assert list(found.values()) == [1, 4] and next(iter(found)) == IDLE


def test_each_way_has_an_arrow_where_they_are_not():
    """In a ring on DGX-1 data goes one way round, over direct links."""
    found = colors(busy_figure(busy(algorithms.ring(8), "dgx1")))
    assert found[IDLE] > 8 and sum(found.values()) == found[IDLE] + 8


def test_busier_links_are_darker():
    """One GPU takes no part; the leader's link carries the most."""
    found = busy_figure(busy(algorithms.leader(3)))
    levels = [sum(patch.get_edgecolor()[:3]) for patch in found.axes[0].patches]
    assert levels[0] > levels[-1] and levels[1:] == sorted(levels[1:], reverse=True)


def test_the_picture_says_what_colours_mean():
    svg = ElementTree.fromstring(draw(busy(algorithms.sharded(4))))
    words = {e.text for e in svg.iter() if e.tag.endswith("text")}
    assert {"share of the time in use", "0%", "100%", "gpu0", "pcie0"} <= words


@pytest.mark.parametrize("algorithm", ["a program", "sharded"])
def test_the_title_says_what_was_run_and_that_it_is_predicted(algorithm):
    ran = busy(algorithms.sharded(4))
    named = Busy(ran.topology, ran.timeline, algorithm)
    title = busy_figure(ran if algorithm == "a program" else named).axes[0].get_title(loc="left")
    assert f"\n{algorithm}, predicted: 15.01 ms" in title


def test_a_timeline_of_another_machine_is_refused():
    timeline = busy(algorithms.sharded(4)).timeline
    with pytest.raises(ValueError, match="other links than topology 'dgx1-v100'"):
        Busy(preset("dgx1"), timeline)
