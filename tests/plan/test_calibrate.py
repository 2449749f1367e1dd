"""Fits: that they find a curve, and how errors are held out."""

from dataclasses import replace

import pytest
from calibrations import CURVE, HOPS, calibration
from sweeps import one_in

from fastreduce import explain
from fastreduce.plan.calibrate import calibrate, errors_of, fit
from fastreduce.plan.runs import Measured, Point
from fastreduce.topology import cluster, preset
from fastreduce.topology.calibration import Curve, Pair

pytest.importorskip("scipy")

SIZES = [1 << e for e in range(10, 31)]


def run(curve, machine="a", ranks=8, sizes=SIZES, factor=1.0):
    points = (Point(nbytes, factor * curve.time_s(nbytes, ranks)) for nbytes in sizes)
    return Measured(machine, "NVLink", "NCCL", ranks, tuple(points), "made up")


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

    @pytest.mark.parametrize(("sizes", "pairs"), [(SIZES, 3), (SIZES[::3], 3), (SIZES[::5], 2)])
    def test_has_no_more_figures_than_points(self, sizes, pairs):
        rates = (Pair(0, 1e9), Pair(2e4, 8e9), Pair(8e5, 60e9), Pair(2e7, 400e9))
        assert len(fit([run(Curve(5e-6, 0.0, rates), sizes=sizes)]).pairs) == pairs

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

    def test_a_size_that_was_measured_twice_is_held_out_twice(self):
        """Found when a second cycle of nccl-tests in a file told what was held out of the first."""
        once = run(CURVE)
        bumps = (1.6 if number % 4 == 0 else 1.0 for number in range(len(SIZES)))
        bumpy = [Point(n, s * bump) for (n, s), bump in zip(once.points, bumps, strict=True)]
        again = [Point(nbytes, time_s * 1.01) for nbytes, time_s in bumpy]
        errors = [
            calibrate([once._replace(points=tuple(sorted(points)))])[0][0].error
            for points in (bumpy, bumpy + again)
        ]
        assert errors[1].points == 2 * errors[0].points
        assert errors[1].mean == pytest.approx(errors[0].mean, rel=0.1)

    @pytest.mark.parametrize(
        "runs",
        [
            [run(CURVE, sizes=SIZES[:7])],
            [run(CURVE, sizes=SIZES[:7] * 3)],
            [run(CURVE, sizes=[1 << 20] * 8)],
            [run(CURVE, "a", sizes=SIZES[:5]), run(CURVE, "b", sizes=SIZES[5:10])],
            [run(CURVE, ranks=2 + i, sizes=[nbytes]) for i, nbytes in enumerate(SIZES[:8])],
        ],
        ids=["seven", "seven, again and again", "one", "two machines", "each its own ranks"],
    )
    def test_too_few_sizes_are_refused(self, runs):
        words = "measured at 8 sizes or more on one machine with one number of ranks; want more"
        with pytest.raises(ValueError, match=words):
            calibrate(runs)


@pytest.mark.parametrize(
    "sizes, told",
    one_in(
        2,
        [
            (SIZES, True),
            ([8 << e for e in range(10)], False),
            ([(1 << 20) + 8 * e for e in range(8)], False),
            ([(1 << 30) + 8 * e for e in range(8)], False),
        ],
        "cases",
    ),
    ids=["all", "small", "all of 1 MiB", "all of 1 GiB"],
)
def test_a_rate_is_told_by_large_sizes_that_differ(sizes, told):
    assert calibrate([run(CURVE, sizes=sizes)])[0][0].tells_rate == told


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

    def test_a_curve_of_a_name_is_not_taken_for_a_program_that_is_fitted(self):
        """Found when the machine's own rings were said to take what other rings had taken."""
        slow = Curve(12e-6, 0.0, (Pair(0.0, 1e9),))
        curves = calibration("fastreduce multi-ring", slow), calibration("fastreduce ring", slow)
        machine = replace(preset("dgx1"), calibrations=curves)
        found = explain("160MB", topology=machine)
        own, ring = found.candidate("multi-ring"), found.candidate("ring")
        assert own.fitted and own.error is None
        assert own.prediction.time_s < ring.prediction.time_s / 4
        assert ring.error is not None  # the control

    @pytest.mark.parametrize("smallest", [1 << 10, 1 << 20])
    def test_a_curve_goes_on_beyond_its_sizes_without_its_error(self, smallest):
        """Found when times jumped there, and fell where more was sent."""
        slow = Curve(12e-6, 0.0, (Pair(0.0, 1e9),))
        curves = [calibration("fastreduce leader", slow), calibration("fastreduce ring", HOPS)]
        machine = self.machine(*(replace(x, sizes_bytes=(smallest, 1 << 26)) for x in curves))
        sizes = [smallest - 1, smallest, 1 << 26, (1 << 26) + 4]
        found = [explain(n, topology=machine).candidate("leader") for n in sizes]
        assert [x.error is None for x in found] == [True, False, False, True]
        wanted = [slow.time_s(nbytes, 4) for nbytes in sizes]
        assert [x.prediction.time_s for x in found] == pytest.approx(wanted)

    def test_above_its_sizes_it_is_never_faster_than_the_machine(self):
        fast = Curve(1e-6, 0.0, (Pair(0.0, 1e15),))
        ours = replace(calibration("fastreduce ring", fast), sizes_bytes=(1 << 10, 1 << 26))
        plain = explain(1 << 27, topology="book-pcie4").candidate("ring")
        found = explain(1 << 27, topology=self.machine(ours)).candidate("ring")
        assert found.prediction.time_s == plain.prediction.time_s

    def test_a_latency_that_is_not_known_is_said(self):
        machine = preset("book-pcie4")
        graph = machine.graph.copy()
        for _, _, link in list(graph.edges(data=True))[:3]:
            link["latency_s"] = None
        plan = explain("1MB", topology=replace(machine, graph=graph))
        assert "the latency of 3 links is not known, and counts as none" in plan.notes

    def test_a_curve_is_taken_where_the_bandwidth_of_a_link_is_unknown(self):
        """Found when a curve with a rate made the plan impossible, and one without did not."""
        graph = preset("pcie4-x8").graph.copy()
        for link in (("cpu0", "cpu1"), ("cpu1", "cpu0")):
            graph.edges[link]["bytes_per_s"] = None
        ours = replace(calibration("fastreduce ring"), ranks=(8, 8))
        machine = replace(preset("pcie4-x8"), graph=graph, calibrations=(ours,))
        found = explain("1MB", topology=machine)
        assert found.chosen.algorithm == "ring"
        assert found.chosen.prediction.time_s == CURVE.time_s(1_000_000, 8)

    def test_a_curve_without_a_rate_tells_nothing_of_other_algorithms(self):
        def times(**changed):
            ours = replace(calibration("fastreduce ring"), **changed)
            found = explain("1MB", topology=self.machine(ours)).candidates
            return {x.algorithm: x.prediction.time_s for x in found if x.error is None}

        plain = explain("1MB", topology="book-pcie4").candidates
        found = times(sizes_bytes=(8, 4096))
        assert found == {x.algorithm: x.prediction.time_s for x in plain}
        assert times() != found  # the control

    @pytest.mark.parametrize(
        ("medium", "on", "taken"),
        [
            ("cpu", "dgx-h100", False),
            ("gpu", "dgx-h100", False),
            ("processes", "dgx-h100", False),
            ("pcie", "dgx-h100", False),
            ("nvlink", "dgx-h100", True),
            ("nvlink", "book-pcie4", False),
            ("pcie", "book-pcie4", True),
            ("nvlink", "dgx1-v100", False),  # some pairs have no NVLink
            ("my words", "dgx-h100", True),
        ],
    )
    def test_a_place_of_tune_counts_only_where_the_gpus_are_in_it(self, medium, on, taken):
        """Found when a table of `tune` lent the CPU's curves to NVLink: 8 times too slow."""
        ours = replace(calibration("fastreduce sharded"), medium=medium)
        plan = explain("64MB", topology=replace(preset(on), calibrations=(ours,)))
        plain = explain("64MB", topology=on).candidates
        assert (plan.candidate("sharded").error is not None) == taken
        assert (plan.candidates != plain) == taken

    @pytest.mark.parametrize("order", [1, -1])
    def test_of_several_curves_each_counts_for_its_own_and_the_fastest_for_the_others(self, order):
        """Found when the first by name, slow `leader`, made every other algorithm slow."""
        slow = Curve(12e-6, 0.0, (Pair(0.0, 1e9),))
        leader, ring = calibration("fastreduce leader", slow), calibration("fastreduce ring")
        both = explain("1MB", topology=self.machine(*(leader, ring)[::order]))
        one = explain("1MB", topology=self.machine(ring))
        assert both.candidate("leader").prediction.time_s == slow.time_s(1_000_000, 4)
        assert both.candidate("sharded") == one.candidate("sharded")
        alone = explain("1MB", topology=self.machine(leader))
        assert alone.candidate("sharded") != one.candidate("sharded")  # the control

    @pytest.mark.parametrize(
        ("change", "k", "medium", "words"),
        [
            (lambda machine: machine, 4, "book", None),
            (lambda machine: machine, 3, "book", "with 4 or 8 ranks, not with 3"),
            (lambda machine: machine.scaled(("gpu0", "pcie0"), 0.99), 4, "book", "one whole"),
            (lambda machine: machine.without_peer_access(), 4, "pcie", "one whole machine"),
            (lambda machine: cluster(machine, 2, 100), 8, "book", "one whole machine"),
            (lambda machine: machine.scaled(("gpu0", "pcie0"), 0.99), 4, "cpu", None),
        ],
        ids=["control", "ranks", "slow link", "no peer access", "machines", "not of links"],
    )
    def test_says_that_a_calibration_does_not_hold(self, change, k, medium, words):
        """Found when a link at 99 % made a plan 3 times faster, without a word."""
        four = replace(calibration("fastreduce ring"), ranks=(4, 4), medium=medium)
        machine = change(self.machine(four, replace(four, ranks=(8, 8))))
        notes = [x for x in explain("1MB", k=k, topology=machine).notes if "not used" in x]
        assert len(notes) == bool(words)
        assert all(words in x and x.startswith("calibration not used: it was") for x in notes)

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
