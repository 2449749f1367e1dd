"""Curves: what they say, and that files keep them."""

import json

import pytest
from calibrations import CURVE, HOPS, calibration

from fastreduce.topology import cluster, load, preset, save
from fastreduce.topology.calibration import from_json, to_json
from fastreduce.topology.calibration_files import load_calibrations, published, save_calibrations

GOOD = {"ramp_bytes": 0, "bytes_per_s": 1e9}
ERROR = {"mean": 0.08, "worst": 0.2, "points": 21, "held_out": "machines"}


class TestCurve:
    def test_small_messages_take_the_call_and_large_ones_the_rate(self):
        assert CURVE.time_s(4, 8) == pytest.approx(12e-6, rel=1e-3)
        assert 2 * 7 / 8 * (1 << 40) / CURVE.time_s(1 << 40, 8) == pytest.approx(400e9, rel=1e-3)

    @pytest.mark.parametrize(("nbytes", "fastest"), [(1 << 10, 0), (1 << 22, 1), (1 << 30, 2)])
    def test_the_fastest_pair_counts(self, nbytes, fastest):
        alone = [CURVE._replace(pairs=(pair,)).time_s(nbytes, 8) for pair in CURVE.pairs]
        assert CURVE.time_s(nbytes, 8) == min(alone) == alone[fastest]

    def test_each_step_of_a_ring_takes_a_hop(self):
        assert HOPS.time_s(0, 8) - HOPS.time_s(0, 2) == pytest.approx(12 * 2e-6)


class TestFiles:
    def test_come_back_as_they_were(self, tmp_path):
        path = save_calibrations([calibration()], tmp_path / "mine.json")
        assert load_calibrations(path) == (calibration(),)

    def test_a_file_of_something_else_is_named_and_refused(self, tmp_path):
        save(preset("dgx-h100"), tmp_path / "a.json")
        with pytest.raises(ValueError, match=r"a\.json: format is 'fastreduce topology', want "):
            load_calibrations(tmp_path / "a.json")

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"engine": 7}, "calibration 0: engine is 7"),
            ({"ranks": [8, 2]}, r"ranks is \[8, 2\], want the least and the most"),
            ({"ranks": [True, 2]}, r"ranks is \[True, 2\], want the least and the most"),
            ({"error": ERROR | {"mean": float("nan")}}, "error: mean is nan, want a number, 0 or"),
            ({"error": ERROR | {"worst": 10**400}}, "error: worst is 10+, want a number"),
            ({"error": ERROR | {"points": -3}}, "error: points is -3, want a number"),
            ({"speed": 1}, "'speed' is not known"),
            ({"curve": {"call_s": -1, "hop_s": 0, "pairs": [GOOD]}}, "call_s is -1, want a number"),
            (
                {"curve": {"call_s": 0, "hop_s": 0, "pairs": [GOOD | {"bytes_per_s": 0}]}},
                "bytes_per_s is 0, want a number",
            ),
            ({"curve": {"call_s": 0, "hop_s": 0, "pairs": []}}, "want at least one pair"),
            ({"curve": {"call_s": 0, "hop_s": 0, "pairs": [7]}}, "pairs is 7, want an object"),
        ],
    )
    def test_wrong_ones_are_refused_in_words(self, change, words):
        with pytest.raises(ValueError, match=words):
            from_json("mine", [to_json([calibration()])[0] | change])

    def test_a_topology_keeps_them(self, tmp_path):
        save(preset("dgx-h100"), tmp_path / "a.json")
        found = load(tmp_path / "a.json")
        assert found.calibrations == preset("dgx-h100").calibrations != ()

    def test_files_without_them_still_load(self, tmp_path):
        save(preset("book-pcie4"), tmp_path / "a.json")
        assert "calibrations" not in json.loads((tmp_path / "a.json").read_text())
        assert load(tmp_path / "a.json").calibrations == ()

    @pytest.mark.parametrize(
        "change",
        [
            lambda machine: machine.scaled(("gpu0", "nvswitch"), 0.5),
            lambda machine: machine.without(("gpu0", "nvswitch")),
            lambda machine: machine.without_peer_access(),
            lambda machine: cluster(machine, 2, 100),
            lambda machine: cluster(machine.scaled(("gpu0", "nvswitch"), 0.5), 2, 100),
        ],
        ids=["scaled", "without", "without peer access", "cluster", "both"],
    )
    def test_a_machine_that_was_changed_has_none_and_knows_it(self, change):
        found = change(preset("dgx-h100"))
        assert found.calibrations == ()
        assert found.unused == preset("dgx-h100").calibrations != ()


def test_known_machines_have_what_is_published():
    assert [x.engine for x in published("dgx-h100")] == ["NCCL"]
    assert cluster("dgx-h100", 2, 400, nics=8).calibrations[0].medium.startswith("2 x 8 Hopper")
    assert cluster("dgx-h100", 2, 100, nics=8).calibrations == ()
