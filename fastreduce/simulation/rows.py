"""Events sorted into lanes, and a lane's events into rows in which none overlap."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from fastreduce.simulation.flows import MOMENT_S
from fastreduce.simulation.timeline import Event
from fastreduce.topology.alike import inside

MOST_LANES = 100


def lanes(events: Iterable[Event]) -> dict[str, list[Event]]:
    """The events of each device and of each link ("gpu0 -> gpu1"), devices first, by name."""
    found: dict[tuple[bool, str], list[Event]] = {}
    for event in events:
        link = isinstance(event.who, tuple)
        name = " -> ".join(event.who) if isinstance(event.who, tuple) else event.who
        found.setdefault((link, name), []).append(event)
    return {name: found[link, name] for link, name in sorted(found, key=_natural)}


def one_of_alike_machines(found: dict[str, list[Event]]) -> dict[str, list[Event]]:
    """Where there are too many lanes to read, one for those of different machines that have the
    same names within their machine and work at the same times, named with their number.
    """
    if len(found) <= MOST_LANES:
        return found
    alike: dict[Any, list[str]] = {}
    for name, events in found.items():
        who = events[0].who
        place = tuple(map(inside, who)) if isinstance(who, tuple) else inside(who)
        times = tuple((round(e.start_s / MOMENT_S), round(e.end_s / MOMENT_S)) for e in events)
        alike.setdefault((place, times), []).append(name)
    named = {names[0]: f" (1 of {len(names)})" * (len(names) > 1) for names in alike.values()}
    return {f"{name}{words}": found[name] for name, words in named.items()}


def rows(events: Sequence[Event]) -> list[list[Event]]:
    """The fewest rows without overlaps for events that are sorted by start."""
    result: list[list[Event]] = []
    for event in events:
        free = (row for row in result if row[-1].end_s <= event.start_s + MOMENT_S)
        row = next(free, None)
        if row is None:
            result.append([event])
        else:
            row.append(event)
    return result


def _natural(lane: tuple[bool, str]) -> tuple[bool, list[tuple[bool, int, str]]]:
    """Sort key that puts gpu10 after gpu9."""
    words = re.split(r"(\d+)", lane[1])
    return lane[0], [(word.isdigit(), int(word) if word.isdigit() else 0, word) for word in words]
