"""How much of a batch each replica gets if that is to follow from its speed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

# The first batches are slow, since kernels are chosen and memory is fetched, so they do not count.
# Shares are rounded to one decimal, so that equal devices get equal shares. (Both numbers are
# predicted to be enough.)
WARM_UP_BATCHES, MEASURED_BATCHES = 3, 5


class MeasuredShares:
    """Equal shares until forward passes have shown how fast each replica is.

    A replica's speed is its examples per second in `MEASURED_BATCHES` forward passes; backward
    passes are taken to be as unequal. Then ``shares`` stays as it is.
    """

    def __init__(self, devices: Sequence[torch.device]):
        self.shares: list[float] = [1.0] * len(devices)
        self._devices = devices
        self._batches = 0
        self._rows = [0] * len(devices)
        self._first_events: dict[torch.device, torch.cuda.Event] = {}
        self._laps: list[tuple[int, Callable[[], float]]] = []

    @contextmanager
    def lap(self, replica: int) -> Iterator[None]:
        """Times a part of the replica's forward pass."""
        if not WARM_UP_BATCHES <= self._batches < WARM_UP_BATCHES + MEASURED_BATCHES:
            yield
            return
        started_s = self._clock(self._devices[replica])
        yield
        stopped_s = self._clock(self._devices[replica])
        self._laps.append((replica, lambda: stopped_s() - started_s()))

    def _clock(self, device: torch.device) -> Callable[[], float]:
        """The seconds at which the device has done what it was given until now."""
        if device.type == "cpu":
            now_s = time.perf_counter()
            return lambda: now_s
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(device))
        first = self._first_events.setdefault(device, event)

        def elapsed_s() -> float:
            event.synchronize()
            return float(first.elapsed_time(event)) / 1e3

        return elapsed_s

    def end(self, owners: Sequence[int], sizes: Sequence[int]) -> None:
        """Of a batch; those that leave a replica idle tell nothing about it."""
        if self._laps:
            for replica, size in zip(owners, sizes, strict=True):
                self._rows[replica] += size
        self._batches += 1
        if self._batches == WARM_UP_BATCHES + MEASURED_BATCHES:
            if all(self._rows):
                self.shares = self._found()
            self._laps.clear()

    def keep(self) -> None:
        """Measure no more."""
        self._batches = max(self._batches, WARM_UP_BATCHES + MEASURED_BATCHES)

    def _found(self) -> list[float]:
        seconds = [0.0] * len(self._devices)
        for replica, elapsed_s in self._laps:
            seconds[replica] += elapsed_s()
        speeds = [rows / max(s, 1e-9) for rows, s in zip(self._rows, seconds, strict=True)]
        return [round(speed / min(speeds), 1) for speed in speeds]
