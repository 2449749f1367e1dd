"""The store: initial values, sums of what is pushed, updates where the values are, pulls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

import fastreduce
from fastreduce import _C
from fastreduce.kvstore.arguments import (
    about,
    by_priority,
    check_new,
    check_rows,
    like,
    listed,
    names,
    same_length,
)
from fastreduce.kvstore.peers import Alone, Group
from fastreduce.kvstore.shards import Key, Shards
from fastreduce.kvstore.updates import Updater, Updates

KINDS = ("local", "dist_sync")
Made = TypeVar("Made")


class KVStore:
    """Values by key, which several replicas push to and pull from.

    Args:
        kind: "local": one process, whose replicas push lists of tensors. "dist_sync": the processes
            of a torch.distributed group, whose calls must be the same on all ranks; each process is
            a worker and a server, which keeps its part of every value: some of the rows.
        op: what makes one value of all that is pushed: "sum", or another operation of
            `fastreduce.allreduce`.
        group: for "dist_sync" the group; by default, all processes.

    Keys are strings or integers. Where a method takes a key, it takes a list of keys too, with a
    list of as many values; ``priority``, a number or one for each key, orders their updates, the
    highest first.

    Whatever is wrong on one rank is raised on all of them, before anything changes.

    Raises ValueError for another ``kind`` or ``op``; RuntimeError for "dist_sync" without a group.

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
        self, kind: str = "local", *, op: str = "sum", group: dist.ProcessGroup | None = None
    ) -> None:
        if kind not in KINDS:
            raise ValueError(f"KVStore: found {kind!r}, wanted one of {', '.join(KINDS)}")
        if op not in _C.ops():
            raise ValueError(f"KVStore: found op {op!r}, wanted one of {', '.join(_C.ops())}")
        if kind == "dist_sync" and not dist.is_initialized():
            raise RuntimeError(
                "KVStore: found no torch.distributed group for dist_sync; call "
                "torch.distributed.init_process_group first, as under torchrun"
            )
        self.kind, self.op = kind, op
        self._peers = Alone() if kind == "local" else Group(group)
        self._shards = Shards(self._peers)
        self._updates = Updates()

    @property
    def rank(self) -> int:
        return self._peers.rank

    @property
    def num_workers(self) -> int:
        return self._peers.size

    def keys(self) -> list[Key]:
        """Those that have a value, in the order in which they got it."""
        return list(self._shards.entries)

    # ---- values

    def init(self, key: Key | Sequence[Key], value: Any) -> None:
        """Give keys their first values, tensors of any shape; with several ranks, rank 0's.

        Raises ValueError for a key that has a value, and where shapes or dtypes differ between
        ranks.
        """

        def checked() -> tuple[str, dict[Key, Tensor]]:
            values = listed("init", key, value)
            check_new(values, self.keys())
            return ", ".join(f"{key!r} ({about(x)})" for key, x in values.items()), values

        self._shards.add(self._agreed("init", checked))

    def push(
        self, key: Key | Sequence[Key], value: Any, priority: float | Sequence[float] = 0
    ) -> None:
        """Reduce what all replicas of all ranks push for a key, and update its value with that.

        ``value`` is a tensor, or a list with one for each replica, of the key's shape and dtype; it
        is not changed. Without an updater or optimizer the value becomes the reduction.

        Raises KeyError for a key without a value; ValueError for a tensor of another shape or
        dtype; UpdaterFailed on the rank where an updater raises, and RuntimeError, which names that
        rank, on the others. All keys of the call keep their values then.
        """
        pushed: list[int] = []

        def checked() -> tuple[str, dict[Key, Tensor]]:
            values = self._like("push", key, value, priority)
            pushed.append(same_length("push", values))
            return names(values), self._merged(values)

        merged = self._agreed("push", checked, pushed)
        updates = self._shards.reduce(merged, self._fold)
        if self.op == "avg":
            for update in updates.values():
                update /= sum(pushed)
        self._update(list(merged), updates)

    def _merged(self, values: Mapping[Key, Sequence[Tensor]]) -> dict[Key, Tensor]:
        """The reduction over this process's replicas, in memory of its own."""
        columns = zip(*values.values(), strict=True)
        first, *others = ([x.detach() for x in column] for column in columns)
        merged = [x.clone(memory_format=torch.contiguous_format) for x in first]
        if others:
            fastreduce.reduce([merged, *others], op=self._fold)
        return dict(zip(values, merged, strict=True))

    @property
    def _fold(self) -> str:
        return "sum" if self.op == "avg" else self.op

    def _like(self, call: str, key: Any, value: Any, priority: Any) -> dict[Key, list[Tensor]]:
        """By key, the highest priority first, the replicas' tensors, which are like its value."""
        values = listed(call, key, value)
        found = {key: like(call, key, x, self._shards.entries) for key, x in values.items()}
        return {key: found[key] for key in by_priority(list(found), priority)}

    def pull(
        self, key: Key | Sequence[Key], out: Any, priority: float | Sequence[float] = 0
    ) -> None:
        """Copy the values of keys into tensors of their shapes and dtypes, on any device.

        ``out`` is a tensor, or a list with one for each replica. Raises KeyError for a key without
        a value, ValueError where there is nothing to copy into or where it does not fit.
        """

        def checked() -> tuple[str, dict[Key, list[Tensor]]]:
            outs = self._like("pull", key, out, priority)
            return names(outs), outs

        outs = self._agreed("pull", checked)
        with torch.no_grad():
            for one, rank, rows in self._shards.read(list(outs)):
                for replica in outs[one]:
                    self._shards.entries[one].part(replica.detach(), rank).copy_(rows)

    def pushpull(
        self,
        key: Key | Sequence[Key],
        value: Any,
        out: Any = None,
        priority: float | Sequence[float] = 0,
    ) -> None:
        """`push`, then `pull` into ``out``; without it, into what was pushed."""
        self.push(key, value, priority)
        self.pull(key, value if out is None else out, priority)

    def broadcast(
        self,
        key: Key | Sequence[Key],
        value: Any,
        out: Any,
        priority: float | Sequence[float] = 0,
    ) -> None:
        """`init`, then `pull` into ``out``."""
        self.init(key, value)
        self.pull(key, out, priority)

    def row_sparse_pull(self, key: Key, out: Tensor, row_ids: Tensor) -> None:
        """Copy the rows ``row_ids`` (integers, in any order) of a value into the rows of ``out``.

        Only these rows travel; ranks may ask for different ones. Raises KeyError and ValueError as
        `pull` does, and ValueError for row numbers that the value does not have.
        """

        def checked() -> tuple[str, Tensor]:
            check_rows(key, self._shards.entries, out, row_ids)
            return repr(key), row_ids.reshape(-1).to("cpu", torch.int64)

        numbers = self._agreed("row_sparse_pull", checked)
        with torch.no_grad():
            for mask, rows in self._shards.read_rows(key, numbers):
                out.detach()[mask.to(out.device)] = rows.to(out.device)

    def _agreed(
        self, call: str, checked: Callable[[], tuple[str, Made]], counts: list[int] | None = None
    ) -> Made:
        """What ``checked`` returns, if it raises nothing on any rank and all say the same.

        ``counts``, this rank's number, becomes the list of all ranks'.
        """
        counts = [] if counts is None else counts
        try:
            about, made = checked()
        except Exception as error:
            self._peers.agree(call, error)
            raise
        counts[:] = self._peers.agree(f"{call} of {about}", None, sum(counts))
        return made

    # ---- updates

    def _update(self, keys: Sequence[Key], updates: Mapping[Key, Tensor]) -> None:
        entries = self._shards.entries
        before = {key: entries[key].rows.clone() for key in keys}

        def updated() -> tuple[str, None]:
            for key in keys:
                self._updates.apply(key, updates[key], entries[key].rows)
            return names(keys), None

        try:
            self._agreed("update", updated)
        except BaseException:
            for key, rows in before.items():
                entries[key].rows.copy_(rows)
            raise

    def set_updater(self, updater: Updater) -> None:
        """Call ``updater(key, update, value)`` for each push, to change ``value`` in place.

        It gets the rows that this rank keeps, so it may combine values of one row only with values
        of the same row.
        """
        self._updates.use(updater)

    def set_optimizer(self, kind: type[torch.optim.Optimizer], **settings: Any) -> None:
        """Let an optimizer of torch take a step for each push, as if it were the gradient.

        Each key has its own, ``kind([rows], **settings)``, where the rows are. It must update
        element by element, as SGD and Adam do.

        >>> import torch, fastreduce
        >>> store = fastreduce.KVStore()
        >>> store.set_optimizer(torch.optim.SGD, lr=0.5)
        >>> store.broadcast("w", torch.ones(1), out=(w := torch.empty(1)))
        >>> store.pushpull("w", torch.ones(1), out=w)
        >>> w
        tensor([0.5000])
        """
        self._updates.use_optimizer(kind, settings)

    # ---- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """This rank's part of all values, and of its optimizers' states; every rank saves its own.

        `fastreduce.training.save` takes a store as it takes a module.
        """
        values = {key: entry.rows.clone() for key, entry in self._shards.entries.items()}
        return {"values": values, "optimizers": self._updates.state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back what `state_dict` returned, on a store of as many ranks with the same keys.

        Raises ValueError, and changes nothing, where keys, shapes or dtypes are others, or for the
        state of optimizers where `set_optimizer` was not called.
        """
        entries = self._shards.entries
        found, own = (
            {key: about(x) for key, x in values.items()}
            for values in (state["values"], {key: entry.rows for key, entry in entries.items()})
        )
        if found != own:
            raise ValueError(f"load_state_dict: found rows {found}, wanted {own}")
        self._updates.restore(
            state["optimizers"], {key: entry.rows for key, entry in entries.items()}
        )
        for key, rows in state["values"].items():
            entries[key].rows.copy_(rows)
