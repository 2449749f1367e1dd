"""What `allreduce` would do, and what else it could: the candidates with their predicted times."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fastreduce.algorithms import hierarchical, multi_ring, registry
from fastreduce.collectives import as_tensor
from fastreduce.plan.build import compiled, proven
from fastreduce.plan.choose import choose
from fastreduce.plan.table_files import tuned
from fastreduce.program import Program
from fastreduce.simulation.predict import MEMORIES, Prediction, in_one_memory, on_topology
from fastreduce.units import busbw, duration, size

if TYPE_CHECKING:
    from fastreduce.plan.table import Table
    from fastreduce.topology import Topology


@dataclass(frozen=True)
class Candidate:
    """An algorithm's program, into how many slices its shards are cut, and what it would take."""

    algorithm: str
    program: Program
    slices: int
    prediction: Prediction


@dataclass(frozen=True, repr=False)
class Plan:
    """The candidates from the fastest on, the algorithm chosen, and why. Prints as a table."""

    title: str
    nbytes: int
    candidates: tuple[Candidate, ...]
    algorithm: str
    why: str

    @property
    def chosen(self) -> Candidate:
        """The candidate of the algorithm that was chosen."""
        return self.candidate(self.algorithm)

    def candidate(self, algorithm: str) -> Candidate:
        """The candidate of this name; a ValueError tells the names there are."""
        for x in self.candidates:
            if x.algorithm == algorithm:
                return x
        known = ", ".join(sorted(x.algorithm for x in self.candidates))
        raise ValueError(f"unknown algorithm {algorithm!r}; known are {known}")

    def __str__(self) -> str:
        row = "{:<17} {:>9} {:>7} {:>6} {:>11} {:>12}  {}".format
        lines = [
            self.title,
            row("algorithm", "launches", "shards", "slices", "predicted", "busbw (GB/s)", "limit"),
        ]
        for x in self.candidates:
            time_s, k = x.prediction.time_s, x.program.k
            unknown = math.isnan(time_s)
            gb_per_s = f"{busbw(self.nbytes, time_s, k) / 1e9:.2f}"
            shown = ("unknown", "-") if unknown else (duration(time_s), gb_per_s)
            mark = "* " if x.algorithm == self.algorithm else "  "
            lines.append(
                row(
                    mark + x.algorithm,
                    *(len(x.program.launches()), x.program.shards, x.slices),
                    *(*shown, x.prediction.limit),
                )
            )
        return "\n".join([*lines, f"choice: {self.algorithm}, {self.why}"])

    __repr__ = __str__


def explain(what: Any, *, k: int | None = None, topology: Topology | None = None) -> Plan:
    """Plan an allreduce without running it.

    Args:
        what: tensors as `allreduce` takes them, or sizes: the bytes of a rank's tensor, or of each
            of a rank's tensors.
        k: ranks, with sizes. Default: the topology's devices, or 2 without one.
        topology: plan on paper for this machine (`fastreduce.topology`) and choose the fastest.
            Default: where the tensors are; what "auto" stands for there is the choice.

    Raises:
        TypeError: what is neither (with rank and index), or no topology.
        ValueError: nothing to reduce, more ranks than devices, an algorithm of one's own that is
            wrong, ``FASTREDUCE_ALGORITHM`` that names none.

    >>> from fastreduce.topology import preset
    >>> plan = explain(160_000_000, topology=preset("book-pcie4"))
    >>> plan.algorithm, round(plan.chosen.prediction.time_s * 1e3)
    ('sharded', 15)
    >>> explain([torch.zeros(1000), torch.zeros(1000)]).algorithm
    'leader'
    """
    if topology is not None:
        from fastreduce.topology.graph import expect_topology

        expect_topology(topology)
    if isinstance(what, int) or (isinstance(what, Sequence) and all(_is_size(x) for x in what)):
        sizes = [what] if isinstance(what, int) else list(what)
        count = k if k is not None else len(topology.devices) if topology else 2
        return plan(["cpu"] * count, sizes, topology)
    if not isinstance(what, Iterable) or isinstance(what, str):
        raise TypeError(f"found {type(what).__name__}; want tensors, or sizes in bytes")
    ranks = [
        [as_tensor(x, rank, i) for i, x in enumerate([of] if hasattr(of, "__dlpack__") else of)]
        for rank, of in enumerate(what)
    ]
    if not ranks or not all(ranks):
        raise ValueError("no tensors to plan for: want one tensor, or one list of tensors, a rank")
    devices = [tensors[0].device for tensors in ranks]
    return plan(devices, [tensor.nbytes for tensor in ranks[0]], topology)


def _is_size(x: object) -> bool:
    return isinstance(x, int) and not isinstance(x, bool)


def plan(
    devices: Sequence[torch.device | str],
    tensor_bytes: Sequence[int],
    topology: Topology | None = None,
) -> Plan:
    """The plan for one rank a device, whose tensors have so many bytes each.

    With a topology the devices are the first of it, and the fastest candidate is chosen. Without,
    the choice is what "auto" stands for: ranks in one memory (the CPU, one GPU) are reckoned by
    `fastreduce.simulation.predict.MEMORIES` or as `fastreduce tune` measured them, and several GPUs
    on what `fastreduce.topology.detect` finds, as far as that tells the rates of the links.

    Raises:
        ValueError: no ranks, no bytes, more ranks than devices, a topology without rates.
        RuntimeError: several GPUs, and no driver that tells what links them.
    """
    k, nbytes = len(devices), sum(tensor_bytes)
    if k < 1 or nbytes < 1 or min(tensor_bytes) < 0:
        raise ValueError(f"{k} ranks of {list(tensor_bytes)} bytes: want ranks, and bytes")
    if topology is not None:
        found = sorted(_on_topology(topology, k, tensor_bytes), key=_seconds)
        best, title = found[0].algorithm, topology.name
        if math.isnan(found[0].prediction.time_s):
            raise ValueError(found[0].prediction.limit)
        unknown = any(math.isnan(x.prediction.time_s) for x in found)
        of = " of those whose time is known" if unknown else ""
        why = f"the fastest{of} on paper; its limit is {found[0].prediction.limit}"
    else:
        place, title, candidates = _here({torch.device(x) for x in devices}, k, tensor_bytes)
        found = sorted(candidates, key=_seconds)
        best, why = choose(place, k, nbytes), f'what "auto" stands for here (place: {place})'
    return Plan(f"{size(nbytes)} on each of {k} ranks, {title}", nbytes, tuple(found), best, why)


def _seconds(candidate: Candidate) -> float:
    """To sort by; what is not known comes last."""
    time_s = candidate.prediction.time_s
    return math.inf if math.isnan(time_s) else time_s


def _here(
    devices: set[torch.device], k: int, tensor_bytes: Sequence[int]
) -> tuple[str, str, Iterator[Candidate]]:
    """The place in `choose`'s words and in the reader's, and the candidates there."""
    if len(devices) > 1:
        from fastreduce.plan.machine import has_nvlink
        from fastreduce.topology import detect

        machine = detect()
        place = "nvlink" if has_nvlink(len(devices)) else "pcie"
        return place, machine.name, _on_topology(machine, k, tensor_bytes)
    table = tuned()
    place = "gpu" if devices.pop().type == "cuda" else "cpu"
    measured = f", times measured on {table.date}" if table and place in table.times_s else ""
    candidates = _in_one_memory(place, k, sum(tensor_bytes), table)
    return place, f"one {place.upper()}{measured}", candidates


def _in_one_memory(place: str, k: int, nbytes: int, table: Table | None) -> Iterator[Candidate]:
    """Limits as reckoned; times as measured, where `fastreduce tune` has measured them."""
    for name in registry:
        found = proven("allreduce", name, k)
        reckoned = in_one_memory(found, nbytes, MEMORIES[place])
        measured_s = table.time_s(place, name, k, nbytes) if table else None
        time_s = reckoned.time_s if measured_s is None else measured_s
        yield Candidate(name, found, 1, reckoned._replace(time_s=time_s))


def _on_topology(topology: Topology, k: int, tensor_bytes: Sequence[int]) -> Iterator[Candidate]:
    if k > len(topology.devices):
        raise ValueError(
            f"{k} ranks, but topology {topology.name!r} has {len(topology.devices)} devices"
        )
    for name in registry:
        found = proven("allreduce", name, k)
        try:
            if k == len(topology.devices):
                found = _fitted(found, name, topology)
            nbytes = list(tensor_bytes) if found.whole_tensors else sum(tensor_bytes)
            slices = compiled(found).slices(sum(tensor_bytes))
            prediction = on_topology(found, topology, nbytes, slices)
        except ValueError as error:  # a rate that the machine does not tell
            slices, prediction = 1, Prediction(math.nan, str(error))
        yield Candidate(name, found, slices, prediction)


def _fitted(found: Program, name: str, topology: Topology) -> Program:
    """To the topology's rings and machines, where the algorithm knows of them."""
    from fastreduce.topology import machines

    if name == "multi-ring":
        return _rings_both_ways(topology)
    if name == "hierarchical":
        parts = machines(topology)
        in_order = [device for part in parts for device in part] == list(topology.devices)
        if in_order and len({len(part) for part in parts}) == 1:
            return hierarchical(found.k, len(parts))
    return found


def _rings_both_ways(topology: Topology) -> Program:
    """Links carry data both ways at once."""
    from fastreduce.topology import rings

    each = rings(topology)
    both = [*each, *((order[::-1], bytes_per_s) for order, bytes_per_s in each)]
    return multi_ring(len(topology.devices), both)
