"""`graphed.captured` over several GPUs, on a fake torch.cuda that knows which device is current."""

from collections import Counter
from contextlib import contextmanager, nullcontext
from itertools import count

import pytest
import torch
from torch import nn

from fastreduce.parallel.graphed import _unchanged, captured

GPUS = [torch.device("cuda", number) for number in (2, 0, 1)]


class FakeCuda:
    """What torch does, and on which device: that of an argument, or the current one."""

    def __init__(self) -> None:
        self.current = 0
        self.contexts: set[int] = set()  # the devices that have one
        self.numbers = count(1)
        self.users = Counter()  # of a pool's memory, by device and pool: with none, it is freed
        self.seeds: list[int] = []  # the devices of the registered generators' seeds

    @contextmanager
    def device(self, device):
        before, self.current = self.current, device.index
        self.contexts.add(device.index)
        yield
        self.current = before  # which creates no context

    def pool(self):
        made = type("MemPool", (), {"id": (0, next(self.numbers))})
        self.users[self.current, made.id] += 1  # as at::cuda::MemPool (torch 2.11)
        return made

    def use(self, device, pool):
        self.users[device, pool] += 1

    def release(self, device, pool):
        self.users[device, pool] -= 1

    def stream(self, device):
        fake = self

        class Stream:
            def wait_stream(self, _):
                pass

            def __enter__(self):
                self.before, fake.current = fake.current, device.index
                fake.contexts.add(device.index)

            def __exit__(self, *_):
                fake.current = self.before
                fake.contexts.add(self.before)  # as torch.cuda.StreamContext (torch 2.11)

        return Stream()

    def graph(self):
        fake = self

        class Graph:
            def register_generator_state(self, _):
                fake.seeds.append(fake.current)  # as CUDAGeneratorState::register_graph

            def replay(self):
                pass

        return Graph()


@pytest.fixture
def cuda(monkeypatch):
    fake = FakeCuda()
    for name, replacement in {
        "device": fake.device,
        "MemPool": fake.pool,
        "Stream": fake.stream,
        "current_stream": fake.stream,
        "stream": lambda stream: stream,
        "graph": lambda _, stream: stream,
        "CUDAGraph": fake.graph,
        "default_generators": [None] * 3,
    }.items():
        monkeypatch.setattr(torch.cuda, name, replacement)
    monkeypatch.setattr(torch._C, "_cuda_beginAllocateToPool", fake.use, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", lambda *_: None, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", fake.release, raising=False)
    return fake


def test_the_memory_of_each_device_is_kept_for_the_replays(cuda):
    replay, _ = captured(lambda: torch.zeros(()), GPUS)
    kept = {device for (device, _), users in cuda.users.items() if users > 0}
    assert kept == {0, 1}  # torch's own graph keeps that of the first
    assert len(replay.pools) == 2


def test_seeds_lie_where_each_replay_sets_them_on_its_own_stream(cuda):
    captured(lambda: torch.zeros(()), GPUS)
    assert cuda.seeds == [2, 2]


def test_the_step_runs_on_the_first_device(cuda):
    ran_on = []
    captured(lambda: ran_on.append(cuda.current), GPUS)
    assert ran_on == [2] and cuda.current == 0


def test_warming_up_and_capturing_make_no_context_on_other_devices(cuda, monkeypatch):
    monkeypatch.setattr(torch.random, "fork_rng", lambda _: nullcontext())
    devices = GPUS[::2]
    with _unchanged(nn.Identity(), devices):
        assert cuda.current == 2
    captured(lambda: torch.zeros(()), devices)
    assert (cuda.contexts, cuda.current) == ({1, 2}, 0)
