"""What `allreduce` would do, and what else it could: the candidates with their predicted times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fastreduce.algorithms import multi_ring, registry
from fastreduce.goals import program
from fastreduce.plan import choose, compiled
from fastreduce.predict import MEMORIES, Prediction, in_one_memory, on_topology
from fastreduce.program import Program
from fastreduce.units import duration, size

if TYPE_CHECKING:
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
            busbw = 2 * (k - 1) / k * self.nbytes / time_s / 1e9 if time_s else 0.0
            mark = "* " if x.algorithm == self.algorithm else "  "
            lines.append(
                row(
                    mark + x.algorithm,
                    *(len(x.program.launches()), x.program.shards, x.slices),
                    *(duration(time_s), f"{busbw:.2f}", x.prediction.limit),
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
        ValueError: sizes that are no sizes, tensors that are no ranks', more ranks than devices.

    >>> from fastreduce.topology import preset
    >>> plan = explain(160_000_000, topology=preset("book-pcie4"))
    >>> plan.algorithm, round(plan.chosen.prediction.time_s * 1e3)
    ('sharded', 15)
    >>> explain([torch.zeros(1000), torch.zeros(1000)]).algorithm
    'leader'
    """
    if isinstance(what, int) or (isinstance(what, Sequence) and all(_is_size(x) for x in what)):
        sizes = [what] if isinstance(what, int) else list(what)
        ranks = k if k is not None else len(topology.devices) if topology else 2
        return plan(["cpu"] * ranks, sizes, topology)
    ranks_tensors = [[x] if isinstance(x, torch.Tensor) else list(x) for x in what]
    if not ranks_tensors or not all(ranks_tensors):
        raise ValueError("no tensors to plan for: want one tensor, or one list of tensors, a rank")
    devices = [tensors[0].device for tensors in ranks_tensors]
    return plan(devices, [tensor.nbytes for tensor in ranks_tensors[0]], topology)


def _is_size(x: object) -> bool:
    return isinstance(x, int) and not isinstance(x, bool)


def plan(
    devices: Sequence[torch.device | str],
    tensors: Sequence[int],
    topology: Topology | None = None,
) -> Plan:
    """The plan for one rank a device, whose tensors have so many bytes each.

    With a topology the devices are the first of it, and the fastest candidate is chosen. Without,
    ranks in one memory (the CPU, one GPU) are planned by `fastreduce.predict.MEMORIES`, and several
    GPUs on what `fastreduce.topology.detect` finds.

    Raises:
        ValueError: no ranks, sizes below zero, more ranks than devices.
        RuntimeError: several GPUs, and no driver that tells what links them.
    """
    k, nbytes = len(devices), sum(tensors)
    if k < 1 or nbytes < 1 or min(tensors) < 0:
        raise ValueError(f"{k} ranks of {list(tensors)} bytes: want ranks, and bytes to reduce")
    where = {torch.device(device) for device in devices}
    if topology is None and len(where) == 1:
        place = "gpu" if where.pop().type == "cuda" else "cpu"
        candidates = sorted(_in_one_memory(place, k, nbytes), key=_seconds)
        name, why = choose(place, k, nbytes), f'what "auto" stands for on this {place.upper()}'
        return Plan(
            f"{size(nbytes)} on each of {k} ranks, one {place.upper()}",
            nbytes,
            tuple(candidates),
            name,
            why,
        )
    if topology is None:
        from fastreduce.topology import detect

        topology = detect()
    candidates = sorted(_on_topology(topology, k, tensors), key=_seconds)
    return Plan(
        f"{size(nbytes)} on each of {k} ranks, {topology.name}",
        nbytes,
        tuple(candidates),
        candidates[0].algorithm,
        f"the fastest on paper; its limit is {candidates[0].prediction.limit}",
    )


def _seconds(candidate: Candidate) -> float:
    return candidate.prediction.time_s


def _in_one_memory(place: str, k: int, nbytes: int) -> Iterator[Candidate]:
    for name in registry:
        found = program("allreduce", k, algorithm=name)
        yield Candidate(name, found, 1, in_one_memory(found, nbytes, MEMORIES[place]))


def _on_topology(topology: Topology, k: int, tensors: Sequence[int]) -> Iterator[Candidate]:
    from fastreduce.topology import rings

    for name in registry:
        found = program("allreduce", k, algorithm=name)
        if name == "multi-ring" and k == len(topology.devices):
            each = rings(topology)  # links carry data both ways at once
            found = multi_ring(k, [*each, *((order[::-1], rate) for order, rate in each)])
        nbytes = list(tensors) if found.whole_tensors else sum(tensors)
        slices = compiled(found).slices(sum(tensors))
        yield Candidate(name, found, slices, on_topology(found, topology, nbytes, slices))
