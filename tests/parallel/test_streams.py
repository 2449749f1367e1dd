"""Streams of several GPUs in backward functions, on a fake torch.cuda."""

from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from models import CLASSES, batch
from torch import nn

from fastreduce import DataParallel
from fastreduce.parallel import sync_batchnorm
from fastreduce.parallel.streams import Streams

GPUS = [torch.device("cuda", number) for number in (1, 0, 1)]


class Stream:
    def __init__(self, device, name):
        self.device, self.name, self.after = device, name, []

    def wait_stream(self, other):
        self.after.append(other.name)


@pytest.fixture
def current(monkeypatch):
    """The current stream of each device in the thread that runs just now."""
    streams = {device: Stream(device, f"forward's on {device}") for device in GPUS}

    @contextmanager
    def stream(new):
        before, streams[new.device] = streams[new.device], new
        yield
        streams[new.device] = before

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: streams[device])
    monkeypatch.setattr(torch.cuda, "stream", stream)
    return streams


def test_those_of_the_forward_pass_are_current_in_the_backward_pass(current):
    streams = Streams(GPUS)
    others = {device: Stream(device, "default") for device in GPUS}
    others[GPUS[0]] = current[GPUS[0]]  # autograd sees to that of the first
    current.update(others)
    with streams.current():
        assert [current[device].name for device in GPUS[:2]] == [
            "forward's on cuda:1",
            "forward's on cuda:0",
        ]
        assert current[GPUS[1]].after == ["forward's on cuda:1"]
    assert current == others


def test_there_are_none_on_the_cpu():
    with Streams([torch.device("cpu")] * 2).current():
        pass


def test_batchnorm_of_all_shards_sums_gradients_on_them(monkeypatch):
    inside, summed = [], []

    class Seen(Streams):
        @contextmanager
        def current(self):
            inside.append(self)
            yield
            inside.pop()

    allreduce = sync_batchnorm.fastreduce.allreduce
    monkeypatch.setattr(sync_batchnorm, "Streams", Seen)
    monkeypatch.setattr(
        sync_batchnorm.fastreduce,
        "allreduce",
        lambda *args, **how: (summed.append(bool(inside)), allreduce(*args, **how))[1],
    )
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, CLASSES)).double()
    model = DataParallel(net, ["cpu"] * 2, sync_batchnorm=True)
    X, y = batch()
    F.cross_entropy(model(X), y).backward()
    assert summed == [False, False, True, True]
