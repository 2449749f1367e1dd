"""What `allreduce` would do, and the alternatives."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import torch

from fastreduce import _C
from fastreduce.algorithms.registration import Algorithm, find, name_of, registry
from fastreduce.arguments import as_tensor
from fastreduce.kinds import is_whole
from fastreduce.plan.bounds import Bound, lower_bound
from fastreduce.plan.candidates import (
    Candidate,
    as_measured,
    by_seconds,
    for_links,
    for_memory,
    measured,
    ours,
)
from fastreduce.plan.choose import choose
from fastreduce.plan.notes import notes_of
from fastreduce.plan.plan import Plan
from fastreduce.plan.table_files import tuned
from fastreduce.program import Program
from fastreduce.simulation.costs import Costs
from fastreduce.simulation.predict import MEMORIES
from fastreduce.units import nbytes_of

if TYPE_CHECKING:
    from fastreduce.topology import Topology

Named: TypeAlias = "Topology | str | PathLike[str]"


def explain(
    what: Any,
    *,
    k: int | None = None,
    topology: Named | None = None,
    algorithm: str | Program | Algorithm | None = None,
) -> Plan:
    """Plan an allreduce without running it.

    Args:
        what: tensors as `allreduce` takes them; or the size of each rank's data, such as
            160_000_000 (bytes) or "160MB"; or a list with the size of each tensor of a rank.
        k: number of ranks, if ``what`` is a size. Default: one per device of the topology, or 2;
            of tensors, as many as there are.
        topology: predict for this machine and choose the fastest: a `fastreduce.topology.Topology`,
            a preset's name, "detect" or a file. Default: the devices of the tensors, or the CPU;
            then the choice is what "auto" stands for.
        algorithm: list this one too, given as `fastreduce.allreduce` takes it: "file:PATH" for a
            program that `Program.save` wrote, a `fastreduce.Program`, or a function.

    An algorithm whose program is wrong is listed as refused, with the reason. On a topology
    "multi-ring" takes the machine's own rings, and "hierarchical" its machines, in waves; to run
    what was predicted, pass the program: ``allreduce(x, algorithm=plan.chosen.program)``.

    Raises:
        TypeError: ``what`` is neither tensors nor sizes, or ``topology`` is not a topology.
        ValueError: nothing to reduce, ranks with different shapes, another ``k`` than there are
            tensors for, more ranks than devices, a topology without rates, or
            ``FASTREDUCE_ALGORITHM`` names an unknown algorithm.
        RuntimeError: several GPUs, and no driver that says how they are linked.

    >>> plan = explain("160MB", topology="book-pcie4")
    >>> plan.algorithm, round(plan.chosen.prediction.time_s * 1e3)
    ('sharded', 15)
    >>> explain([torch.zeros(1000), torch.zeros(1000)]).algorithm
    'leader'
    """
    machine = None
    if topology is not None:
        from fastreduce.topology import as_topology

        machine = as_topology(topology)
    devices, tensor_bytes = _ranks(what, k, machine)
    count, nbytes = len(devices), sum(tensor_bytes)
    if algorithm is not None:
        algorithm = name_of(algorithm)
        find(algorithm)
    more = [algorithm] if algorithm and algorithm not in registry else []
    if count < 1 or nbytes < 1:
        raise ValueError(f"{count} ranks of {nbytes} bytes: want at least 1 rank and 1 byte")
    if machine is None:
        return _here(devices, tensor_bytes, more)
    return _on_topology(machine, count, tensor_bytes, more)


def _on_topology(
    machine: Topology, k: int, tensor_bytes: Sequence[int], more: Sequence[str]
) -> Plan:
    """The plan on a topology, with the bound that holds for every algorithm there."""
    nbytes = sum(tensor_bytes)
    machine, costs = as_measured(machine, k)
    found = sorted(_on_links(machine, costs, k, tensor_bytes, more, fit=True), key=by_seconds)
    if math.isnan(found[0].prediction.time_s):
        raise ValueError(found[0].prediction.limit)
    unknown = any(x.program and math.isnan(x.prediction.time_s) for x in found)
    of = " of those whose time is known" if unknown else ""
    why = f"the fastest{of} on paper; its limit is {found[0].prediction.limit}"
    notes = notes_of(machine, found, nbytes, k)
    if found[0].fitted:
        notes += (
            f"{found[0].algorithm} is fitted to this machine: algorithm=plan.chosen.program "
            "is what was predicted, the name alone is not",
        )
    bound = _bound(machine, k, nbytes, costs)
    curves = {name for name, x in ours(machine, k) if x.has_ranks(k)}
    if bound and any(x.algorithm in curves and x.prediction.time_s < bound.time_s for x in found):
        bound = None  # what was measured is faster than the model allows
    chosen = found[0].algorithm
    return Plan(nbytes, k, machine.name, tuple(found), chosen, why, bound, notes)


def _on_links(
    machine: Topology,
    costs: Costs,
    k: int,
    tensor_bytes: Sequence[int],
    more: Sequence[str],
    *,
    fit: bool,
) -> Iterator[Candidate]:
    """Predicted; or with the time of its own curve, where one was measured on this machine."""
    for candidate in for_links(machine, costs, k, tensor_bytes, more, fit=fit):
        yield measured(candidate, machine, sum(tensor_bytes), k)


def _bound(machine: Topology, k: int, nbytes: int, costs: Costs) -> Bound | None:
    """None where the bandwidth of a link is unknown, and without scipy, which may be missing where
    dependencies were not installed."""
    try:
        return lower_bound(machine, k, nbytes, costs)
    except (ImportError, ValueError):
        return None


def _ranks(
    what: Any, k: int | None, machine: Topology | None
) -> tuple[list[torch.device], list[int]]:
    """Each rank's device, and the bytes of each of a rank's tensors."""
    if k is not None and (not is_whole(k) or k < 1):
        raise ValueError(f"k is {k!r}, want the number of ranks, at least 1")
    many = isinstance(what, Sequence) and not isinstance(what, bytes)
    if _is_size(what) or (many and what and all(_is_size(x) for x in what)):
        sizes = [nbytes_of(x) for x in ([what] if _is_size(what) else what)]
        count = int(k) if k is not None else len(machine.devices) if machine else 2
        return [torch.device("cpu")] * count, sizes
    if not _is_list(what) or isinstance(what, bytes):
        raise TypeError(
            f"found {type(what).__name__}; want a list with one tensor, or one list of tensors, "
            'per rank, or sizes such as "160MB"'
        )
    ranks = [
        [as_tensor(x, rank, i) for i, x in enumerate(of if _is_list(of) else [of])]
        for rank, of in enumerate(what)
    ]
    if not ranks or not all(ranks):
        raise ValueError(
            "no tensors to plan for: want a list with one tensor, or one list of tensors, per rank"
        )
    shapes = [[tuple(tensor.shape) for tensor in tensors] for tensors in ranks]
    for rank, found in enumerate(shapes):
        if found != shapes[0]:
            raise ValueError(
                f"rank {rank} has tensors of shapes {found}, rank 0 of {shapes[0]}; every rank "
                "needs the same shapes"
            )
    if k not in (None, len(ranks)):
        raise ValueError(
            f"k is {k}, but there are tensors of {len(ranks)} ranks; want k only with sizes"
        )
    return [tensors[0].device for tensors in ranks], [tensor.nbytes for tensor in ranks[0]]


def _is_list(of: object) -> TypeGuard[Iterable[Any]]:
    return isinstance(of, Iterable) and not hasattr(of, "__dlpack__")


def _is_size(x: object) -> bool:
    return isinstance(x, str) or is_whole(x)


def _here(
    devices: Sequence[torch.device], tensor_bytes: Sequence[int], more: Sequence[str] = ()
) -> Plan:
    """The plan for these devices. As in a call, the extension says what place they are.

    Ranks in one memory: times as `fastreduce tune` measured them, else predicted from
    `fastreduce.simulation.predict.MEMORIES`. Several GPUs: predicted on the topology that
    `fastreduce.topology.detect` finds.
    """
    k, nbytes, place = len(devices), sum(tensor_bytes), _C.place(devices)
    chosen = choose(place, k, nbytes)
    if chosen not in registry:  # the environment names a file
        more = list(dict.fromkeys([*more, chosen]))
    machine = None
    tuned_on = ""
    if place in MEMORIES:
        table = tuned()
        ranks = table.measured_ranks(place, k) if table else None
        if table and ranks:
            other = "" if ranks == k else f", with {ranks} ranks"
            tuned_on = f", times measured on {table.date}{other}"
        where = f"one {place.upper()}{tuned_on}"
        candidates = for_memory(place, k, nbytes, more)
    else:
        from fastreduce.topology import detect

        machine, costs = as_measured(detect(devices), k)
        candidates = _on_links(machine, costs, k, tensor_bytes, more, fit=False)
        where = machine.name
    found = sorted(candidates, key=by_seconds)
    return Plan(
        nbytes,
        k,
        where,
        tuple(found),
        chosen,
        f'what "auto" stands for here (place: {place})',
        notes=() if tuned_on else notes_of(machine, found, nbytes, k),
        timed="measured" if tuned_on else "predicted",
    )
