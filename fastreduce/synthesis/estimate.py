"""A quick estimate of programs in rounds, to choose which ones to simulate."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fastreduce.algorithms.waves import steps_of
from fastreduce.program import Instruction, Program
from fastreduce.simulation.costs import Costs
from fastreduce.synthesis.packing import Floats, Links


class Shape(NamedTuple):
    """A program as an estimate sees it: how long each of its steps keeps each link busy, for a byte
    in each shard, and the longest latency of each step."""

    shards: int
    busy_s: Floats
    latency_s: Floats


def shape_of(program: Program, links: Links) -> Shape:
    messages: dict[int, dict[tuple[int, int], float]] = defaultdict(lambda: defaultdict(float))
    for x, step in zip(program.instructions, steps_of(program), strict=True):
        for pair in _messages(x):
            messages[step][pair] += 1.0
    count = max(messages, default=-1) + 1
    busy = np.array([links.busy_s(messages[step]) for step in range(count)])
    latency_s = [max((links.latency_s[x] for x in messages[s]), default=0.0) for s in range(count)]
    return Shape(program.shards, busy, np.array(latency_s))


def _messages(x: Instruction) -> list[tuple[int, int]]:
    if len(x.srcs) == len(x.dsts) == 1:
        return [(x.srcs[0], x.dsts[0])] if x.srcs != x.dsts else []
    reads = [(src, x.rank) for src in x.srcs if src != x.rank]
    return reads + [(x.rank, dst) for dst in x.dsts if dst != x.rank]


def estimate_s(
    shapes: Sequence[Shape], starts: Sequence[tuple[int, int]], nbytes: int, costs: Costs
) -> float:
    """Seconds of `fastreduce.algorithms.waves.staggered`, if a round begins when the one before it
    has ended."""
    shards = sum(shapes[which].shards for which, _ in starts)
    rounds = max(start + len(shapes[which].latency_s) for which, start in starts)
    busy = np.zeros((rounds, shapes[0].busy_s.shape[1]))
    latency_s = np.zeros(rounds)
    for which, start in starts:
        shape = shapes[which]
        end = start + len(shape.latency_s)
        busy[start:end] += shape.busy_s
        np.maximum(latency_s[start:end], shape.latency_s, out=latency_s[start:end])
    overhead_s = costs.launch_s + costs.event_wait_s
    return float(busy.max(axis=1).sum() * nbytes / shards + latency_s.sum() + rounds * overhead_s)
