"""What an engine adds to the time on links and in memories."""

from __future__ import annotations

import math
from typing import NamedTuple

from fastreduce.instruction import HOST
from fastreduce.program import Program


class Costs(NamedTuple):
    """What an engine adds to the time on links and in memories.

    ``call_s`` passes before the first task, ``launch_s`` before each task, ``event_wait_s`` before
    one that waits for another device. A transfer takes as long as one with ``ramp_bytes`` more
    would at its full rate: the rate that it would have alone. If ``by_kernels``, a device
    writes its results elsewhere while it reads, since a kernel passes on tile after tile, and rank
    0's device does the host's work on copies. Otherwise a device reads a whole slice before it
    passes it on, and the CPU works, as *Dive into Deep Learning* reckons in section 12.7.
    """

    call_s: float
    launch_s: float
    event_wait_s: float
    ramp_bytes: float
    by_kernels: bool

    @property
    def numbers(self) -> tuple[float, float, float, float]:
        """All but ``by_kernels``, in their order."""
        return self[:4]

    def check(self) -> Costs:
        """These costs; a ValueError if one is no finite number of at least 0."""
        for name, found in zip(self._fields, self.numbers, strict=False):
            if not 0 <= found < math.inf:
                raise ValueError(f"costs: {name} is {found!r}, want a finite number, 0 or more")
        if not isinstance(self.by_kernels, bool):
            raise ValueError(f"costs: by_kernels is {self.by_kernels!r}, want True or False")
        return self


# The events engine, but for what a call adds around its program.
#
# launch_s: from one kernel of a CUDA graph to the next on the same stream, the kernel included:
# 1.6 us where each is an allreduce of 1 KiB on 2 ranks (one H100, driver 580, 2026-11-23,
# benchmarks/results/h100/report.json). There a kernel that does nothing takes 0.95 us.
#
# event_wait_s: from the end of a kernel until another device's stream, which waits for its event,
# continues. Predicted: between GPUs it was not measured. Between streams of one H100 each step of a
# captured ring of 64 KiB took 2.7 us (4 ranks) and 3.6 us (8), which is 1.1 and 2.0 us beyond a
# launch (2026-11-23, the same report).
EVENTS = Costs(call_s=0.0, launch_s=1.6e-6, event_wait_s=1.5e-6, ramp_bytes=0.0, by_kernels=True)

# As the book reckons: only what moves on links and in memories.
BOOK = Costs(call_s=0.0, launch_s=0.0, event_wait_s=0.0, ramp_bytes=0.0, by_kernels=False)


def costs_of(program: Program, costs: Costs = EVENTS) -> Costs:
    """``costs`` with what passes before and after a program's own launches (csrc/cuda/events.cpp).

    The first lane waits for the callers' streams, and they wait for it. Where other lanes work,
    they wait for the first one, and it waits for them. Each operand of the host is copied to the
    host's memory and on, and waited for (csrc/cuda/enqueue.cpp).

    >>> from fastreduce.algorithms import host, leader, sharded
    >>> [round(costs_of(of(4)).call_s * 1e6, 1) for of in (leader, sharded, host)]
    [3.0, 6.0, 27.8]
    """
    elsewhere = any(instruction.rank not in (0, HOST) for instruction in program.instructions)
    waits = 4 if elsewhere else 2
    operands = sum(
        len(instruction.srcs) + len(instruction.dsts)
        for instruction in program.instructions
        if instruction.rank == HOST
    )
    staged_s = operands * (costs.launch_s + costs.event_wait_s)
    return costs._replace(call_s=costs.call_s + waits * costs.event_wait_s + staged_s)
