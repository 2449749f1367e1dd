"""Which of the known names an unknown one was perhaps meant to be."""

import pytest

from fastreduce.algorithms.registration import find
from fastreduce.names import listed
from fastreduce.topology import as_topology, preset

NAMES = ["sum", "avg", "halving-doubling", "single"]


@pytest.mark.parametrize(
    ("found", "meant"),
    [
        ("summ", "sum"),
        ("SUM", "sum"),
        ("halving_doubling", "halving-doubling"),
        ("singel", "single"),
        ("mean", None),
        ("", None),
        (3, None),
    ],
)
def test_a_near_name_is_suggested(found, meant):
    end = f"; did you mean '{meant}'?" if meant else ""
    assert listed(NAMES, found) == "sum, avg, halving-doubling, single" + end


def test_names_are_shown_as_they_are_written():
    assert listed(["LeNet"], "lenett") == "LeNet; did you mean 'LeNet'?"


@pytest.mark.parametrize(
    ("ask", "found", "meant"),
    [(find, "tre", "tree"), (preset, "dgxh100", "dgx-h100"), (as_topology, "detekt", "detect")],
)
def test_where_names_are_asked_for(ask, found, meant):
    with pytest.raises(ValueError, match=f"'{found}'.*did you mean '{meant}'"):
        ask(found)
