"""The algorithms as candidates for a call: program and predicted time, or why one is refused."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from fastreduce.algorithms import registry
from fastreduce.files import in_words
from fastreduce.plan.build import proven
from fastreduce.plan.costs import calibrated
from fastreduce.plan.defaults import BETWEEN_GPUS, DEFAULTS
from fastreduce.plan.table_files import tuned
from fastreduce.program import Program
from fastreduce.simulation.costs import EVENTS, Costs, costs_of
from fastreduce.simulation.fitted import fitted
from fastreduce.simulation.predict import MEMORIES, Prediction, in_one_memory, on_topology
from fastreduce.topology import Topology
from fastreduce.topology.calibration import OURS, Calibration
from fastreduce.units import busbw, duration, percent


@dataclass(frozen=True)
class Candidate:
    """An algorithm's program, the number of slices per shard, and the predicted time.

    ``program`` is None if the algorithm was refused; ``prediction.limit`` then says why. ``error``
    is the mean error of the calibration that the time is from, None where nothing was measured.
    A ``fitted`` program is made for the topology: the algorithm's name alone stands for another.
    """

    algorithm: str
    program: Program | None
    slices: int
    prediction: Prediction
    error: float | None = None
    fitted: bool = False

    def cells(self, nbytes: int) -> tuple[str, ...]:
        """The columns of its row in a `Plan`, after its name."""
        if self.program is None:
            return "-", "-", "-", "refused", "-", self.prediction.limit
        time_s, k = self.prediction.time_s, self.program.k
        known = not math.isnan(time_s)
        return (
            str(self.program.flat.launch_count),
            str(self.program.shards),
            str(self.slices),
            f"{duration(time_s)}{within(self.error)}" if known else "unknown",
            f"{busbw(nbytes, time_s, k) / 1e9:.2f}" if known and time_s and k > 1 else "-",
            self.prediction.limit,
        )


def within(error: float | None) -> str:
    """
    >>> within(0.088), within(None)
    (', +-9 %', '')
    """
    return "" if error is None else f", +-{percent(error)}"


def by_seconds(candidate: Candidate) -> tuple[bool, float]:
    """Sort key: known times, then unknown ones, then refused algorithms."""
    time_s = candidate.prediction.time_s
    return candidate.program is None, math.inf if math.isnan(time_s) else time_s


def for_memory(place: str, k: int, nbytes: int, more: Sequence[str] = ()) -> Iterator[Candidate]:
    """For ranks in one memory. Limits are predicted; so are times, unless `fastreduce tune` has
    measured them. ``more`` are names besides the registered ones."""
    table = tuned()
    for name, found in _programs(k, more):
        if isinstance(found, Candidate):
            yield found
            continue
        reckoned = in_one_memory(found, nbytes, MEMORIES[place])
        measured_s = table.time_s(place, name, k, nbytes) if table else None
        time_s = reckoned.time_s if measured_s is None else measured_s
        yield Candidate(name, found, 1, reckoned._replace(time_s=time_s))


def for_links(
    topology: Topology,
    costs: Costs,
    k: int,
    tensor_bytes: Sequence[int],
    more: Sequence[str] = (),
    *,
    fit: bool = True,
) -> Iterator[Candidate]:
    """For ranks on the first k devices of a topology; times are predicted. Unless programs are to
    ``fit`` it, they are those that a call by name runs."""
    used = _first(topology, k)
    for name, found in _programs(k, more):
        if isinstance(found, Candidate):
            yield found
            continue
        slices, named = found.slices(sum(tensor_bytes)), found
        try:
            if fit:
                found = fitted(found, name, used, sum(tensor_bytes))
            nbytes = list(tensor_bytes) if found.whole_tensors else sum(tensor_bytes)
            slices = found.slices(sum(tensor_bytes))
            prediction = on_topology(found, topology, nbytes, slices, costs_of(found, costs))
        except ValueError as error:  # a bandwidth that is unknown
            prediction = Prediction(math.nan, str(error))
        yield Candidate(name, found, slices, prediction, fitted=found != named)


def as_measured(topology: Topology, k: int, costs: Costs = EVENTS) -> tuple[Topology, Costs]:
    """The topology and the costs by which ``k`` ranks are predicted: as a curve of one of our
    algorithms has them, if one was measured with this number of ranks, and tells the rate.

    Of several the one with the highest rate counts: its algorithm shows what the links can carry,
    where that of a slower one may not use them all. It tells nothing of the others where its
    algorithm uses a link whose bandwidth is unknown.

    Raises:
        ValueError: more ranks than devices.
    """
    if k > len(topology.devices):
        raise ValueError(
            f"{k} ranks, but topology {topology.name!r} has {len(topology.devices)} devices"
        )
    curves = {name: x.curve for name, x in ours(topology, k) if x.has_ranks(k) and x.tells_rate}
    if not curves:
        return topology, costs
    best = max(curves, key=lambda name: curves[name].pairs[-1].bytes_per_s)
    try:
        return calibrated(topology, proven("allreduce", best, k), curves[best], costs)
    except ValueError:  # a bandwidth that is unknown
        return topology, costs


def measured(found: Candidate, topology: Topology, nbytes: int, k: int) -> Candidate:
    """The candidate with the time of its own curve, if one was measured on this machine.

    A curve is of the program that the name stands for in a call, so it tells nothing of one that is
    ``fitted``. Beyond the measured sizes it goes on, without an error, or times would jump there.
    Above the largest it counts if it tells the rate, and is slower than what the machine allows.
    """
    if found.fitted:
        return found
    for name, x in ours(topology, k):
        if name != found.algorithm or not x.has_ranks(k):
            continue
        time_s = x.curve.time_s(nbytes, k)
        if nbytes > x.sizes_bytes[1]:
            time_s = max(time_s if x.tells_rate else 0.0, found.prediction.time_s)
        prediction = found.prediction._replace(time_s=time_s)
        error = x.error.mean if x.covers(nbytes, k) else None
        return replace(found, prediction=prediction, error=error)
    return found


def ours(topology: Topology, k: int) -> Iterator[tuple[str, Calibration]]:
    """Our algorithms' curves that may hold for the first ``k`` devices, each with its algorithm."""
    for x in topology.calibrations:
        name = on_links(x)
        if name and (x.medium not in BETWEEN_GPUS or x.medium == _place(topology, k)):
            yield name, x


def on_links(found: Calibration) -> str | None:
    """The algorithm of ours that was measured between GPUs; None if it was another thing.

    `fastreduce tune` times several places of a machine, and names the medium by the place: curves
    of its CPU say nothing of its links. A medium in other words is what a user calls this machine.
    """
    name = found.engine.removeprefix(f"{OURS} ")
    in_memory = found.medium in DEFAULTS and found.medium not in BETWEEN_GPUS
    return None if name == found.engine or name not in registry or in_memory else name


def _place(topology: Topology, k: int) -> str:
    """Where a call on the first ``k`` devices is: "nvlink" if NVLink joins every pair of them."""
    pairs = permutations(topology.devices[:k], 2)
    links = topology.graph.edges
    routes = (topology.routes.find(*pair) or () for pair in pairs)
    joined = all(
        route and all(links[link]["medium"] == "nvlink" for link in route) for route in routes
    )
    return "nvlink" if joined else "pcie"


def _programs(k: int, more: Sequence[str]) -> Iterator[tuple[str, Program | Candidate]]:
    """Every algorithm's program, or the candidate that says why it was refused."""
    for name in (*registry, *more):
        try:
            yield name, proven("allreduce", name, k)
        except Exception as error:  # users write algorithms, so anything may be raised
            on_one_line = " ".join(in_words(error).split())
            yield name, Candidate(name, None, 1, Prediction(math.nan, on_one_line))


def _first(topology: Topology, k: int) -> Topology:
    """The topology without the devices that have no rank: no route leads through a device."""
    if k == len(topology.devices):
        return topology  # with the routes that it has found
    graph = topology.graph.copy()
    graph.remove_nodes_from(topology.devices[k:])
    return Topology(topology.name, topology.source, graph)
