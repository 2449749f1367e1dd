"""Predicts a program's time on a topology."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from numbers import Integral
from typing import TYPE_CHECKING

from fastreduce.program import Program
from fastreduce.simulation.costs import EVENTS, Costs
from fastreduce.simulation.play import Routes, Spans, play
from fastreduce.simulation.stages import Stage, stages_of
from fastreduce.simulation.timeline import Event, Timeline
from fastreduce.units import nbytes_of, size

if TYPE_CHECKING:
    from fastreduce.topology import Topology


def simulate(
    program: Program,
    topology: Topology | str,
    nbytes: int | str | Sequence[int | str],
    *,
    slices: int | None = None,
    verify: bool = True,
    costs: Costs = EVENTS,
) -> Timeline:
    """Predict how long ``program`` takes on ``topology``, and when each device and link works.

    Args:
        program: of an allreduce; it is proven first (see ``verify``).
        topology: a topology or its name, as `fastreduce.topology.as_topology` takes it. Rank r is
            its device r.
        nbytes: the size of each rank's data, such as 4096 or "160MB", or a list with the size of
            each tensor, which a program with ``whole_tensors`` needs.
        slices: number of slices per shard. Default: as the engine chooses (`Program.slices`). With
            1 a device receives a whole shard before it forwards it, as *Dive into Deep Learning*
            assumes in section 12.7.
        verify: False for programs that are not an allreduce: other collectives, or parts of one.
        costs: what the engine adds. Default: those of the events engine.

    The model:

    - A task is one launch of a device (`Program.launches`) for one of the slices of its shards. It
      starts after the tasks it depends on and after its device's previous one.
    - A task reads, then it writes. While sources on other devices arrive, the executor's memory
      moves each source once and the result once; then the result goes to destinations on other
      devices. A copy from one device to another does not pass through the executor's memory.
    - A device reads the next slice while it writes the previous one.
    - Transfers share each direction of a link max-min fairly, and start after the latency of their
      links. The host works in the memory of the CPU nearest to rank 0's device.
    - `fastreduce.simulation.costs.Costs` says what passes before the first task, before each task,
      before one that waits for another device, and until a transfer has its full rate.

    The result is a prediction. It can be no better than the topology's figures and the costs.

    Raises:
        TypeError: the topology is neither one nor a name.
        ValueError: a malformed program, one that is not an allreduce, more ranks than devices, an
            unknown topology, sizes that are not above zero or do not fit the program, slices below
            1, an unknown bandwidth that is needed, or negative costs.

    >>> import fastreduce
    >>> timeline = fastreduce.simulate(fastreduce.algorithms.sharded(4), "book-pcie4", "160MB")
    >>> round(timeline.time_s * 1e3)
    15
    """
    from fastreduce.topology import as_topology

    topology = as_topology(topology)
    if slices is not None and (not isinstance(slices, Integral) or slices < 1):
        raise ValueError(f"slices is {slices!r}, want 1 or more, or None for the engine's choice")
    costs.check()
    _check(program, verify)
    if program.k > len(topology.devices):
        raise ValueError(
            f"the program is for {program.k} ranks, topology {topology.name!r} has "
            f"{len(topology.devices)} devices: want at least one device per rank"
        )
    total_bytes, shard_bytes = _sizes(program, nbytes)
    parts = program.slices(total_bytes) if slices is None else slices
    slice_bytes = [[shard / parts for shard in shard_bytes]] * parts
    stages = stages_of(program, topology, slice_bytes)
    routes = Routes(
        topology, ((t.src, t.dst) for stage in stages for t in stage.transfers), costs.ramp_bytes
    )
    events = sorted(
        _events(stages, routes, play(stages, routes, costs)), key=lambda event: event.start_s
    )
    return Timeline(
        f"{size(total_bytes)} on each of {program.k} ranks, {topology.name}",
        program.k,
        total_bytes,
        tuple(events),
        {link: topology.graph.edges[link]["bytes_per_s"] for link in topology.graph.edges},
    )


# Cached, because a plan simulates each program four times, and the proof of a ring of 128 ranks
# takes about a second (measured on 2 busy cores, 2026-11-22).
@lru_cache(maxsize=32)
def _check(program: Program, verify: bool) -> None:
    program.check_form()
    if not verify:
        return
    try:
        program.verify()
    except ValueError as error:
        raise ValueError(
            f"the program is no allreduce: {error}; to simulate it all the same, as the program of "
            "another collective or as a part of one, pass verify=False"
        ) from None


def _sizes(program: Program, nbytes: int | str | Sequence[int | str]) -> tuple[int, list[float]]:
    """The bytes of a rank's data, and of each of its shards."""
    tensors: list[int] = []
    if isinstance(nbytes, Sequence) and not isinstance(nbytes, str):
        tensors = [_tensor_bytes(number, found) for number, found in enumerate(nbytes)]
        total = sum(tensors)
    else:
        total = nbytes_of(nbytes)
    if total <= 0:
        raise ValueError(f"nbytes is {nbytes!r}, want more than 0 bytes for each rank")
    if not program.whole_tensors:
        return total, [total / program.shards] * program.shards
    if not tensors:
        raise ValueError(
            f"nbytes is {nbytes!r}, but the program's shards are whole tensors: want a sequence, "
            "the bytes of each tensor"
        )
    return total, [float(sum(tensors[s :: program.shards])) for s in range(program.shards)]


def _tensor_bytes(number: int, found: int | str) -> int:
    try:
        return nbytes_of(found)
    except ValueError as error:
        raise ValueError(f"nbytes of tensor {number}: {error}") from None


def _events(stages: Sequence[Stage], routes: Routes, spans: Spans) -> Iterator[Event]:
    transfer_spans = iter(spans.transfers)
    for stage, (start_s, end_s) in zip(stages, spans.stages, strict=True):
        between = [transfer for transfer in stage.transfers if transfer.src != transfer.dst]
        shards = {transfer.shard for transfer in stage.transfers}
        shard = shards.pop() if len(shards) == 1 else None
        moved_bytes = sum(transfer.bytes for transfer in between)
        yield Event(stage.lane, stage.what, start_s, end_s, moved_bytes, shard)
        for transfer in stage.transfers:
            span = next(transfer_spans)
            if transfer.src != transfer.dst:
                for link in routes.links[transfer.src, transfer.dst]:
                    yield Event(link, transfer.what, *span, transfer.bytes, transfer.shard)
