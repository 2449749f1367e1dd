"""A timeline as Chrome trace JSON.

The format: "Trace Event Format" of the Chromium project, which Perfetto reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

from fastreduce.files import write_whole
from fastreduce.simulation.rows import lanes, rows
from fastreduce.simulation.timeline import Timeline

DEVICES, LINKS = 1, 2  # A trace's processes, each a group of tracks.


def write(timeline: Timeline, path: str | PathLike[str]) -> None:
    trace = {"displayTimeUnit": "ns", "traceEvents": list(_trace_events(timeline))}
    write_whole(Path(path), json.dumps(trace))


def _trace_events(timeline: Timeline) -> Iterator[dict[str, Any]]:
    for pid, name in ((DEVICES, "devices"), (LINKS, "links")):
        yield _about(pid, 0, "process_name", name=f"{name}: {timeline.title}")
        yield _about(pid, 0, "process_sort_index", sort_index=pid)
    tid = 0
    for lane, events in lanes(timeline.events).items():
        pid = DEVICES if events[0].who == lane else LINKS
        for number, row in enumerate(rows(events)):
            tid += 1
            yield _about(pid, tid, "thread_name", name=lane + f" ({number + 1})" * (number > 0))
            yield _about(pid, tid, "thread_sort_index", sort_index=tid)
            for event in row:
                start_us, end_us = (round(t * 1e6, 3) for t in (event.start_s, event.end_s))
                yield {
                    "ph": "X",
                    "pid": pid,
                    "tid": tid,
                    "name": event.what,
                    "ts": start_us,
                    "dur": round(end_us - start_us, 3),
                    "args": {"bytes": event.bytes},
                }


def _about(pid: int, tid: int, what: str, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": args}
