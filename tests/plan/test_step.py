"""A training step on many GPUs: buckets, what is hidden, and how it scales."""

from dataclasses import replace

import pytest
import torch
from calibrations import calibration
from torch import nn

from fastreduce import algorithms, explain, simulate
from fastreduce.parallel.buckets import BUCKET_BYTES, FIRST_BUCKET_BYTES
from fastreduce.plan.parameters import parameters
from fastreduce.plan.scaling import Network, counts, in_machines, in_one_machine
from fastreduce.plan.step import bucket_bytes, what_if, with_sums_s
from fastreduce.simulation.formulas import WAVES
from fastreduce.topology import cluster, preset, rings

MB = 1_000_000


@pytest.fixture(scope="module")
def resnet():
    return what_if("resnet50", "100ms", topology="book-pcie4", nics=1, gbit=100)


class TestSums:
    def test_without_time_they_add_nothing(self):
        assert with_sums_s(0.3, [1, 2, 3], lambda nbytes: 0.0) == pytest.approx(0.3)

    def test_the_last_bucket_is_never_hidden(self):
        """Backward is 0.2 of 0.3 s, the buckets are ready at 0.15, 0.2, 0.25 and 0.3 s."""
        assert with_sums_s(0.3, [5, 5, 5, 5], lambda nbytes: 0.01) == pytest.approx(0.31)

    def test_a_sum_waits_for_the_one_before_it(self):
        """The first begins at 0.15 s; from then on the network is never idle."""
        assert with_sums_s(0.3, [5, 5, 5, 5], lambda nbytes: 0.1) == pytest.approx(0.55)

    def test_a_large_last_bucket_costs_more_than_a_large_first_one(self):
        def seconds(nbytes):
            return nbytes / 1e9

        last, first = ([100 * MB, 10 * MB], [10 * MB, 100 * MB])
        assert with_sums_s(0.3, last, seconds) < with_sums_s(0.3, first, seconds)


class TestBuckets:
    def test_are_those_of_data_parallel(self):
        found = bucket_bytes(parameters("gpt2"))
        assert sum(found) == 4 * 124_439_808
        assert found[0] >= FIRST_BUCKET_BYTES
        assert all(nbytes >= BUCKET_BYTES for nbytes in found[1:-1])

    def test_go_from_the_last_parameter_to_the_first(self):
        first, last = torch.empty(30 << 18), torch.empty(2 << 18)
        assert bucket_bytes([first, last]) == (2 << 20, 30 << 20)

    def test_empty_parameters_have_no_bucket_of_their_own(self):
        """Found when an empty first parameter was a bucket of 0 bytes, which has no plan."""
        empty = torch.empty(0)
        assert bucket_bytes([empty, torch.empty(1 << 20), empty]) == (4 << 20,)


class TestScaling:
    def test_one_machine_then_many(self):
        assert counts(preset("dgx1"), 32) == [2, 4, 8, 16, 32]
        assert counts(preset("dgx1"), 5) == [2, 4]

    def test_the_last_are_all_that_were_asked_for(self):
        assert counts(preset("dgx1"), 24) == [2, 4, 8, 16, 24]
        assert counts(preset("dgx1"), 30) == [2, 4, 8, 16, 24]
        assert counts(preset("dgx1"), 8) == counts(preset("dgx1"), 15) == [2, 4, 8]

    def test_inside_a_machine_it_is_the_fastest_simulated(self):
        seconds = in_one_machine(preset("book-pcie4"), 4, [MB, 20 * MB, 160 * MB])
        assert seconds(160 * MB) == pytest.approx(15e-3, rel=0.01)
        assert seconds(90 * MB) == pytest.approx(90 / 160 * 15e-3, rel=0.01)

    @pytest.mark.parametrize("nbytes", [4096, 65536, 160 * MB])
    def test_of_few_gpus_it_is_that_of_the_plan(self, nbytes):
        seconds = in_one_machine(preset("dgx1"), 4, [4096, 65536, 160 * MB])
        plan = explain(nbytes, k=4, topology="dgx1")
        assert seconds(nbytes) == plan.chosen.prediction.time_s
        assert seconds(nbytes) != explain(nbytes, topology="dgx1").chosen.prediction.time_s

    @pytest.mark.parametrize("nbytes", [4096, 100 * MB])
    def test_between_machines_the_formula_is_what_is_simulated(self, nbytes):
        seconds = in_machines(preset("book-pcie4"), Network(1, 100))(2)
        two = cluster("book-pcie4", 2, 100)
        programs = [algorithms.ring(8), algorithms.sharded(8), algorithms.multi_ring(8, rings(two))]
        programs += [algorithms.hierarchical(8, 2, waves=waves) for waves in WAVES]
        simulated_s = [simulate(x, two, nbytes, slices=1).time_s for x in programs]
        assert seconds(nbytes) == pytest.approx(min(simulated_s), rel=0.02)


class TestWhatIf:
    def test_one_gpu_has_nothing_to_sum(self, resnet):
        assert resnet.on(1).efficiency == 1 and resnet.on(1).allreduce_s == 0

    def test_more_gpus_are_never_more_efficient(self, resnet):
        shares = [scale.efficiency for scale in resnet.scales]
        assert shares == sorted(shares, reverse=True) and shares[-1] > 0
        assert [x.gpus for x in resnet.scales] == [1 << power for power in range(11)]
        assert [x.reckoned_by for x in resnet.scales[1:4]] == ["simulation"] * 2 + ["formula"]

    def test_what_is_not_hidden_is_in_the_step(self, resnet):
        for x in resnet.scales[1:]:
            exposed_s = (1 - x.hidden) * x.allreduce_s
            assert x.step_s == pytest.approx(0.1 + exposed_s)
            assert 0 <= x.hidden <= 1

    def test_a_step_that_takes_no_time_hides_nothing(self):
        found = what_if("resnet50", 1e-9, topology="book-pcie4", most_gpus=4).on(4)
        assert found.hidden == pytest.approx(0, abs=1e-6)

    def test_nothing_hidden_is_zero_and_not_below(self):
        """One bucket of a small model: rounding made it -0.0 %."""
        found = what_if([torch.empty(100)], "350ms", topology="book-pcie4", most_gpus=4096)
        assert all(0 <= scale.hidden < 1e-6 for scale in found.scales[1:])
        assert "-0.0" not in str(found)

    def test_a_card_has_400_gbit_if_nothing_is_said(self):
        unsaid, same, less = (
            what_if("resnet50", "20ms", nics=1, most_gpus=16, **gbit).scales
            for gbit in ({}, {"gbit": 400}, {"gbit": 399})
        )
        assert unsaid == same != less

    def test_a_slow_link_costs(self):
        book = preset("book-pcie4")
        whole, slow = (
            what_if("resnet50", "20ms", topology=machine, most_gpus=4).on(4)
            for machine in (book, book.scaled(("gpu0", "pcie0"), 0.5))
        )
        assert slow.allreduce_s == pytest.approx(2 * whole.allreduce_s, rel=0.05)

    def test_prints_a_row_for_each_number_of_gpus(self, resnet):
        title, machine, headings, *rows = str(resnet).splitlines()
        assert title.startswith("resnet50, 25,557,032 parameters: 102.2 MB of gradients (float32)")
        assert machine == "book-pcie4, joined by 1 x 100 Gbit/s each; all predicted"
        assert "efficiency" in headings and rows[0].split()[0] == "1" and len(rows) == 11
        assert rows[0].split()[1:3] == ["-", "-"] and "-" not in rows[1].split()
        assert resnet._repr_html_().count("<tr>") == 12

    def test_a_module_is_a_model(self):
        found = what_if(nn.Linear(1000, 1000), 0.01, topology="book-pcie4", most_gpus=2)
        assert found.title.startswith("Linear, 1,001,000 parameters: 4.004 MB of gradients")
        assert len(found.bucket_bytes) == 2 or sum(found.bucket_bytes) == 4_004_000

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ({"step": "350"}, "'350' is no duration"),
            ({"step": 0}, "0 is no duration; want seconds above zero"),
            ({"topology": "dgx9"}, "unknown topology 'dgx9'"),
            ({"gbit": 0}, "gbit is 0, want a rate above zero"),
            ({"nics": 0}, "nics is 0, want 1 or more"),
            ({"most_gpus": 1.5}, "most_gpus is 1.5, want 1 or more"),
            ({"most_gpus": 0}, "most_gpus is 0, want 1 or more"),
        ],
    )
    def test_bad_input_is_said(self, arguments, words):
        usual = {"step": "1s", "topology": "book-pcie4", "most_gpus": 8}
        with pytest.raises(ValueError, match=words):
            what_if("resnet50", **(usual | arguments))

    def test_a_number_that_was_not_reckoned(self, resnet):
        with pytest.raises(ValueError, match="found 3 GPUs, want one of 1, 2, 4"):
            resnet.on(3)


@pytest.mark.parametrize(
    ("ranks", "factor", "words"),
    [
        ((4, 4), 1.0, "all predicted; the calibration is used for 4 GPUs only"),
        ((3, 3), 1.0, "all predicted; the calibration is of other numbers of GPUs or"),
        ((4, 4), 0.99, "all predicted; the calibration is of other numbers of GPUs or of other"),
        (None, 1.0, "all predicted"),
    ],
)
def test_says_for_which_numbers_of_gpus_a_calibration_is_used(ranks, factor, words):
    curves = [replace(calibration("fastreduce ring"), ranks=ranks)] if ranks else []
    machine = replace(preset("book-pcie4"), calibrations=tuple(curves))
    machine = machine if factor == 1 else machine.scaled(("gpu0", "pcie0"), factor)
    found = what_if("resnet50", "100ms", topology=machine, most_gpus=8).machine
    assert words in found and (ranks or "calibration" not in found)
