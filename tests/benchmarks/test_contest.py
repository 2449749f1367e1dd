"""benchmarks/contest.py and report.py: who takes part in a case, on how many sets of buffers, and
how auto is held against the others."""

from argparse import Namespace

import contest
import pytest
import torch
from buffers import GRAPHS_KEPT
from contenders import ours
from contest import MOST_HOST_BYTES, Case, contenders_of, most_sets
from figures import behind
from nets import GRADIENTS
from report import about_auto


@pytest.mark.parametrize(
    ("model", "tensors", "millions"),
    [
        ("LeNet", 8, 0.13),
        ("ResNet-18", 62, 11.69),
        ("ResNet-50", 161, 25.56),
        ("GPT-2", 148, 124.44),
    ],
)
def test_gradients_of_known_models(model, tensors, millions):
    case = Case(GRADIENTS[model], torch.float32, 2, "sum", ["tiles"], model)
    assert (len(case.shapes), round(case.count_elems / 1e6, 2)) == (tensors, millions)


def test_the_host_program_is_measured_at_small_sizes_only(monkeypatch):
    monkeypatch.setattr(contest, "has_gpu", lambda: True)
    args = Namespace(algorithm=["auto", "host"], against=[])
    for elems, measured in ((MOST_HOST_BYTES // 4, True), (MOST_HOST_BYTES // 4 + 1, False)):
        case = Case([(elems,)], torch.float32, 2, "sum", ["tiles", "events"])
        names = [x.name for x in contenders_of(case, args)]
        assert ("events host" in names) == measured
        assert "tiles host" in names


def test_all_graphs_of_a_case_are_kept():
    case = Case([(4,)], torch.float32, 2, "sum", ["tiles", "events"])
    tiles, events = ours("tiles", "ring", "sum"), ours("events", "ring", "sum")
    assert most_sets(case, [tiles] * 12, GRAPHS_KEPT) == GRAPHS_KEPT
    assert most_sets(case, [tiles] * 12 + [events] * 12, GRAPHS_KEPT) == 5
    assert most_sets(case, [tiles] * 12 + [events] * 12, 3) == 3
    assert most_sets(case, [events] * 100, GRAPHS_KEPT) == 1


def timed(algorithm, time_s, over_best, **more):
    called = {"time_s": time_s, "over_best": over_best, "best": "ring"}
    same = {"size_bytes": 4096, "tensors": 1, "type": "float32", "k": 2, "engine": "tiles"}
    return {**same, "algorithm": algorithm, "called": called, "auto_is": None, **more}


def test_auto_is_held_against_the_best_and_against_the_noise():
    rows = [timed("auto", 3.0, 1.5, auto_is="leader"), timed("leader", 2.0, 1.0)]
    worst, noise = about_auto([*rows, timed("ring", 2.0, 1.0)])
    assert "1.500 MORE THAN 1.1, at float32, 4096 bytes, k = 2" in worst
    assert "auto stood for leader, the best was ring" in worst
    assert noise.endswith(": 1.500 to 1.500")
    assert "1.050 OK" in about_auto([timed("auto", 3.0, 1.05)])[0]
    assert about_auto([timed("auto", 3.0, None)]) == []


@pytest.mark.parametrize(("devices", "named"), [({}, 1), ({"devices": 1}, 1), ({"devices": 2}, 0)])
def test_auto_is_behind_only_what_ran_on_as_many_devices(devices, named):
    faster = timed("loop", 1.0, None, engine="torch", captured=None, **devices)
    assert len(behind([timed("auto", 2.0, 1.0, captured=None), faster])) == named
