"""What a push does to a value: it replaces it, or an updater or an optimizer changes it."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from fastreduce.kvstore.entry import Key

Updater = Callable[[Key, Tensor, Tensor], object]


def fold_of(op: str) -> str:
    """What makes one value of several; an average is divided where all of it is."""
    return "sum" if op == "avg" else op


class UpdaterFailed(RuntimeError):
    """An updater raised; the message names the key, and ``__cause__`` is what it raised."""

    def __init__(self, key: Key, cause: Exception) -> None:
        super().__init__(f"the updater of key {key!r} raised {type(cause).__name__}: {cause}")


class Updates:
    """The updater of a store, and the optimizers of its keys, if it is made of them."""

    def __init__(self) -> None:
        self._updater: Updater = _replace
        self._make: Callable[[Tensor], torch.optim.Optimizer] | None = None
        self.optimizer: str | None = None  # its name, if the updates are those of one
        self._optimizers: dict[Key, torch.optim.Optimizer] = {}
        self._own = threading.local()

    @property
    def under_way(self) -> Key | None:
        """The key that this thread updates just now."""
        return getattr(self._own, "key", None)

    def use(self, updater: Updater) -> None:
        self._updater, self._make, self.optimizer = updater, None, None
        self._optimizers.clear()

    def use_optimizer(self, kind: type[torch.optim.Optimizer], settings: dict[str, Any]) -> None:
        self.use(self._step)
        self._make, self.optimizer = lambda rows: kind([rows], **settings), kind.__name__

    def apply(self, key: Key, update: Tensor, rows: Tensor) -> None:
        """Raises UpdaterFailed for whatever the updater raises."""
        self._own.key = key
        try:
            with torch.no_grad():
                self._updater(key, update, rows)
        except Exception as error:
            raise UpdaterFailed(key, error) from error
        finally:
            self._own.key = None

    def _step(self, key: Key, update: Tensor, rows: Tensor) -> None:
        optimizer = self._optimizer(key, rows)
        rows.grad = update
        try:
            optimizer.step()
        finally:
            rows.grad = None

    def _optimizer(self, key: Key, rows: Tensor) -> torch.optim.Optimizer:
        if key not in self._optimizers:
            assert self._make is not None
            self._optimizers[key] = self._make(rows)
        return self._optimizers[key]

    def undo(self, keys: Collection[Key]) -> Callable[[], None]:
        """What makes the optimizers of keys again what they are now."""
        # A step changes no settings, so they need no copy.
        before = [
            (key, optimizer, [(rows, _copied(state)) for rows, state in optimizer.state.items()])
            for key, optimizer in self._optimizers.items()
            if key in keys
        ]

        def put() -> None:
            for key in keys:
                self._optimizers.pop(key, None)
            for key, optimizer, states in before:
                optimizer.state.clear()
                optimizer.state.update(states)
                self._optimizers[key] = optimizer

        return put

    def state(self, keys: Collection[Key]) -> dict[Key, Any]:
        """Of the keys' optimizers, in memory of its own."""
        found = [key for key in keys if key in self._optimizers]
        return copy.deepcopy({key: self._optimizers[key].state_dict() for key in found})

    def check(self, state: Mapping[Key, Any], optimizer: Any, keys: Collection[Key]) -> None:
        """Raise ValueError if ``state``, of an ``optimizer`` of that name, cannot be restored."""
        if unknown := [key for key in state if key not in keys]:
            raise ValueError(
                f"load_state_dict: found optimizers of keys {unknown}, which have no value"
            )
        if state and optimizer != self.optimizer:
            raise ValueError(
                f"load_state_dict: found the state of {optimizer}, wanted that of "
                f"{self.optimizer or 'no optimizer'}; call set_optimizer with {optimizer} first"
            )

    def restore(self, state: Mapping[Key, Any], rows: Mapping[Key, Tensor]) -> None:
        """The optimizers of ``rows`` become those of ``state``, or new ones where it has none."""
        for key in rows:
            self._optimizers.pop(key, None)
        for key, one in state.items():
            self._optimizer(key, rows[key]).load_state_dict(copy.deepcopy(one))  # torch keeps it


def _copied(state: Mapping[str, Any]) -> dict[str, Any]:
    # clone, where it can: deepcopy takes ten times as long for small tensors.
    return {
        name: x.clone() if isinstance(x, Tensor) else copy.deepcopy(x) for name, x in state.items()
    }


def _replace(_: Key, update: Tensor, rows: Tensor) -> None:
    rows.copy_(update)
