"""Closed formulas in the model of `fastreduce.simulate`, for what is too large to simulate.

They assume one slice and equal machines, so the links of one or two machines stand for all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import permutations
from statistics import mean
from typing import NamedTuple

import numpy as np

from fastreduce.simulation.costs import EVENTS, Costs
from fastreduce.simulation.flows import Floats, max_min
from fastreduce.topology import Topology
from fastreduce.topology.traffic import bytes_per_s

# More would save 7 % at most on up to 8 machines (predicted), and programs of so many instructions
# take long to plan.
WAVES = (1, 2, 3, 4, 6, 8, 12, 16)


class Hop(NamedTuple):
    """One of several transfers that share links: its rate, and what passes before it has it."""

    bytes_per_s: float
    delay_s: float

    def time_s(self, nbytes: float, costs: Costs = EVENTS) -> float:
        """Counted from the end of the previous launch on the same device."""
        return costs.launch_s + self.delay_s + nbytes / self.bytes_per_s


class Load(NamedTuple):
    """What transfers of equally many bytes, which start together, ask of each link."""

    s_per_byte: Floats
    delay_s: float


class _Routes(NamedTuple):
    """The links of some pairs of ranks, by number, and what passes before each has its rate."""

    paths: list[list[int]]
    bytes_per_s: Floats
    delays_s: list[float]


def _routes(topology: Topology, pairs: Iterable[tuple[int, int]], costs: Costs) -> _Routes:
    named = [(topology.devices[src], topology.devices[dst]) for src, dst in pairs]
    routes = [topology.route(*pair) for pair in named]
    used = [route or (pair,) for route, pair in zip(routes, named, strict=True)]
    width = {link: bytes_per_s(topology, link) for links in used for link in links}
    number = {link: index for index, link in enumerate(width)}
    paths = [[number[link] for link in links] for links in used]
    ramps_s = [costs.ramp_bytes / min(width[link] for link in links) for links in used]
    delays_s = [topology.latency_s(x) + y for x, y in zip(routes, ramps_s, strict=True)]
    return _Routes(paths, np.array(list(width.values())), delays_s)


def hops(topology: Topology, pairs: Iterable[tuple[int, int]], costs: Costs = EVENTS) -> list[Hop]:
    """The hop of each pair of ranks while all of them transfer at once. A pair may come twice.

    Raises:
        ValueError: a bandwidth is unknown.

    >>> from fastreduce.topology import preset
    >>> [hop.bytes_per_s / 1e9 for hop in hops(preset("book-pcie4"), [(0, 1), (0, 2)])]
    [8.0, 8.0]
    """
    paths, width, delays_s = _routes(topology, pairs, costs)
    rates = max_min(paths, np.ones(len(paths)), width).tolist()
    return [Hop(*hop) for hop in zip(rates, delays_s, strict=True)]


def levels(topology: Topology, local: int, costs: Costs = EVENTS) -> tuple[Load, Load]:
    """The load of `fastreduce.algorithms.hierarchical` in and between machines of ``local`` ranks.

    In machines each rank reads from every other one; between them each reads from the rank with its
    number in the previous machine.

    Raises:
        ValueError: a bandwidth is unknown.

    >>> from fastreduce.topology import cluster
    >>> found = levels(cluster("book-pcie4", 2, gbit=40, nics=1), 4)
    >>> [f"{1 / load.s_per_byte.max() / 1e9:.1f} GB/s" for load in found]  # four share a card
    ['5.3 GB/s', '1.2 GB/s']
    """
    k = len(topology.devices)
    between = [(rank, (rank + local) % k) for rank in range(k)] if k > local else []
    return _loads(topology, _in_machines(k, local), between, costs)


def meshes(topology: Topology, local: int, costs: Costs = EVENTS) -> tuple[Load, Load]:
    """The load of `fastreduce.algorithms.sharded` in machines of ``local`` ranks, and between them:
    each rank reads from every other one.

    Raises:
        ValueError: a bandwidth is unknown.

    >>> from fastreduce.topology import cluster
    >>> found = meshes(cluster("book-pcie4", 2, gbit=40, nics=1), 4)
    >>> [f"{1 / load.s_per_byte.max() / 1e9:.1f} GB/s" for load in found]  # 16 share a card
    ['5.3 GB/s', '0.3 GB/s']
    """
    k = len(topology.devices)
    between = [(a, b) for a, b in permutations(range(k), 2) if a // local != b // local]
    return _loads(topology, _in_machines(k, local), between, costs)


def _in_machines(k: int, local: int) -> list[tuple[int, int]]:
    """All pairs of ranks of one machine."""
    return [(a + i, a + j) for a in range(0, k, local) for i, j in permutations(range(local), 2)]


def _loads(
    topology: Topology,
    inside: Sequence[tuple[int, int]],
    between: Sequence[tuple[int, int]],
    costs: Costs,
) -> tuple[Load, Load]:
    paths, width, delays_s = _routes(topology, [*inside, *between], costs)

    def load(part: slice) -> Load:
        used = np.array([link for path in paths[part] for link in path], dtype=int)
        counts = np.bincount(used, minlength=len(width))
        return Load(counts / width, max(delays_s[part], default=0.0))

    return load(slice(len(inside))), load(slice(len(inside), None))


def sharded_s(
    k: int,
    machines: int,
    nbytes: float,
    inside: Load,
    between: Load,
    costs: Costs = EVENTS,
) -> float:
    """Seconds of `fastreduce.algorithms.sharded`: each rank reads its shard from all others, and
    then the sums of theirs.

    ``inside`` and ``between`` are the `meshes` of one machine or of two; between more of them,
    links that lead out of a machine carry as much for each other one. The second step reads what
    the first has written piece by piece, so of latency and data one counts once and one twice.

    >>> inside, between = Load(np.array([0.02e-9, 0]), 0.5e-6), Load(np.array([0, 0.02e-9]), 4e-6)
    >>> [round(sharded_s(16, 2, nbytes, inside, between) * 1e6) for nbytes in (1e3, 1e9)]
    [10, 2506]
    """
    if k == 1:
        return 0.0
    busy_s = float(np.max(inside.s_per_byte + (machines - 1) * between.s_per_byte)) * nbytes / k
    delay_s = max(inside.delay_s, between.delay_s)
    return costs.call_s + costs.launch_s + busy_s + delay_s + max(busy_s, delay_s)


def ring_s(k: int, nbytes: float, around: Sequence[Hop], costs: Costs = EVENTS) -> float:
    """Seconds of `fastreduce.algorithms.ring`: 2(k-1) steps of 1/k of the bytes.

    ``around`` are the hops of the ring, or of a part of it that repeats. A step waits for the
    previous step of the same rank and for the event of the rank before it. If the first wait sets
    the pace, all go at the rate of the slowest hop; if the second does, the mean hop and the events
    count. The time is the longer of the two.

    >>> round(ring_s(8, 160e6, [Hop(54e9, 0.5e-6)]) * 1e3, 1)
    5.2
    """
    if k == 1:
        return 0.0
    steps, steps_s = 2 * (k - 1), [hop.time_s(nbytes / k, costs) for hop in around]
    waits_s = (steps - 1) * costs.event_wait_s  # the first step waits for nobody
    return costs.call_s + max(steps * max(steps_s), steps * mean(steps_s) + waits_s)


def multi_ring_s(
    k: int, nbytes: float, into: Sequence[Sequence[Hop]], costs: Costs = EVENTS
) -> float:
    """Seconds of `fastreduce.algorithms.multi_ring` with rings of equal rates.

    ``into`` has, for each rank or for a part of the ranks that repeats, its hop of each ring while
    all rings run. A rank starts its part of all rings in one launch, and goes on when the slowest
    has come.

    >>> two = [Hop(50e9, 0.5e-6), Hop(25e9, 4e-6)]
    >>> round(multi_ring_s(16, 1e9, [two]) * 1e3, 1)
    37.7
    """
    if k == 1:
        return 0.0
    of_ring = nbytes / len(into[0])
    slowest = [max(hops, key=lambda hop: hop.time_s(of_ring / k, costs)) for hops in into]
    return ring_s(k, of_ring, slowest, costs)


def hierarchical_s(
    k: int,
    machines: int,
    nbytes: float,
    inside: Load,
    between: Load,
    waves: int = 1,
    costs: Costs = EVENTS,
) -> float:
    """Seconds of `fastreduce.algorithms.hierarchical`: each rank fetches its share from the others
    of its machine, allreduces it in a ring with one rank of each machine, and fetches the other
    shares. ``inside`` and ``between`` are its `levels`.

    Each of ``waves`` parts of the data begins one turn after the one before. In a turn every rank
    starts one step of each part that is under way, and goes on when all have come. In waves, ranks
    fetch what the ring has summed piece by piece, while it goes on; without, when it is done.

    >>> inside, between = Load(np.array([0.02e-9, 0]), 0.5e-6), Load(np.array([0, 0.02e-9]), 4e-6)
    >>> [round(hierarchical_s(16, 2, 1e9, inside, between, x) * 1e3, 1) for x in (1, 16)]
    [7.5, 5.1]
    """
    if k == 1:
        return 0.0
    piece_bytes = nbytes / k / waves
    turns = _turns(k // machines, machines, waves)

    def turn_s(fetched: int, passed_on: int) -> float:
        busy_s = float(np.max(inside.s_per_byte * fetched + between.s_per_byte * passed_on))
        delay_s = max(inside.delay_s * (fetched > 0), between.delay_s * (passed_on > 0))
        return costs.launch_s + delay_s + busy_s * piece_bytes

    waits_s = costs.event_wait_s * (turns.total() - 1)  # the first turn waits for nobody
    return costs.call_s + waits_s + sum(times * turn_s(*turn) for turn, times in turns.items())


def _turns(local: int, machines: int, waves: int) -> Counter[tuple[int, int]]:
    """In how many turns of `hierarchical_s` a rank fetches so many pieces in its machine, and gets
    so many from another one."""
    ring, spread = ((0, 1), machines - 1), ((1, 1), machines - 1)  # pieces, and for how many steps
    if local == 1:
        runs = [ring, ring]
    elif waves > 1:
        runs = [((machines, 0), 1), ring, spread, ((1, 0), 1)]
    else:
        runs = [((machines, 0), 1), ring, ring, ((machines, 0), 1)]
    # Turns in which all waves are in the same run are alike: one of them is listed for each run.
    steps = [pieces for pieces, times in runs for _ in range(min(times, waves))]
    turns: Counter[tuple[int, int]] = Counter()
    for turn in range(len(steps) + waves - 1):
        under_way = steps[max(0, turn + 1 - waves) : turn + 1]
        turns[sum(x for x, _ in under_way), sum(x for _, x in under_way)] += 1
    for (fetched, passed_on), times in runs:
        turns[waves * fetched, waves * passed_on] += max(0, times - waves)
    return turns


def best_waves(
    k: int, machines: int, nbytes: float, inside: Load, between: Load, costs: Costs = EVENTS
) -> int:
    """With how many waves `hierarchical_s` is least."""
    return min(WAVES, key=lambda x: hierarchical_s(k, machines, nbytes, inside, between, x, costs))
