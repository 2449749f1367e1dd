"""Times are added up: by the host's clock, or on CUDA between events."""

import torch

from fastreduce.training import stopwatch as module
from fastreduce.training.stopwatch import CudaStopwatch, HostStopwatch, stopwatch


def test_the_host_s_times_are_added_up_and_reading_begins_anew(monkeypatch):
    clock = iter([1.0, 1.5, 10.0, 12.0])
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(clock))
    watch = HostStopwatch()
    for _ in range(2):
        with watch:
            pass
    assert (watch.read_s(), watch.read_s()) == (2.5, 0.0)


def test_cuda_s_times_are_between_pairs_of_events(monkeypatch):
    clock = iter([100.0, 150.0, 1000.0, 1200.0])
    calls = []

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self, stream: str) -> None:
            assert stream == "stream of cuda:1"
            self.ms = next(clock)

        def elapsed_time(self, end: "Event") -> float:
            assert calls == ["synchronize"]
            return end.ms - self.ms

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: calls.append("synchronize"))
    watch = CudaStopwatch(torch.device("cuda", 1))
    for _ in range(2):
        with watch:
            pass
    assert (watch.read_s(), watch.read_s()) == (0.25, 0.0)


def test_each_device_gets_its_own():
    assert isinstance(stopwatch(torch.device("cpu")), HostStopwatch)
    assert isinstance(stopwatch(torch.device("cuda", 0)), CudaStopwatch)
