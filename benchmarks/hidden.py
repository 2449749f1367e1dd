"""How much of the time of a step's sums passes while other threads compute."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from torch.profiler import ProfilerActivity, profile

SUM = "SumOfReplicas"  # the operation of `fastreduce.DataParallel` in traces


class Span(NamedTuple):
    """An operation in a trace; ``begin`` and ``end`` in one unit, whichever."""

    name: str
    thread: int
    begin: float
    end: float


def spans_of(step: Callable[[], Any]) -> list[Span]:
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        step()
    return [
        Span(x.name, x.thread, x.time_range.start, x.time_range.end) for x in seen.events() or ()
    ]


def hidden_share(spans: Iterable[Span]) -> float | None:
    """None where nothing is summed.

    >>> spans = [Span(SUM, 1, 0, 4), Span("MulBackward0", 2, 3, 5), Span("aten::mul", 2, 3, 4)]
    >>> hidden_share(spans)
    0.25
    """
    spans = sorted(spans, key=lambda span: span.begin)
    sums = [span for span in spans if span.name.startswith(SUM)]
    hidden = 0.0
    for one in sums:
        reached = one.begin
        for other in spans:
            if other.thread != one.thread and not other.name.startswith(SUM):
                begin, end = max(reached, other.begin), min(one.end, other.end)
                hidden += max(0.0, end - begin)
                reached = max(reached, end)
    total = sum(span.end - span.begin for span in sums)
    return hidden / total if total else None
