"""A program on a topology's links: what the extension's simulation is asked."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from fastreduce import _C
from fastreduce.program import Program
from fastreduce.simulation.costs import Costs, costs_of
from fastreduce.topology import Topology, as_topology
from fastreduce.topology.routes import Link
from fastreduce.topology.traffic import bytes_per_s
from fastreduce.units import nbytes_of

# Events of all slices: these take 5 s and 1.3 GB (ring of 8, AMD EPYC, family 26 model 2,
# 2026-11-27), and a program in the engine's own slices has fewer (1,024 ranks: 5 million).
MOST_EVENTS = 100_000_000


class Run:
    """``program`` with ``nbytes`` on each rank and ``slices`` of each shard, on ``topology``.

    Rank r's buffer and rank r's output lie on the topology's device r. Without ``costs``, they are
    those of the events engine for the program.

    Raises:
        TypeError: ``costs`` is no `Costs`.
        ValueError: a malformed program, more ranks than devices, sizes that are not above zero or
            do not fit the program, nodes that no links join, an unknown bandwidth, or slices with
            more than `MOST_EVENTS`.
    """

    def __init__(
        self,
        program: Program,
        topology: Topology,
        nbytes: int | str | Sequence[int | str],
        slices: int | None,
        costs: Costs | None,
    ) -> None:
        program.check_form()
        costs = costs_of(program) if costs is None else costs
        if not isinstance(costs, Costs):
            raise TypeError(f"costs is {costs!r}, want a fastreduce.simulation.Costs")
        if program.k > len(topology.devices):
            raise ValueError(
                f"the program is for {program.k} ranks, topology {topology.name!r} has "
                f"{len(topology.devices)} devices: want at least one device per rank"
            )
        self.nbytes, shard_bytes = _sizes(program, nbytes)
        self.program, self.topology, self.costs = program, topology, costs.check()
        self.slices = program.slices(self.nbytes) if slices is None else slices
        self.slice_bytes = [shard / self.slices for shard in shard_bytes]
        self.simulation = _simulation(program, topology, costs.by_kernels)
        _check_slices(self.slices, self.simulation.events)

    @cached_property
    def time_s(self) -> float:
        """From the first launch to the last transfer's end; 0 if there is nothing to do."""
        return self.simulation.seconds(self.slice_bytes, self.slices, self.costs.numbers)

    def time_if(
        self, nbytes: int | Sequence[int] | None = None, *, distances: bool = True
    ) -> float:
        """The time with another size, or if links between nodes cost nothing."""
        slice_bytes = self.slice_bytes
        if nbytes is not None:
            slice_bytes = [shard / self.slices for shard in _sizes(self.program, nbytes)[1]]
        return self.simulation.seconds(slice_bytes, self.slices, self.costs.numbers, distances)

    @cached_property
    def link_bytes(self) -> dict[Link, float]:
        """How many bytes cross each link of the topology."""
        crossed = self.simulation.link_bytes(self.slice_bytes, self.slices)
        return dict(zip(self.topology.routes.links, crossed, strict=True))


def seconds(
    program: Program,
    topology: Topology | str,
    nbytes: int | str | Sequence[int | str],
    slices: int | None = None,
    costs: Costs | None = None,
) -> float:
    """`fastreduce.simulate`'s time alone, for those who try many programs: nothing is proven.

    >>> from fastreduce.algorithms import sharded
    >>> round(seconds(sharded(4), "book-pcie4", "160MB") * 1e3)
    15
    """
    return Run(program, as_topology(topology), nbytes, slices, costs).time_s


def _simulation(program: Program, topology: Topology, by_kernels: bool) -> _C.Simulation:
    flat, routes, devices = program.flat, topology.routes, topology.devices
    places = [routes.number[device] for device in devices[: program.k]]
    node_of = [places[buffer % program.k] for buffer in range(program.buffers)]
    host = routes.number[topology.host_of(devices[0])] if flat.uses_host else -1
    found = _C.Simulation(flat, routes.machine, node_of, host, by_kernels)
    names = list(topology.graph)
    if found.unreached is not None:
        topology.route(*(names[node] for node in found.unreached))
    if found.unknown is not None:
        memory = found.unknown < 0
        bytes_per_s(
            topology, (names[~found.unknown],) * 2 if memory else routes.links[found.unknown]
        )
    return found


def _check_slices(slices: int, events: int) -> None:
    if slices > 1 and slices * events > MOST_EVENTS:
        raise ValueError(
            f"slices is {slices:,}, want at most {max(1, MOST_EVENTS // events):,}: a slice of "
            f"this program has {events:,} events, and a simulation takes at most {MOST_EVENTS:,}"
        )


def tensor_sizes(nbytes: int | str | Sequence[int | str]) -> list[int]:
    """The bytes of each of a rank's tensors; one size is one tensor.

    >>> tensor_sizes("4KB"), tensor_sizes([100, "1KiB"])
    ([4000], [100, 1024])
    """
    if isinstance(nbytes, bytes):  # a sequence of numbers, but not of sizes
        raise ValueError(f"nbytes is {nbytes!r}, want a size such as 4096 or '160MB'")
    if isinstance(nbytes, Sequence) and not isinstance(nbytes, str):
        found = [_tensor_bytes(number, of) for number, of in enumerate(nbytes)]
    else:
        found = [nbytes_of(nbytes)]
    if sum(found) <= 0:
        raise ValueError(f"nbytes is {nbytes!r}, want more than 0 bytes for each rank")
    return found


def _sizes(program: Program, nbytes: int | str | Sequence[int | str]) -> tuple[int, list[float]]:
    """The bytes of a rank's data, and of each of its shards."""
    tensors = tensor_sizes(nbytes)
    total = sum(tensors)
    if not program.whole_tensors:
        return total, [total / program.shards] * program.shards
    return total, [float(sum(tensors[s :: program.shards])) for s in range(program.shards)]


def _tensor_bytes(number: int, found: int | str) -> int:
    try:
        return nbytes_of(found)
    except ValueError as error:
        raise ValueError(f"nbytes of tensor {number}: {error}") from None
