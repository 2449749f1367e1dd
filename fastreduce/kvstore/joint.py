"""What all ranks of a store call alike, in every kind: what an update is, checkpoints, the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from fastreduce.kvstore.arguments import check_optimizer, check_updater
from fastreduce.kvstore.peers import Made, Peers
from fastreduce.kvstore.shards import Shards
from fastreduce.kvstore.updates import Updater
from fastreduce.kvstore.values import Values


class Joint:
    """The part of a `KVStore` that has no keys."""

    kind: str
    _peers: Peers
    _shards: Shards
    _values: Values

    @property
    def rank(self) -> int:
        return self._peers.rank

    @property
    def num_workers(self) -> int:
        return self._peers.size

    # ---- updates

    def set_updater(self, updater: Updater) -> None:
        """Call ``updater(key, update, value)`` for each push, to change ``value`` in place.

        All ranks call this. An updater gets the rows that its rank keeps, so it may combine values
        of one row only with values of the same row. It must not push the key that it updates, nor
        in "dist_async" call its own store at all, which is locked meanwhile: the push fails then.
        """
        self.agreed("set_updater", lambda: check_updater(updater))
        with self._shards.lock:
            self._shards.updates.use(updater)
        self._peers.agree("set_updater")  # so that nobody's push comes before it on some rank

    def set_optimizer(self, kind: type[torch.optim.Optimizer], **settings: Any) -> None:
        """Let an optimizer of torch take a step for each push, as if it were the gradient.

        Each key has its own, ``kind([rows], **settings)``, where the rows are. It must update
        element by element, as SGD and Adam do. All ranks call this, with the same settings.

        >>> import torch, fastreduce
        >>> store = fastreduce.KVStore()
        >>> store.set_optimizer(torch.optim.SGD, lr=0.5)
        >>> store.broadcast("w", torch.ones(1), out=(w := torch.empty(1)))
        >>> store.pushpull("w", torch.ones(1), out=w)
        >>> w
        tensor([0.5000])
        """

        def checked() -> tuple[str, None]:
            check_optimizer(kind, settings)
            return f"{kind.__name__}, {dict(sorted(settings.items()))}", None

        self._values.together("set_optimizer", checked)
        with self._shards.lock:
            self._shards.updates.use_optimizer(kind, settings)
        self._peers.agree("set_optimizer")

    # ---- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """This rank's part of all values, and of its optimizers' states; every rank saves its own.

        `fastreduce.training.save` takes a store as it takes a module.
        """
        return self._shards.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back what `state_dict` returned, on a store of as many ranks with the same keys.

        All ranks call it, each with its own state. Raises ValueError on the rank, and RuntimeError
        on the others, where keys, shapes or dtypes are others, for the state of another rank, or
        for that of optimizers where `set_optimizer` was not called; nothing changes then.
        """

        def checked() -> tuple[str, Callable[[], None]]:
            put = self._shards.restorer(state)
            # Ranks go on from one step where they take steps together.
            return "" if self.kind == "dist_async" else f"{state['pushes']} pushes", put

        put = self._values.together("load_state_dict", checked)
        self._values.together("load_state_dict", lambda: ("", put()))

    def misfit(self, state: Any) -> str | None:
        """Why `load_state_dict` would refuse a state on this rank; None if it would not."""
        try:
            self._shards.restorer(state)
        except ValueError as error:
            return str(error).removeprefix("load_state_dict: ")
        return None

    def agreed(self, call: str, checked: Callable[[], Made]) -> Made:
        """What ``checked`` returns; what it raises on one rank is raised on all.

        All ranks call it, before they begin ``call`` together with what may be wrong on one only.
        """
        return self._values.together(call, lambda: ("", checked()))

    def close(self) -> None:
        """Take leave: to be called last, on every rank; `contextlib.closing` does it.

        In "dist_async" the other ranks no longer wait for this one then, and it returns when all of
        them have called it or ended: until then this process serves them the rows that it keeps.
        For the other kinds there is nothing to do.
        """
        self._values.close()
