"""Which devices replicas run on."""

from types import SimpleNamespace

import pytest
import torch

from fastreduce.devices import deal_devices, default_replicas, usable_devices

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("devices", "replicas", "dealt"),
    [("a", 1, "a"), ("a", 3, "aaa"), ("ab", 2, "ab"), ("ab", 5, "ababa")],
)
def test_replicas_are_dealt_out_over_the_devices_in_turn(devices, replicas, dealt):
    assert deal_devices(list(devices), replicas) == tuple(dealt)


@pytest.mark.parametrize(("devices", "replicas"), [("a", 0), ("ab", 1), ("", 0), ("a", -1)])
def test_a_device_without_a_replica_is_an_error(devices, replicas):
    with pytest.raises(ValueError, match=f"replicas: found {replicas}, wanted at least"):
        deal_devices(list(devices), replicas)


def test_gpus_are_taken_where_there_are_any(monkeypatch):
    gpus = [torch.device("cuda", 0), torch.device("cuda", 1)]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert usable_devices() == [CPU]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr("fastreduce._C.cuda_engines", False)
    assert usable_devices() == [CPU]
    monkeypatch.setattr("fastreduce._C.cuda_engines", True)
    assert usable_devices() == gpus
    assert (default_replicas(gpus), default_replicas(gpus[:1]), default_replicas([CPU])) == (
        2,
        1,
        2,
    )


@pytest.mark.parametrize("names", ["cpu,cpu", "cpu cpu", "cpu, cpu"])
def test_several_in_one_word_are_an_error(names):
    with pytest.raises(ValueError, match=r"wanted each device by itself: --devices cpu cpu in"):
        usable_devices([names])


@pytest.mark.parametrize("name", ["gpu0", "None", "meta", "cuda:99"])
def test_a_device_that_is_not_here_is_an_error(name):
    with pytest.raises(ValueError, match=f"devices: found '{name}', which cannot be used here"):
        usable_devices(["cpu", name])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("xpu:0", "found 'xpu:0', wanted cpu or cuda devices"),
        ("cuda:0", "found 'cuda:0', but this build of fastreduce has no CUDA engines"),
    ],
)
def test_a_device_that_is_here_but_has_no_engine_is_an_error(monkeypatch, name, words):
    device = torch.device(name)
    probe = SimpleNamespace(device=device, is_cuda=device.type == "cuda", item=lambda: 0.0)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: probe)
    monkeypatch.setattr("fastreduce._C.cuda_engines", False)
    with pytest.raises(ValueError, match=words):
        usable_devices([name])
