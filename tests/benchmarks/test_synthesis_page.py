"""The tables of docs/synthesis.md are made from benchmarks/results/synthesis.json."""

import json

import pytest
from synthesis import PAGE, RESULTS, SIZES, TOPOLOGIES
from synthesis_page import IRREGULAR, with_tables

ROWS = json.loads(RESULTS.read_text())["rows"]


def test_the_page_has_what_was_found():
    assert with_tables(PAGE.read_text(), ROWS) == PAGE.read_text()


@pytest.mark.parametrize("at", [0, -1], ids=["the first table", "the second"])
def test_control_another_time_is_another_page(at):
    changed = [dict(row) for row in ROWS]
    changed[at]["found_s"] *= 1.01
    assert with_tables(PAGE.read_text(), changed) != PAGE.read_text()


def test_every_topology_and_size_was_searched():
    assert [(x["topology"], x["size_bytes"]) for x in ROWS] == [
        (name, nbytes) for name in TOPOLOGIES for nbytes in SIZES
    ]
    assert {*IRREGULAR} < {*TOPOLOGIES}


def test_what_is_found_lies_between_the_bound_and_the_best_registered():
    for row in ROWS:
        assert row["bound_s"] <= row["found_s"] <= row["registered_s"] * (1 + 1e-9), row
