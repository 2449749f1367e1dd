"""A program's time on paper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from numbers import Integral
from typing import TYPE_CHECKING

from fastreduce.program import Program
from fastreduce.simulation.play import Routes, Spans, play
from fastreduce.simulation.stages import Stage, stages_of
from fastreduce.simulation.timeline import Event, Timeline
from fastreduce.units import size

if TYPE_CHECKING:
    from fastreduce.topology import Topology


def simulate(
    program: Program, topology: Topology, nbytes: int | Sequence[int], *, slices: int = 1
) -> Timeline:
    """Predict how long ``program`` takes on ``topology``, and when each device and link works.

    ``nbytes`` is the size of each rank's data: in bytes, or the bytes of each of its tensors, which
    a program with ``whole_tensors`` needs. Rank r is the topology's device r. The model:

    - A task is one launch of a device (`Program.launches`) for one of ``slices`` equal parts of its
      shards. It starts after the tasks it depends on and after its device's previous one.
    - It reads, then it writes. While sources on other devices come in, the executor's memory
      carries each source once and the result once; then the result goes to destinations on other
      devices. A copy from one device to another goes straight there.
    - A device reads the next slice while the last one is written. With one slice that is store and
      forward, as *Dive into Deep Learning* reckons in section 12.7.
    - Transfers share each link, each direction for itself, max-min fairly, and start after the
      latency of their links. The host executes in the memory of the CPU next to rank 0's device.
    - `fastreduce.simulation.play.LAUNCH_S` passes before each task, ``EVENT_WAIT_S`` before one
      that waits for another device. The time that the CPU needs to enqueue is not counted.

    The result is a prediction: it is as good as the topology's figures and these two.

    Raises:
        TypeError: the topology is none.
        ValueError: a malformed program, more ranks than devices, sizes that are not positive or
            that do not fit the program, slices below 1, a bandwidth that is needed and unknown.

    >>> import fastreduce
    >>> from fastreduce.topology import preset
    >>> timeline = fastreduce.simulate(
    ...     fastreduce.algorithms.sharded(4), preset("book-pcie4"), 160_000_000
    ... )
    >>> round(timeline.time_s * 1e3)
    15
    """
    from fastreduce.topology.graph import expect_topology

    expect_topology(topology)
    if not isinstance(slices, Integral) or slices < 1:
        raise ValueError(f"slices is {slices!r}, want 1 or more")
    program.check_form()
    if program.k > len(topology.devices):
        raise ValueError(
            f"the program is for {program.k} ranks, topology {topology.name!r} has "
            f"{len(topology.devices)} devices: want a device for each rank"
        )
    total_bytes, shard_bytes = _sizes(program, nbytes)
    slice_bytes = [[shard / slices for shard in shard_bytes]] * slices
    stages = stages_of(program, topology, slice_bytes)
    routes = Routes(topology, ((t.src, t.dst) for stage in stages for t in stage.transfers))
    events = sorted(_events(stages, routes, play(stages, routes)), key=lambda event: event.start_s)
    return Timeline(
        f"{size(total_bytes)} on each of {program.k} ranks, {topology.name}",
        program.k,
        total_bytes,
        tuple(events),
        {link: topology.graph.edges[link]["bytes_per_s"] for link in topology.graph.edges},
    )


def _sizes(program: Program, nbytes: int | Sequence[int]) -> tuple[int, list[float]]:
    """Bytes a rank, and bytes of each shard."""
    tensors = list(nbytes) if isinstance(nbytes, Sequence) else [nbytes]
    for number, found in enumerate(tensors):
        if not isinstance(found, Integral) or found < 0:
            raise ValueError(f"tensor {number} has {found!r} bytes, want a whole number, 0 or more")
    total = sum(map(int, tensors))
    if total <= 0:
        raise ValueError(f"nbytes is {nbytes!r}, want more than 0 bytes a rank")
    if not program.whole_tensors:
        return total, [total / program.shards] * program.shards
    if not isinstance(nbytes, Sequence):
        raise ValueError(
            f"nbytes is {nbytes!r}, but the program's shards are whole tensors: want a sequence, "
            "the bytes of each tensor"
        )
    return total, [float(sum(tensors[s :: program.shards])) for s in range(program.shards)]


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
