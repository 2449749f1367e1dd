from collections.abc import Callable, Sequence

from fastreduce.algorithms.registration import algorithm
from fastreduce.algorithms.ring import ring
from fastreduce.algorithms.sharded import sharded
from fastreduce.algorithms.waves import in_waves
from fastreduce.instruction import HOST, Instruction
from fastreduce.kinds import is_whole
from fastreduce.program import Program

MACHINE_RANKS = 8  # the GPUs of the usual machine


@algorithm("hierarchical")
def hierarchical(
    k: int,
    machines: int | None = None,
    inside: Callable[[int], Program] = sharded,
    between: Callable[[int], Program] = ring,
    waves: int = 1,
) -> Program:
    """Reduce inside each machine, allreduce between machines shard by shard, spread inside.

    The program ``inside`` is cut where a shard's sum over its machine is complete. In each machine
    the rank that then holds it is the shard's owner; the owners of all machines run the program
    ``between`` on it. Each rank sends only its share of the bytes to other machines, so all network
    cards work at once. Goyal et al., "Accurate, large minibatch SGD", 2017, section 4.

    Args:
        k: ranks, machine by machine.
        machines: how many, with equally many ranks each. Default: the fewest that have at most 8
            ranks each.
        inside: the algorithm for the ranks of one machine.
        between: the algorithm for the owners of a shard.
        waves: parts of the data that follow each other, so that links in and between machines work
            at the same time (see `fastreduce.algorithms.waves.in_waves`).

    Raises:
        ValueError: the ranks do not divide into so many machines.

    >>> from fastreduce.algorithms import leader
    >>> print(hierarchical(4, machines=2, between=leader))
    4 ranks, 2 shards, 10 instructions
       0 rank 0 reduces shard 0 of [0, 1] into [0]
       1 rank 1 reduces shard 1 of [0, 1] into [1]
       2 rank 2 reduces shard 0 of [2, 3] into [2]
       3 rank 3 reduces shard 1 of [2, 3] into [3]
       4 rank 0 reduces shard 0 of [0, 2] into [0, 2]
       5 rank 1 reduces shard 1 of [1, 3] into [1, 3]
       6 rank 0 copies shard 1 of [1] into [0]
       7 rank 1 copies shard 0 of [0] into [1]
       8 rank 2 copies shard 1 of [3] into [2]
       9 rank 3 copies shard 0 of [2] into [3]
    """
    if machines is None:
        machines = k // max(m for m in range(1, MACHINE_RANKS + 1) if k % m == 0)
    if not is_whole(machines) or machines < 1 or k % machines:
        raise ValueError(f"{k} ranks do not divide into {machines!r} equal machines")
    m = k // machines
    local, wide = inside(m), between(machines)
    before, owners, after = _cut(local)
    parts = range(wide.shards)

    def everywhere(steps: list[Instruction]) -> list[Instruction]:
        places = [range(c * m, (c + 1) * m) for c in range(machines)]
        placed = [_placed(x, place, x.shard * wide.shards) for place in places for x in steps]
        return [
            Instruction(rank, first + part, srcs, dsts)
            for rank, first, srcs, dsts in placed
            for part in parts
        ]

    across = [
        _placed(x, range(owner, k, m), shard * wide.shards + x.shard)
        for x in wide.instructions
        for shard, owner in enumerate(owners)
    ]
    steps = [*everywhere(before), *across, *everywhere(after)]
    return in_waves(Program(k, local.shards * wide.shards, steps), waves)


def _placed(x: Instruction, place: Sequence[int], shard: int) -> Instruction:
    """The instruction for the whole program, in which rank r of the part is rank place[r]."""
    rank = x.rank if x.rank == HOST else place[x.rank]
    srcs, dsts = (tuple([place[buffer] for buffer in some]) for some in (x.srcs, x.dsts))
    return Instruction(rank, shard, srcs, dsts)


def _cut(program: Program) -> tuple[list[Instruction], list[int], list[Instruction]]:
    """The instructions that make each shard's sum, who holds it then, and those that spread it."""
    owners = [0] * program.shards
    before: list[Instruction] = []
    spread: list[Instruction] = []
    after: list[Instruction] = []
    complete: set[int] = set()
    for x, completes in zip(program.instructions, program.completes(), strict=True):
        if x.shard in complete or program.k == 1:
            after.append(x)
        elif not completes:
            before.append(x)
        else:
            complete.add(x.shard)
            owner = owners[x.shard] = x.rank if x.rank in x.dsts else x.dsts[0]
            before.append(x._replace(dsts=(owner,)))
            rest = tuple(dst for dst in x.dsts if dst != owner)
            spread += [Instruction(dst, x.shard, (owner,), (dst,)) for dst in rest]
    # A rank's copies stand side by side, so that one launch fetches from all the other ranks.
    return before, owners, [*sorted(spread, key=lambda x: x.rank), *after]
