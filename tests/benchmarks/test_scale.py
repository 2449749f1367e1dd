"""benchmarks/scale.py: what is kept is what the formulas say, and the simulations agree. So do
those of benchmarks/planner.py."""

import pytest
from kept_results import kept
from planner import simulated
from scale import GBIT, LOCAL, PRESET, by_formula, waves_of

from fastreduce.plan.scaling import formulas
from fastreduce.topology import cluster

ROWS = kept("scale.json")["rows"]


def case(row):
    return row["k"] // LOCAL, row["size_bytes"]


def test_the_kept_times_are_those_of_the_formulas():
    for row in ROWS:
        assert row["formula_s"] == pytest.approx(by_formula(row["algorithm"], *case(row))), row


def test_control_slower_cards_are_another_time():
    slow = formulas(cluster(PRESET, 2, GBIT / 2), LOCAL)
    for row in (row for row in ROWS if row["k"] > LOCAL):
        assert row["formula_s"] != pytest.approx(slow[row["algorithm"]](*case(row))), row


def test_the_simulations_agree():
    assert {row["k"] for row in ROWS if row["simulated_s"]} == {8, 16, 32, 64, 128}
    for row in ROWS:
        in_waves = row["algorithm"] == "hierarchical" and waves_of(*case(row)) > 1
        off = 0.08 if in_waves else 0.03  # waves may overlap by more than the formula knows
        assert row["simulated_s"] in (None, pytest.approx(row["formula_s"], rel=off)), row


@pytest.mark.parametrize("name", ["ring", "hierarchical"])
def test_the_planner_checks_what_it_times(name):
    simulated(name, 4)
