"""A trace of a few training steps, by torch.profiler."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from torch.profiler import ProfilerActivity, profile, schedule, supported_activities

from fastreduce.files import replacing

# The first step has a bucket for each parameter, and the second joins them (parallel/buckets.py).
SKIPPED_STEPS, TRACED_STEPS = 3, 4


logger = logging.getLogger(__name__)


class Ticker(Protocol):
    def step(self) -> None:
        """Say that a training step has ended."""
        ...


class NoTrace:
    def step(self) -> None:
        pass


@contextmanager
def traced(path: Path | None) -> Iterator[Ticker]:
    """Write a trace of the fourth to seventh step to ``path``; None: of no step.

    The file is for chrome://tracing or https://ui.perfetto.dev. Each sum of gradients is a range of
    its own, named after its bucket. If fewer steps are taken, the file has fewer; a warning says so
    if it has none, and is not written.
    """
    if path is None:
        yield NoTrace()
        return

    def export(profiler: profile) -> None:
        if profiler.step_num > SKIPPED_STEPS:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as unfinished:
                profiler.export_chrome_trace(str(unfinished))

    wanted = {ProfilerActivity.CPU, ProfilerActivity.CUDA} & supported_activities()  # type: ignore[no-untyped-call]
    steps = schedule(wait=SKIPPED_STEPS - 1, warmup=1, active=TRACED_STEPS, repeat=1)
    with profile(activities=wanted, schedule=steps, on_trace_ready=export) as profiler:
        yield profiler
    if profiler.step_num <= SKIPPED_STEPS:
        logger.warning(
            "%s: found fewer than %d steps in this epoch, so no trace was written; wanted more "
            "of them, as the first %d are not traced",
            path,
            SKIPPED_STEPS + 1,
            SKIPPED_STEPS,
        )
