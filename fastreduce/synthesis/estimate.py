"""A quick estimate of programs in turns, to choose which ones to simulate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from fastreduce.instruction import Instruction
from fastreduce.program import Program
from fastreduce.simulation.costs import Costs
from fastreduce.topology.traffic import Floats, Links

# Copies of programs, each beginning in some turn, as `fastreduce.algorithms.waves.staggered` takes
# them: the number of a program and a turn for each copy, in ascending order.
Mixture: TypeAlias = tuple[tuple[int, int], ...]


class Shape(NamedTuple):
    """A program as an estimate sees it: for each step (row) and link (column) how long the link is
    busy if each shard has one byte."""

    shards: int
    busy_s: Floats


def shape_of(program: Program, links: Links, steps: Sequence[int] | None = None) -> Shape:
    steps = program.steps() if steps is None else steps
    messages: list[Counter[tuple[int, int]]] = [Counter() for _ in range(max(steps) + 1)]
    for x, step in zip(program.instructions, steps, strict=True):
        messages[step].update(_messages(x))
    return Shape(program.shards, np.array([links.busy_s(x) for x in messages]))


def _messages(x: Instruction) -> list[tuple[int, int]]:
    if len(x.srcs) == len(x.dsts) == 1:
        return [(x.srcs[0], x.dsts[0])] if x.srcs != x.dsts else []
    reads = [(src, x.rank) for src in x.srcs if src != x.rank]
    return reads + [(x.rank, dst) for dst in x.dsts if dst != x.rank]


def estimate_s(
    shapes: Sequence[Shape], mixture: Mixture, nbytes: int, costs: Costs, earliest_s: Floats
) -> float:
    """Seconds, if a turn begins when the one before it has ended, and each link begins to move
    bytes ``earliest_s`` later."""
    shards = sum(shapes[which].shards for which, _ in mixture)
    turns = max(start + len(shapes[which].busy_s) for which, start in mixture)
    busy_s = np.zeros((turns, len(earliest_s)))
    for (which, start), copies in Counter(mixture).items():
        shape = shapes[which]
        busy_s[start : start + len(shape.busy_s)] += copies * shape.busy_s
    each_s = np.where(busy_s > 0, busy_s * (nbytes / shards) + earliest_s, 0.0).max(axis=1)
    used = np.count_nonzero(each_s)
    return float(costs.call_s + each_s.sum() + used * (costs.launch_s + costs.event_wait_s))
