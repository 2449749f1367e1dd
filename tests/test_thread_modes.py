"""What another thread gets of the current GPU and its streams, on a fake torch.cuda."""

from contextlib import contextmanager

import pytest
import torch

from fastreduce.thread_modes import modes_of_this_thread


@pytest.fixture
def entered(monkeypatch):
    """What becomes current, of three GPUs of which the second has no context."""
    made = []

    @contextmanager
    def enter(which):
        made.append(which)
        yield

    for name, fake in {
        "is_initialized": lambda: True,
        "device_count": lambda: 3,
        "current_device": lambda: 2,
        "current_stream": lambda gpu: f"stream of {gpu}",
        "stream": enter,
        "device": enter,
    }.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", lambda gpu: gpu != 1, raising=False)
    return made


def test_no_gpu_gets_a_context_for_a_stream_on_which_nothing_runs(entered):
    with modes_of_this_thread()():
        assert entered == ["stream of 0", "stream of 2", 2]
