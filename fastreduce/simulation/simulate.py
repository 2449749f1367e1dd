"""Predicts a program's time on a topology."""

from __future__ import annotations

from collections.abc import Sequence

from fastreduce.algorithms.collectives import program as allreduce_of
from fastreduce.algorithms.registration import Algorithm, name_of
from fastreduce.arguments import check_flags
from fastreduce.kinds import is_whole
from fastreduce.listing import LazyListing
from fastreduce.program import Program
from fastreduce.simulation.costs import Costs
from fastreduce.simulation.events import events
from fastreduce.simulation.fitted import fitted
from fastreduce.simulation.run import Run, tensor_sizes
from fastreduce.simulation.timeline import Timeline
from fastreduce.topology import Topology, as_topology
from fastreduce.units import ranks_title, size


def simulate(
    program: Program | str | Algorithm,
    topology: Topology | str,
    nbytes: int | str | Sequence[int | str],
    *,
    slices: int | None = None,
    verify: bool = True,
    costs: Costs | None = None,
) -> Timeline:
    """Predict how long ``program`` takes on ``topology``, and when each device and link works.

    Args:
        program: of an allreduce, or an algorithm by name or as a function; it is proven first (see
            ``verify``). By name, "multi-ring" takes the topology's own rings, and "hierarchical"
            its machines, in waves, as in `fastreduce.explain`.
        topology: a topology or its name, as `fastreduce.topology.as_topology` takes it. Rank r is
            its device r.
        nbytes: the size of each rank's data, such as 4096 or "160MB", or a list with the size of
            each tensor: a program with ``whole_tensors`` does not cut them.
        slices: number of slices per shard. Default: as the engine chooses (`Program.slices`).
        verify: False for programs that are not an allreduce: other collectives, or parts of one.
        costs: what the engine adds. Default: those of a call of the events engine with this
            program (`fastreduce.simulation.costs.costs_of`). With `fastreduce.simulation.BOOK` and
            1 slice it is the reckoning of *Dive into Deep Learning* in section 12.7.

    The model:

    - A task is one launch of a device (`Program.launches`) for one of the slices of its shards. It
      starts after the tasks it depends on and after its device's previous one.
    - A task reads, and writes what it has read meanwhile: a kernel passes on tile after tile. The
      executor's memory moves each source once and the result once, while sources arrive from other
      devices and the result goes to others. A copy that the source's or the destination's device
      executes goes straight from one to the other.
    - A device reads the next slice while it writes the previous one.
    - Transfers share each direction of a link max-min fairly, and start after the latency of their
      links.
    - The host's work is done by rank 0's device, on copies: sources pass through the memory of the
      CPU nearest to it, then the results do.
    - `fastreduce.simulation.costs.Costs` says what passes before the first task, before each task,
      before one that waits for another device, and until a transfer has its full rate.

    Launches, waits between devices, and the bytes that pass between each two of them are those of
    the events engine (tests/csrc/cuda/test_counts.py). What is counted otherwise, on purpose:

    - Data from elsewhere passes through the executor's memory. A kernel adds it in registers.
    - Waits around the program, and launches for the host's copies, belong to ``costs.call_s``.

    The result is a prediction. It can be no better than the topology's figures and the costs.
    Curves that were measured (`Topology.calibrations`) do not enter; `fastreduce.explain` goes by
    them.

    Raises:
        TypeError: the topology is neither one nor a name, or ``costs`` is no `Costs`.
        ValueError: a malformed program, one that is not an allreduce, more ranks than devices, an
            unknown topology, sizes that are not above zero or do not fit the program, slices below
            1 or so many that they would not fit into memory, an unknown bandwidth that is needed,
            or negative costs.

    >>> import fastreduce
    >>> timeline = fastreduce.simulate(fastreduce.algorithms.sharded(4), "book-pcie4", "160MB")
    >>> round(timeline.time_s * 1e3)
    15
    """
    check_flags("simulate", verify=verify)
    topology = as_topology(topology)
    if not isinstance(program, Program):
        name, k = name_of(program), len(topology.devices)
        program = allreduce_of("allreduce", k, algorithm=name)
        program = fitted(program, name, topology, sum(tensor_sizes(nbytes)))
    if slices is not None and (not is_whole(slices) or slices < 1):
        raise ValueError(f"slices is {slices!r}, want 1 or more, or None for the engine's choice")
    program.check_form()
    if verify and program.refusal:
        raise ValueError(
            f"the program is no allreduce: {program.refusal}; to simulate it all the same, as the "
            "program of another collective or as a part of one, pass verify=False"
        )
    run = Run(program, topology, nbytes, None if slices is None else int(slices), costs)
    return Timeline(
        ranks_title(size(run.nbytes), program.k, topology.name),
        program.k,
        run.nbytes,
        LazyListing(run.simulation.events * run.slices, lambda: events(run)),
        topology.bytes_per_s,
        run,
    )
