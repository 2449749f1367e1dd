"""Curves: what they say, that a fit finds them, and how errors are held out."""

import json
from dataclasses import replace

import pytest

from fastreduce import explain
from fastreduce.plan.calibrate import calibrate, errors_of, fit
from fastreduce.plan.calibration import Calibration, Curve, Error, Pair, from_json, to_json
from fastreduce.plan.calibration_files import load_calibrations, published, save_calibrations
from fastreduce.plan.runs import Point, Run
from fastreduce.topology import cluster, load, preset, save

pytest.importorskip("scipy")

CURVE = Curve(12e-6, 0.0, (Pair(0.0, 20e9), Pair(4e6, 150e9), Pair(30e6, 400e9)))
HOPS = Curve(5e-6, 2e-6, (Pair(0.0, 2e9), Pair(1e6, 25e9)))
GOOD = {"ramp_bytes": 0, "bytes_per_s": 1e9}
ERROR = {"mean": 0.08, "worst": 0.2, "points": 21, "held_out": "machines"}
SIZES = [1 << e for e in range(10, 31)]


def run(curve, machine="a", ranks=8, sizes=SIZES, factor=1.0):
    points = (Point(nbytes, factor * curve.time_s(nbytes, ranks)) for nbytes in sizes)
    return Run(machine, "NVLink", "NCCL", ranks, tuple(points), "made up")


def calibration(engine="NCCL", curve=CURVE):
    error = Error(0.08, 0.2, 21, "machines")
    return Calibration("NVLink", engine, (2, 8), (1024, 1 << 30), curve, error, ("https://a.page",))


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


class TestFit:
    def test_finds_the_curve_that_the_times_are_from(self):
        assert max(errors_of(fit([run(CURVE)]), [run(CURVE)])) < 0.01

    def test_tells_a_hop_from_a_call_where_numbers_of_ranks_differ(self):
        found = fit([run(HOPS, ranks=k) for k in (2, 4, 8)])
        assert found.hop_s == pytest.approx(HOPS.hop_s, rel=0.05)
        assert found.call_s == pytest.approx(HOPS.call_s, rel=0.1)

    def test_control_one_pair_alone_would_be_far_off(self):
        one = CURVE._replace(pairs=(Pair(0.0, 400e9),))
        assert max(errors_of(one, [run(CURVE)])) > 0.5

    def test_pairs_that_were_not_measured_are_left_out(self):
        """Else the last would be taken for the full rate, with a figure from nowhere."""
        one = Curve(12e-6, 0.0, (Pair(0.0, 300e9),))
        for found in (fit([run(one)]), fit([run(CURVE, sizes=SIZES[:12])])):
            assert list(found.pairs) == sorted(found.pairs, key=lambda pair: pair.bytes_per_s)
        assert fit([run(one)]).pairs[-1].bytes_per_s == pytest.approx(300e9, rel=0.02)


class TestHeldOut:
    def test_a_machine_is_told_from_the_others(self):
        runs = [run(CURVE, "a"), run(CURVE, "b"), run(CURVE, "slow", factor=1.5)]
        _, held_out = calibrate(runs)
        by_machine = {x.machine: max(x.errors) for x in held_out}
        assert by_machine["slow"] == pytest.approx(1 / 3, rel=0.05)
        assert {x.held_out for x in held_out} == {"machines"}

    def test_one_machine_is_held_out_every_other_point(self):
        (found,), (only,) = calibrate([run(CURVE)])
        assert only.held_out == found.error.held_out == "every other point"
        assert len(only.errors) == len(SIZES) and found.error.worst < 0.05

    def test_sizes_that_no_other_machine_has_are_not_told_from_them(self):
        runs = [run(CURVE, "short", sizes=SIZES[10:]), run(CURVE, "long")]
        _, held_out = calibrate(runs)
        assert [(x.machine, x.held_out, len(x.errors)) for x in held_out] == [
            ("short", "machines", 11),
            ("long", "machines", 11),
            ("long", "every other point", 10),
        ]

    def test_an_untuned_machine_is_told_from_the_others_and_never_the_other_way(self):
        untuned = run(CURVE, "untuned", factor=1.5)._replace(flaw="the page says so")
        (found,), held_out = calibrate([run(CURVE, "a"), run(CURVE, "b"), untuned])
        by_machine = {x.machine: max(x.errors) for x in held_out}
        assert by_machine["untuned"] == pytest.approx(1 / 3, rel=0.05)
        assert by_machine["a"] < 0.01 and found.error.worst < 0.01
        assert [x.flaw for x in held_out] == ["", "", "the page says so"]
        assert max(errors_of(found.curve, [run(CURVE)])) < 0.01

    @pytest.mark.parametrize("sizes", [SIZES[:7], SIZES[:7] * 3, [1 << 20] * 8], ids=len)
    def test_too_few_sizes_are_refused(self, sizes):
        with pytest.raises(ValueError, match="was measured at 8 sizes or more; want more sizes"):
            calibrate([run(curve=CURVE, sizes=sizes)])


@pytest.mark.parametrize(
    "sizes, told",
    [
        (SIZES, True),
        ([8 << e for e in range(10)], False),
        ([(1 << 20) + 8 * e for e in range(8)], False),
        ([(1 << 30) + 8 * e for e in range(8)], False),
    ],
    ids=["all", "small", "all of 1 MiB", "all of 1 GiB"],
)
def test_a_rate_is_told_by_large_sizes_that_differ(sizes, told):
    assert calibrate([run(CURVE, sizes=sizes)])[0][0].tells_rate == told


class TestFiles:
    def test_come_back_as_they_were(self, tmp_path):
        path = save_calibrations([calibration()], tmp_path / "mine.json")
        assert load_calibrations(path) == (calibration(),)

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

    def test_a_machine_that_was_changed_has_none(self):
        assert preset("dgx-h100").scaled(("gpu0", "nvswitch"), 0.5).calibrations == ()


class TestExplain:
    def machine(self, *calibrations):
        return replace(preset("book-pcie4"), calibrations=calibrations)

    def test_says_what_nobody_measured(self):
        plan = explain("1MB", topology="book-pcie4")
        assert plan.notes == ("times: predicted, not measured on this machine",)
        assert "+-" not in str(plan)

    def test_prints_the_error_beside_a_time_that_was_measured(self):
        ours = calibration("fastreduce ring")
        plan = explain("1MB", topology=self.machine(ours))
        found = plan.candidate("ring")
        assert found.prediction.time_s == CURVE.time_s(1_000_000, 4)
        assert found.cells(plan.nbytes)[3].endswith(", +-8 %")
        assert plan.notes == ("times: predicted, not measured on this machine but for ring",)

    def test_a_curve_without_a_rate_tells_nothing_of_other_algorithms(self):
        def times(**changed):
            ours = replace(calibration("fastreduce ring"), **changed)
            found = explain("1MB", topology=self.machine(ours)).candidates
            return {x.algorithm: x.prediction.time_s for x in found if x.error is None}

        plain = explain("1MB", topology="book-pcie4").candidates
        found = times(sizes_bytes=(8, 4096))
        assert found == {x.algorithm: x.prediction.time_s for x in plain}
        assert times() != found  # the control

    def test_names_anothers_curve_and_never_takes_it_for_ours(self):
        plan = explain("1MB", topology=self.machine(calibration()))
        assert plan.candidates == explain("1MB", topology="book-pcie4").candidates
        assert plan.notes[1].startswith("NCCL, as measured by others on NVLink: ")
        assert ", +-8 %, " in plan.notes[1]

    def test_what_was_measured_here_is_not_said_to_be_others(self):
        own = replace(calibration(), sources=("nccl.txt",))
        plan = explain("1MB", topology=self.machine(own))
        assert plan.notes[1].startswith("NCCL, as measured on NVLink: ")

    @pytest.mark.parametrize("size", ["1KB", "2GB"])
    def test_is_silent_beyond_what_was_measured(self, size):
        assert len(explain(size, topology=self.machine(calibration())).notes) == 1

    def test_known_machines_have_what_is_published(self):
        assert [x.engine for x in published("dgx-h100")] == ["NCCL"]
        assert cluster("dgx-h100", 2, 400, nics=8).calibrations[0].medium.startswith("2 x 8 Hopper")
        assert cluster("dgx-h100", 2, 100, nics=8).calibrations == ()
