"""What another thread gets of the current GPU and its streams, on a fake torch.cuda."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from fastreduce.thread_modes import modes_of_this_thread


class FakeCuda:
    """What torch 2.11 does with the current GPU and streams, and where it creates a context."""

    def __init__(self, contexts: set[int], current: int) -> None:
        self.contexts, self.current = contexts, current
        self.streams = {gpu: self.made(gpu, "the caller's") for gpu in range(3)}

    def made(self, gpu, name):
        return SimpleNamespace(device=torch.device("cuda", gpu), name=name)

    def in_a_new_thread(self):
        self.current = 0
        self.streams = {gpu: self.made(gpu, "default") for gpu in range(3)}

    def set_device(self, gpu):
        if gpu != self.current:
            self.contexts.add(gpu)
        self.current = gpu

    def set_stream(self, stream):
        self.set_device(stream.device.index)
        self.streams[stream.device.index] = stream

    def maybe_exchange(self, gpu):
        before, self.current = self.current, gpu
        return before

    @contextmanager
    def device(self, device):
        before = self.current
        self.set_device(device.index)
        yield
        self.maybe_exchange(before)

    @contextmanager
    def stream(self, new):
        here, there = self.streams[self.current], self.streams[new.device.index]
        self.set_stream(new)
        yield
        self.set_stream(there)
        self.set_stream(here)


@pytest.mark.parametrize(
    ("contexts", "current"), [({0, 2}, 2), ({0, 2}, 0), ({1}, 0), ({1}, 2), ({1, 2}, 1)]
)
def test_another_thread_has_what_this_one_has_and_no_gpu_gets_a_context(
    contexts, current, monkeypatch
):
    fake = FakeCuda(set(contexts), current)
    for name, what in {
        "is_initialized": lambda: True,
        "device_count": lambda: 3,
        "current_device": lambda: fake.current,
        "current_stream": lambda gpu: fake.streams[gpu],
        "stream": fake.stream,
        "device": fake.device,
        "_maybe_exchange_device": fake.maybe_exchange,
    }.items():
        monkeypatch.setattr(torch.cuda, name, what)
    used = fake.contexts.__contains__
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", used, raising=False)
    modes = modes_of_this_thread()
    fake.in_a_new_thread()
    before = dict(fake.streams)
    with modes():
        assert fake.current == current
        for gpu, stream in fake.streams.items():
            assert stream.name == ("the caller's" if gpu in contexts else "default")
    assert (fake.current, fake.streams, fake.contexts) == (0, before, contexts)
