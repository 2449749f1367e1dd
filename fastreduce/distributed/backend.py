"""Making a group: who is on which machine, and the objects behind it."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend
from torch.distributed.distributed_c10d import PrefixStore, Store

from fastreduce import _C
from fastreduce.distributed.rendezvous import lost_are_named, own_part, told
from fastreduce.names import ranks_named

NAME = "fastreduce"

# As good as none. Gloo's clocks count nanoseconds in 64 bits, which end after 292 years.
LONGEST = timedelta(days=36500)

# Less than this for each rank makes slices so small that a program of many shards has no room.
LEAST_BYTES = 64 << 10


@dataclass(frozen=True)
class Options:
    """What a group may be told by ``init_process_group`` and ``new_group``, as ``pg_options``.

    ``shared_bytes``: how much shared memory its ranks of one machine take together, at most, to
    stage what they pass to each other. Tensors of any size go through it in slices. It must be the
    same on all ranks, and at least 64 KiB for each.

    >>> import torch.distributed as dist
    >>> store, options = dist.HashStore(), Options(shared_bytes=1 << 20)
    >>> dist.init_process_group(
    ...     "fastreduce", store=store, rank=0, world_size=1, pg_options=options)
    >>> dist.destroy_process_group()
    """

    shared_bytes: int = 64 << 20
    _timeout: ClassVar[timedelta | None] = None  # what torch's device meshes ask for

    def check(self, ranks: int) -> None:
        found = self.shared_bytes
        if not isinstance(found, int) or not ranks * LEAST_BYTES <= found < 2**63:
            raise ValueError(
                f"shared_bytes: found {found!r} for {ranks} ranks, wanted a whole number of at "
                f"least {ranks * LEAST_BYTES}, below 2**63"
            )


def register() -> None:
    """Make the backend known to torch.distributed; again has no effect.

    Importing `fastreduce.distributed` does it; torch 2.15 and later call this themselves when
    ``init_process_group("fastreduce")`` asks for the backend. Other defaults of torch.distributed
    stay as they are: without a name, CPU tensors go to Gloo and those on GPUs to NCCL.

    >>> register()
    >>> "fastreduce" in torch.distributed.Backend.backend_list
    True
    """
    if NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])


def machine() -> str:
    """The same for two processes exactly if one can open the other's memory by its number."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{socket.gethostname()} {boot} {os.readlink('/proc/self/ns/pid')}"


@dataclass(frozen=True)
class Place:
    """Where a rank runs: its machine, and the CPUs that it may use, as bits of a number."""

    machine: str
    cpus: int

    @staticmethod
    def of_this_process() -> Place:
        return Place(machine(), sum(1 << cpu for cpu in os.sched_getaffinity(0)))

    def __str__(self) -> str:
        return f"{self.machine} {self.cpus:x}"

    @staticmethod
    def read(said: str, rank: int) -> Place:
        """What that rank says in the store.

        Raises RuntimeError where it is not what `str` makes of a place.
        """
        name, _, cpus = said.strip().rpartition(" ")
        try:
            return Place(name, int(name and cpus, 16))  # a word without a name is refused too
        except ValueError:
            raise RuntimeError(
                f"machine of rank {rank}: found {said!r} in the store, wanted what that rank says "
                "of itself; another program may write there"
            ) from None

    @property
    def kernel(self) -> list[str]:
        """The same for containers of one computer, which share its CPUs."""
        return self.machine.split()[1:2]


def own_cores(places: Sequence[Place], rank: int) -> bool:
    """Whether the ranks of this rank's computer have a CPU each, as far as can be seen from here.

    >>> own_cores([Place("a", 0b11), Place("a", 0b11)], 0)
    True
    >>> own_cores([Place("a", 0b01), Place("a", 0b10)], 0)  # bound to one each, as MPI does it
    True
    >>> own_cores([Place("a", 0b11)] * 3, 0)
    False
    >>> own_cores([Place("a", 0b01), Place("a", 0b01), Place("a", 0b110)], 0)
    False
    """
    taken = 0
    # By the highest CPU of each: so all get one, if all can, where those of a rank are neighbours.
    for cpus in sorted(place.cpus for place in places if place.kernel == places[rank].kernel):
        free = cpus & ~taken
        if not free:
            return False
        taken |= free & -free  # the lowest
    return True


def by_machine(machines: list[str]) -> list[list[int]]:
    """The ranks of each machine; each rank alone where machines have different numbers of them.

    >>> by_machine(["a", "b", "a", "b"])
    [[0, 2], [1, 3]]
    >>> by_machine(["a", "b", "b"])
    [[0], [1], [2]]
    """
    found: dict[str, list[int]] = {}
    for rank, name in enumerate(machines):
        found.setdefault(name, []).append(rank)
    if len({len(ranks) for ranks in found.values()}) > 1:
        return [[rank] for rank in range(len(machines))]
    return list(found.values())


def named(
    machines: Sequence[str], groups: Sequence[Sequence[int]], names: Sequence[str]
) -> list[str]:
    """What errors call the machines: by host, and by ranks too where a host counts as several.

    >>> named(["a k p", "b k q", "b k q"], [[0], [1], [2]], ["0", "1", "2"])
    ['a', 'b (rank 1)', 'b (rank 2)']
    """
    hosts = [machines[group[0]].split()[0] for group in groups]
    return [
        host
        if hosts.count(host) == 1
        else f"{host} ({ranks_named([names[rank] for rank in group])})"
        for host, group in zip(hosts, groups, strict=True)
    ]


def _create(options: Any, given: Any) -> Any:
    own = given if isinstance(given, Options) else Options()
    # torch's own: of the parent, from split_group, or of NCCL, beside which this backend may be.
    if not isinstance(given, Options | Backend.Options | None):
        raise TypeError(
            f"pg_options: found {type(given).__name__}, wanted fastreduce.distributed.Options"
        )
    rank, size = options.group_rank, options.group_size
    own.check(size)
    names = [str(x) for x in options.global_ranks_in_group or range(size)]
    return joined(options.store, rank, options.timeout, names, own.shared_bytes)


def joined(
    store: Store, rank: int, timeout: timedelta, names: Sequence[str], shared_bytes: int
) -> Any:
    """The backend of a group, once all its ranks have come. ``names``: all ranks', for errors."""
    size, timeout = len(names), min(timeout, LONGEST)
    if not 0 <= rank < size:
        raise ValueError(f"rank: found {rank}, wanted a number below the world_size of {size}")
    if timeout <= timedelta(0):
        raise ValueError(f"timeout: found {timeout}, wanted more than none")
    store = own_part(store, rank, size, timeout)
    # DistributedDataParallel asks a backend for its buckets' memory only where this is "0".
    os.environ.setdefault("DDP_DISABLE_COMM_MEM", "0")

    words = told(store, "machine", str(Place.of_this_process()), rank, [*range(size)], timeout)
    places = [Place.read(said, peer) for peer, said in enumerate(words)]
    machines = [place.machine for place in places]
    groups = by_machine(machines)
    here = next(i for i, ranks in enumerate(groups) if rank in ranks)
    local = groups[here]
    number = local.index(rank)
    across = None
    with lost_are_named(store, rank, size):
        rest = dist.ProcessGroupGloo(PrefixStore("rest", store), rank, size, timeout)
        if len(groups) > 1:
            peers = PrefixStore(f"across {number}", store)
            across = dist.ProcessGroupGloo(peers, here, len(groups), timeout)
    return _C.process_backend(
        rank=number,
        names=[names[peer] for peer in local],
        timeout=timeout,
        shared_bytes=shared_bytes,
        exchange=lambda mine: told(store, "invitation", mine, rank, local, timeout),
        rest=rest,
        machines=[*zip(named(machines, groups, names), groups, strict=True)],
        all_names=names,
        across=across,
        own_cores=own_cores(places, rank),
    )


def empty(*sizes: int | Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
    """An uninitialised CPU tensor that peers can reach: collectives use it where it lies.

    ``sizes`` are numbers or one tuple of them, as for `torch.empty`. The tensor is contiguous, and
    is of ``dtype``, or else of torch's default one. No group is needed, and one tensor may be used
    in several. Its views lie in the same memory.

    Raises RuntimeError where the machine has not so much memory left, ValueError for a negative
    size, TypeError for one that is no whole number, and for another thing than a dtype.

    >>> x = empty(2, 3, dtype=torch.bfloat16).zero_()
    >>> x.shape, x.dtype, x.is_contiguous()
    (torch.Size([2, 3]), torch.bfloat16, True)
    """
    shape = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], Sequence) else sizes
    kind = torch.get_default_dtype() if dtype is None else dtype
    if not isinstance(kind, torch.dtype) or not all(hasattr(x, "__index__") for x in shape):
        raise TypeError(
            f"empty: found sizes {shape!r} and dtype {dtype!r}, wanted whole numbers and a torch "
            "dtype or None"
        )
    return _C.shared_empty(cast("Sequence[int]", shape), kind)
