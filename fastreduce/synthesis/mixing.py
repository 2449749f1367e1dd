"""Copies of programs in turns, in the proportions that make the turns short."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np

from fastreduce.simulation.costs import Costs
from fastreduce.synthesis.estimate import Mixture, Shape
from fastreduce.synthesis.packing import Floats, least_busy

# The share of the data of what starts in some turn: the number of a program, and the turn.
Shares: TypeAlias = dict[tuple[int, int], float]

TURNS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 48, 64)
COPIES = (1, 2, 3, *(i << n for n in range(11) for i in (4, 6)))
# No linear program has more turns times links times programs: it takes a few seconds (2 virtual
# cores, 2026-11-23; one of 187,000 took 40 s, and those of 64 GPUs need 184,320).
MOST_ENTRIES = 185_000
LEAST_SHARE = 1e-6


def mixtures(
    shapes: Sequence[Shape], nbytes: int, costs: Costs, earliest_s: Floats, least_s: float
) -> Iterator[Iterator[Mixture]]:
    """For each number of turns: the copies of programs that make the turns short, few and more.

    Which program starts in which turn with how much of the data is a linear program: a turn is as
    long as its busiest link is busy. Where that would take long, it has only the programs that were
    of use in fewer turns, or would be in turns without number. Their shares are rounded to copies.
    More turns than can pay are left out: links are busy for ``least_s`` at least.
    """
    between_s = costs.launch_s + costs.event_wait_s
    shapes, earliest_s = _unlike_links(shapes, earliest_s)
    useful = _best_together(shapes)
    best_s = math.inf
    for turns in TURNS:
        if least_s + turns * (between_s + earliest_s.min()) > best_s:
            return
        most = MOST_ENTRIES // (turns * len(earliest_s))
        allowed = range(len(shapes)) if len(shapes) <= most else sorted(useful)
        if len(allowed) > most:
            return
        chosen = [which for which in allowed if len(shapes[which].busy_s) <= turns]
        if not chosen:
            continue
        time_s, shares = _in_turns(shapes, chosen, turns, nbytes, earliest_s, least_s)
        time_s += turns * between_s
        if time_s > best_s and best_s < 2 * least_s:
            return
        best_s = min(best_s, time_s)
        useful.update(which for which, _ in shares)
        yield _in_copies(shapes, shares)


def _unlike_links(shapes: Sequence[Shape], earliest_s: Floats) -> tuple[list[Shape], Floats]:
    """One link of those that are always busy alike."""
    busy_s = np.concatenate([shape.busy_s / shape.shards for shape in shapes])
    alike = np.concatenate([np.round(busy_s / busy_s.max(), 12), earliest_s[None]])
    _, kept = np.unique(alike, axis=1, return_index=True)
    return [x._replace(busy_s=x.busy_s[:, kept]) for x in shapes], earliest_s[kept]


def _best_together(shapes: Sequence[Shape]) -> set[int]:
    """The programs that together keep the busiest link busy for the shortest time."""
    busy_s = np.array([shape.busy_s.sum(axis=0) / shape.shards for shape in shapes]).T
    _, shares, _ = least_busy(busy_s / busy_s.max())
    return {int(which) for which in np.flatnonzero(shares > LEAST_SHARE)}


def _in_turns(
    shapes: Sequence[Shape],
    chosen: Sequence[int],
    turns: int,
    nbytes: int,
    earliest_s: Floats,
    unit_s: float,
) -> tuple[float, Shares]:
    """The time of the turns, and the shares of the data that make it the least."""
    from scipy.sparse import coo_array, csr_array

    links = len(earliest_s)
    starts: list[tuple[int, int]] = []
    rows, columns, busy = [], [], []
    for which in chosen:
        shards, busy_s = shapes[which]
        step, link = np.nonzero(busy_s)
        for start in range(turns + 1 - len(busy_s)):
            rows.append((start + step) * links + link)
            columns.append(np.full(len(step), len(starts)))
            busy.append(busy_s[step, link] * (nbytes / shards / unit_s))
            starts.append((which, start))
    where = np.concatenate(rows), np.concatenate(columns)
    matrix = coo_array((np.concatenate(busy), where), (turns * links, len(starts)))
    time, found, _ = least_busy(csr_array(matrix), np.tile(earliest_s / unit_s, (turns, 1)))
    shares = {x: float(share) for x, share in zip(starts, found, strict=True)}
    return time * unit_s, {x: share for x, share in shares.items() if share > LEAST_SHARE}


def _in_copies(shapes: Sequence[Shape], shares: Shares) -> Iterator[Mixture]:
    copies = [share / shapes[which].shards for (which, _), share in shares.items()]
    for count in COPIES:
        counts = rounded([x / sum(copies) for x in copies], count)
        yield tuple(sorted(x for x, n in zip(shares, counts, strict=True) for _ in range(n)))


def rounded(shares: Sequence[float], total: int) -> list[int]:
    """Whole numbers in proportion, which add up to ``total`` (largest remainders).

    >>> rounded([0.5, 0.3, 0.2], 4)
    [2, 1, 1]
    """
    counts = [int(share * total) for share in shares]
    order = sorted(range(len(shares)), key=lambda i: counts[i] - shares[i] * total)
    for i in order[: total - sum(counts)]:
        counts[i] += 1
    return counts
