"""Measuring: all places of the machine, every algorithm, right before fast."""

import math
from types import SimpleNamespace

import pytest
import torch
from tables import BUILT_IN, quick

import fastreduce
from fastreduce.algorithms import built_in, registry
from fastreduce.plan import machine, tune
from fastreduce.plan.machine import device, has_nvlink, versions
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
        monkeypatch.setattr(tune, "has_nvlink", lambda gpus: linked)
        wanted = [("cpu", ["cpu"] * 4), ("cpu", ["cpu"] * 2)]
        if count:
            wanted += [("gpu", ["cuda:0"] * 4), ("gpu", ["cuda:0"] * 2)]
        if count > 1:
            wanted += [("nvlink" if linked else "pcie", [f"cuda:{i}" for i in range(count)])]
        assert tune._ranks(None, (2, 4)) == wanted


class FakeNvml:
    """Two GPUs, between which atomics pass or not."""

    NVMLError = RuntimeError
    NVML_P2P_CAPS_INDEX_ATOMICS, NVML_P2P_STATUS_OK = 3, 0

    def __init__(self, status):
        self.status, self.open = status, 0

    def nvmlInit(self):
        if self.status is None:
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

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return uuid

    def nvmlDeviceGetP2PStatus(self, one, other, p2pIndex):
        assert (one, other, p2pIndex) == ("GPU-0", "GPU-1", 3)
        return self.status


class TestMachine:
    @pytest.fixture
    def with_nvml(self, monkeypatch):
        def install(status):
            fake = FakeNvml(status)
            monkeypatch.setattr(machine, "pynvml", fake)
            monkeypatch.setattr(fastreduce._C, "cuda_engines", True)
            properties = lambda i: SimpleNamespace(uuid=i)  # noqa: E731
            monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
            machine._gpus.cache_clear()
            return fake

        yield install
        machine._gpus.cache_clear()

    @pytest.mark.parametrize(("status", "linked"), [(0, True), (3, False), (None, False)])
    def test_nvlink_is_where_atomics_pass(self, with_nvml, status, linked):
        fake = with_nvml(status)
        assert has_nvlink(2) == linked
        assert fake.open == 0

    def test_gpus_are_named_without_starting_cuda(self, with_nvml):
        with_nvml(0)
        assert device().endswith(" threads, 2 x H100")
        with_nvml(None)
        assert device().endswith(" threads")
