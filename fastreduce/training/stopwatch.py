"""How long a device spends on something, without making it wait."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Protocol

import torch


class Stopwatch(Protocol):
    """A context manager that adds up the time spent inside, over all its entries."""

    def __enter__(self) -> object: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def read_s(self) -> float:
        """Return the seconds since the last reading; on CUDA this waits for the device."""
        ...


class HostStopwatch:
    """Reads the host's clock. Right for devices whose operations end before their call returns.

    >>> watch = HostStopwatch()
    >>> with watch:
    ...     _ = torch.ones(3).sum()
    >>> watch.read_s() > 0, watch.read_s()
    (True, 0.0)
    """

    def __init__(self) -> None:
        self._total_s = 0.0
        self._start_s = 0.0

    def __enter__(self) -> None:
        self._start_s = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._total_s += time.perf_counter() - self._start_s

    def read_s(self) -> float:
        total_s, self._total_s = self._total_s, 0.0
        return total_s


class CudaStopwatch:
    """Records events on the device's current stream, because the host's clock sees only
    launches."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: list[torch.cuda.Event] = []

    def _record(self) -> None:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        self._events.append(event)

    def __enter__(self) -> None:
        self._record()

    def __exit__(self, *_: object) -> None:
        self._record()

    def read_s(self) -> float:
        torch.cuda.synchronize(self._device)
        pairs = zip(self._events[::2], self._events[1::2], strict=True)
        total_ms = sum(float(start.elapsed_time(end)) for start, end in pairs)
        self._events.clear()
        return total_ms / 1000


def stopwatch(device: torch.device) -> Stopwatch:
    """Return the stopwatch that is right for ``device``."""
    return CudaStopwatch(device) if device.type == "cuda" else HostStopwatch()
