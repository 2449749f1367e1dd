"""Measuring: all places of the machine, every algorithm, right before fast."""

import math
import sys

import pytest
import torch
from tables import BUILT_IN, quick

import fastreduce
from fastreduce.algorithms import built_in, registry
from fastreduce.plan import machine, tune
from fastreduce.plan.machine import device, versions
from fastreduce.plan.table_files import load, save


class TestMeasure:
    @pytest.mark.parametrize("budget_s", [1e-6, 0.2])
    def test_fills_a_table_of_this_machine(self, budget_s):
        found = quick(budget_s=budget_s, places=["cpu"])
        assert (found.device, found.fastreduce, found.torch) == (device(), *versions())
        assert found.times_s.keys() == {"cpu"}
        assert sorted(found.times_s["cpu"]) == BUILT_IN
        assert found.times_s["cpu"]["ring"].keys() == {2, 3}
        assert load(save(found)) == found

    def test_unless_told_from_1_kib_to_64_mib_in_steps_of_4(self):
        assert tune.KS == (2, 4, 8) and tune.SIZES_BYTES[0] == 1 << 10
        assert tune.SIZES_BYTES[-1] == 64 << 20 and len(tune.SIZES_BYTES) == 9

    def test_leaves_out_what_users_registered(self, monkeypatch):
        monkeypatch.setitem(registry, "mine", lambda k: registry["leader"](k))
        assert "mine" not in quick(places=["cpu"]).times_s["cpu"]
        assert built_in() == BUILT_IN

    def test_a_wrong_sum_is_refused(self, monkeypatch):
        monkeypatch.setattr(tune, "allreduce", lambda tensors, algorithm: None)
        with pytest.raises(RuntimeError, match="on cpu with 3 ranks: tensor 0 of rank 0 is not"):
            quick(places=["cpu"])

    @pytest.mark.parametrize("budget_s", [0, -1, math.nan, math.inf])
    def test_no_time_is_refused(self, budget_s):
        with pytest.raises(ValueError, match=r"budget_s: found .*, wanted seconds above zero"):
            quick(budget_s=budget_s)

    def test_a_place_that_is_not_here_is_refused(self, monkeypatch):
        monkeypatch.setattr(fastreduce._C, "cuda_engines", False)
        with pytest.raises(ValueError, match="place: found 'gpu', wanted one of cpu"):
            quick(places=["cpu", "gpu"])

    @pytest.mark.parametrize(("count", "linked"), [(0, False), (1, False), (4, True), (4, False)])
    def test_places_are_the_extensions(self, monkeypatch, count, linked):
        monkeypatch.setattr(fastreduce._C, "cuda_engines", True)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        place = "nvlink" if linked else "pcie"
        monkeypatch.setattr(fastreduce._C, "place", lambda devices: place)
        wanted = [("cpu", ["cpu"] * 4), ("cpu", ["cpu"] * 2)]
        if count:
            wanted += [("gpu", ["cuda:0"] * 4), ("gpu", ["cuda:0"] * 2)]
        if count > 1:
            wanted += [(place, [f"cuda:{i}" for i in range(count)])]
        assert tune._ranks(None, (2, 4)) == wanted
        pair = {("cuda:0", "cuda:1")} if count > 1 else set()
        assert {(x.place, x.on) for x in tune._copies(None)} == {(place, on) for on in pair}


class FakeNvml:
    """Two GPUs, or no driver."""

    NVMLError = RuntimeError

    def __init__(self, has_driver):
        self.has_driver, self.open = has_driver, 0

    def nvmlInit(self):
        if not self.has_driver:
            raise RuntimeError("no driver")
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        return f"GPU-{index}"

    def nvmlDeviceGetName(self, handle):
        return "H100"


class TestMachine:
    @pytest.fixture(autouse=True)
    def with_engines(self, monkeypatch):
        monkeypatch.setattr(fastreduce._C, "cuda_engines", True)
        machine._gpus.cache_clear()
        yield
        machine._gpus.cache_clear()

    @pytest.mark.parametrize(
        ("nvml", "gpus"), [(FakeNvml(True), ", 2 x H100"), (FakeNvml(False), ""), (None, "")]
    )
    def test_gpus_are_named_without_starting_cuda(self, monkeypatch, nvml, gpus):
        monkeypatch.setitem(sys.modules, "pynvml", nvml)  # None: the package is not installed
        assert device().endswith(f" threads{gpus}")
        assert nvml is None or nvml.open == 0

    def test_a_cpu_is_named_by_its_first_processor(self, monkeypatch):
        """The second, as where a machine has two kinds of them, is another."""
        text = "model name\t: {}\ncpu family\t: 6\nmodel\t\t: {}\n\n"
        both = text.format("Fast", 1) + text.format("Small", 2)
        monkeypatch.setattr(machine.Path, "read_text", lambda path: both)
        assert machine.cpu.__wrapped__() == "Fast (family 6, model 1)"
