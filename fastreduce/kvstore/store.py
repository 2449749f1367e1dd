"""The store: initial values, sums of what is pushed, pulls."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from fastreduce.arguments import Op
from fastreduce.kvstore.arguments import (
    about,
    by_key,
    check_new,
    check_rows,
    check_store,
    like,
    names,
    outs,
    ranks_of,
)
from fastreduce.kvstore.entry import Entry, Key
from fastreduce.kvstore.joint import Joint
from fastreduce.kvstore.peers import Alone, Group, agreed
from fastreduce.kvstore.replicas import merged, same_length
from fastreduce.kvstore.shards import Shards
from fastreduce.kvstore.synchronous import Synchronous


class KVStore(Joint):
    """Values by key, which several replicas push to and pull from.

    Args:
        kind: "local": one process, whose replicas push lists of tensors. "dist_sync": the processes
            of a torch.distributed group, whose calls must be the same on all ranks. "dist_async":
            such processes, each of which pushes and pulls when it is ready.
        op: what makes one value of all that is pushed: "sum", or another operation of
            `fastreduce.allreduce`, also as a ``torch.distributed.ReduceOp``.
        group: for the "dist" kinds the group; by default, all processes.
        servers: the ranks that keep the values, each some rows of every value; by default, all.
            All ranks are workers, servers too.
        staleness: for "dist_async", by how many pushes of a key a rank may be ahead of another; a
            push returns once nobody is further behind. With 0, what all ranks push in a step is
            one update, with the bits of "dist_sync"; else each rank's push is an update of its own.
            None: no limit.
        timeout_s: in "dist_async", how long a call waits for an answer, the making of a store at
            least a minute; calls that all ranks make alike wait as long as their group does.

    Keys are strings or integers. Where a method takes a key, it takes a list of keys too, with a
    list of as many values; ``priority``, a number or one for each key, orders their updates, the
    highest first.

    What is wrong with a call on one rank is raised on all of them before anything changes; in
    "dist_async", where ranks call when they are ready, on that rank. There, a rank that ends is no
    longer waited for, and a rank that does not answer in time is a TimeoutError: what was pushed
    has come to the servers then, and would count twice if it were pushed again. Where a rank has
    ended that is needed, a `kvstore.RankEnded` (a RuntimeError) is raised; of a server in
    "dist_async" it names the keys whose rows are lost. `init`, `set_updater`, `set_optimizer` and
    `load_state_dict` are called by all ranks alike in every kind.

    Raises ValueError for settings that make no sense; RuntimeError for a "dist" kind without a
    group, or where ranks' settings differ. (The others do not hear of a rank whose store is
    "local".)

    Source: *Dive into Deep Learning*, "Parameter Servers", "Key-Value Stores"; the methods have the
    names and the meaning of those of MXNet's ``kvstore`` (python/mxnet/kvstore/kvstore.py).

    >>> import torch, fastreduce
    >>> store = fastreduce.KVStore("local")
    >>> store.init("w", torch.zeros(2))
    >>> store.push("w", [torch.ones(2), torch.ones(2)])
    >>> replica = torch.empty(2)
    >>> store.pull("w", replica)
    >>> replica
    tensor([2., 2.])
    """

    def __init__(
        self,
        kind: str = "local",
        *,
        op: Op = "sum",
        group: dist.ProcessGroup | None = None,
        servers: Sequence[int] | None = None,
        staleness: int | None = None,
        timeout_s: float = 1800,
    ) -> None:
        if kind != "local" and not dist.is_initialized():
            check_store(kind, op, staleness, timeout_s)
            raise RuntimeError(
                f"KVStore: found no torch.distributed group for {kind}; call "
                "torch.distributed.init_process_group first, as under torchrun"
            )
        self.kind = kind
        self._peers = Alone() if kind == "local" else Group(group)

        def checked() -> tuple[str, tuple[str, list[int]]]:
            # In here, so that ranks with other arguments are not left waiting for this one.
            name = check_store(kind, op, staleness, timeout_s)
            keepers = ranks_of(servers, self._peers.size)
            about = f"kind {kind}, op {name}, servers {keepers}, staleness {staleness}"
            return f"{about}, timeout_s {timeout_s:g}", (name, keepers)

        self.op, keepers = agreed(self._peers, "KVStore", checked)
        self._shards = Shards(self._peers, keepers)
        self._values = Synchronous(self._peers, self._shards, self.op)
        if kind == "dist_async":
            # Here, because some builds of torch have no rpc.
            from fastreduce.kvstore.asynchronous import Asynchronous

            self._values = Asynchronous(
                self._peers, self._shards, self.op, staleness=staleness, timeout_s=timeout_s
            )

    def __getstate__(self) -> NoReturn:
        """What copies and pickles of an object are made of: this one has locks, threads, peers."""
        raise TypeError(
            "KVStore: a store cannot be copied or pickled; wanted its state_dict(), which another "
            "store's load_state_dict() takes"
        )

    def keys(self) -> list[Key]:
        """Those that have a value, in the order in which they got it."""
        return list(self._shards.entries)

    # ---- values

    def init(self, key: Key | Sequence[Key], value: Any) -> None:
        """Give keys their first values, tensors of any shape; with several ranks, rank 0's.

        Raises ValueError for a key that has a value, for a dtype that ``op`` does not reduce, and
        where shapes or dtypes differ between ranks.
        """
        self._init(key, value)

    def _init(
        self, key: Any, value: Any, check: Callable[[dict[Key, Tensor]], object] = lambda _: None
    ) -> None:
        """``check`` raises for what would go wrong later with these values."""

        def checked() -> tuple[str, dict[Key, Tensor]]:
            values = by_key("init", key, value)
            check_new(values, self.keys(), self.op)
            check(values)
            return ", ".join(f"{key!r} ({about(x)})" for key, x in values.items()), values

        self._values.add(self._values.together("init", checked))

    def push(
        self, key: Key | Sequence[Key], value: Any, priority: float | Sequence[float] = 0
    ) -> None:
        """Reduce what all replicas of all ranks push for a key, and update its value with that.

        ``value`` is a tensor, or a list with one for each replica, of the key's shape and dtype; it
        is not changed. Without an updater or optimizer the value becomes the reduction.

        Raises KeyError for a key without a value; ValueError for a tensor of another shape or
        dtype; UpdaterFailed on the rank where an updater raises, or makes its value a tensor of
        another shape, dtype or device, and RuntimeError, which names that rank, on the others. All
        keys of the call keep their values then. In "dist_async", where ranks update on their own,
        the key's rows on that rank keep theirs, and who pushed gets a RuntimeError.
        """
        self._push(key, value, priority)

    def _push(
        self, key: Any, value: Any, priority: Any, check: Callable[[], object] = lambda: None
    ) -> None:
        """``check`` raises for what would go wrong later."""

        def checked() -> tuple[str, tuple[dict[Key, Tensor], int]]:
            check()
            values = like("push", key, value, self._shards.entries, priority)
            self._shards.updates.refuse_own(values)
            replicas = same_length("push", values)
            return names(values), (merged(values, self.op), replicas)

        self._values.push(*self._values.agreed("push", checked))

    def pull(
        self, key: Key | Sequence[Key], out: Any, priority: float | Sequence[float] = 0
    ) -> None:
        """Copy the values of keys into tensors of their shapes and dtypes, on any device.

        ``out`` is a tensor, or a list with one for each replica. Raises KeyError for a key without
        a value, ValueError where there is nothing to copy into or where it does not fit.
        """

        def checked() -> tuple[str, dict[Key, list[Tensor]]]:
            found = outs(key, out, self._shards.entries, priority)
            return names(found), found

        found = self._values.agreed("pull", checked)
        with torch.no_grad():
            for one, rank, rows in self._values.read(list(found)):
                for replica in found[one]:
                    self._shards.entries[one].part(replica.detach(), rank).copy_(rows)

    def pushpull(
        self,
        key: Key | Sequence[Key],
        value: Any,
        out: Any = None,
        priority: float | Sequence[float] = 0,
    ) -> None:
        """`push`, then `pull` into ``out``; without it, into what was pushed."""
        into = value if out is None else out
        check = functools.partial(outs, key, into, self._shards.entries, priority)
        self._push(key, value, priority, check)
        self.pull(key, into, priority)

    def broadcast(
        self,
        key: Key | Sequence[Key],
        value: Any,
        out: Any,
        priority: float | Sequence[float] = 0,
    ) -> None:
        """`init`, then `pull` into ``out``; no key is made where ``out`` does not fit."""

        def check(values: dict[Key, Tensor]) -> None:
            made = {one: Entry(x.shape, (), x) for one, x in values.items()}
            outs(key, out, made, priority)

        self._init(key, value, check)
        self.pull(key, out, priority)

    def row_sparse_pull(self, key: Key | Sequence[Key], out: Any, row_ids: Any) -> None:
        """Copy the rows ``row_ids`` (integers, in any order) of a value into the rows of ``out``.

        For a list of keys, ``out`` and ``row_ids`` are lists with a tensor for each. Only these
        rows travel; ranks may ask for different ones. Raises KeyError and ValueError as `pull`
        does, and ValueError for row numbers that the value does not have.
        """
        call = "row_sparse_pull"

        def checked() -> tuple[str, dict[Key, tuple[Tensor, Tensor]]]:
            found, ids = by_key(call, key, out), by_key(call, key, row_ids)
            for one in found:
                check_rows(one, self._shards.entries, found[one], ids[one])
            numbers = {one: x.reshape(-1).to("cpu", torch.int64) for one, x in ids.items()}
            return names(found), {one: (x.detach(), numbers[one]) for one, x in found.items()}

        for one, (to, numbers) in self._values.agreed(call, checked).items():
            for mask, rows in self._values.read_rows(one, numbers):
                _writable(to)[mask.to(to.device)] = _writable(rows.to(to.device))


# torch 2.13 writes no unsigned integers but uint8 to an index, and no single 8-bit float.
_WRITABLE = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
_FLOATS8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
_WRITABLE |= dict.fromkeys(_FLOATS8, torch.uint8)


def _writable(value: Tensor) -> Tensor:
    """The same memory, in a dtype that torch can write anywhere."""
    return value.view(_WRITABLE[value.dtype]) if value.dtype in _WRITABLE else value
