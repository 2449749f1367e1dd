"""What a push does to a value: it replaces it, or an updater or an optimizer changes it."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from fastreduce.kvstore.arguments import about
from fastreduce.kvstore.entry import Key
from fastreduce.names import shown

Updater = Callable[[Key, Tensor, Tensor], object]


def fold_of(op: str) -> str:
    """What makes one value of several; an average is divided where all of it is."""
    return "sum" if op == "avg" else op


def unrounded(value: Tensor, op: str) -> Tensor:
    """An average is summed and divided in float32, and rounded once, as that of `allreduce`."""
    if op == "avg" and value.dtype == torch.complex32:
        return value.to(torch.complex64)
    narrow = value.is_floating_point() and value.element_size() < 4
    return value.float() if op == "avg" and narrow else value


def divide(total: Tensor, count: int) -> None:
    """Make an average of a sum of so many."""
    # Of complex numbers each part, as `allreduce` does: torch divides by a complex number, which
    # rounds otherwise, and makes NaN of the part beside an infinite one.
    (torch.view_as_real(total) if total.is_complex() else total).div_(count)


@contextlib.contextmanager
def changeable() -> Iterator[None]:
    """What is made in here may be changed later, also where the caller is in inference mode."""
    with torch.inference_mode(False), torch.no_grad():
        yield


class UpdaterFailed(RuntimeError):
    """An updater raised, which is ``__cause__`` then, or left no value like the one before; the
    message names the key."""


class Updates:
    """The updater of a store, and the optimizers of its keys, if it is made of them."""

    def __init__(self) -> None:
        self._updater: Updater = _replace
        self._make: Callable[[Tensor], torch.optim.Optimizer] | None = None
        self.optimizer: str | None = None  # its name, if the updates are those of one
        self._optimizers: dict[Key, torch.optim.Optimizer] = {}
        self._own = threading.local()

    @property
    def under_way(self) -> list[Key]:
        """The keys that this thread updates just now: several where an updater pushes another."""
        if not hasattr(self._own, "keys"):
            self._own.keys = []
        keys: list[Key] = self._own.keys
        return keys

    def use(self, updater: Updater) -> None:
        self._use(updater)

    def use_optimizer(self, kind: type[torch.optim.Optimizer], settings: dict[str, Any]) -> None:
        self._use(self._step, lambda rows: kind([rows], **settings), kind.__name__)

    def _use(
        self,
        updater: Updater,
        make: Callable[[Tensor], torch.optim.Optimizer] | None = None,
        optimizer: str | None = None,
    ) -> None:
        # Without a call in between, after which Ctrl-C could leave one without the others.
        self._updater, self._make, self.optimizer, self._optimizers = updater, make, optimizer, {}

    def apply(self, key: Key, update: Tensor, rows: Tensor) -> None:
        """Raises UpdaterFailed for whatever the updater raises, and where it makes the rows
        others than they were in shape, dtype, device or memory."""
        before, name = _form(rows), f"the updater of key {key!r}"
        under_way = self.under_way
        others = len(under_way)
        try:
            under_way.append(key)
            with torch.no_grad():
                self._updater(key, update, rows)
        except Exception as error:
            raise UpdaterFailed(f"{name} raised {type(error).__name__}: {error}") from error
        finally:
            del under_way[others:]  # no call, at which Ctrl-C could come and leave the key there
        if _form(rows) != before:
            raise UpdaterFailed(
                f"{name} made its value {_form(rows)}, wanted {before}, as it was: an updater "
                "changes elements only"
            )

    def refuse_own(self, keys: Collection[Key]) -> None:
        """Raise RuntimeError where the updater of a key pushes that key again."""
        for key in keys:
            if key in self.under_way:
                raise RuntimeError(
                    f"push: found a push of key {key!r} by its own updater, which would go on for "
                    "ever; wanted one that changes the value that it is given"
                )

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

    def restorer(
        self, state: Mapping[Key, Any], optimizer: str | None, rows: Mapping[Key, Tensor]
    ) -> Callable[[], None]:
        """What makes the optimizers of ``rows`` those of ``state``, of an ``optimizer`` of that
        name, or new ones where it has none; raises ValueError if that cannot be."""
        if unknown := [key for key in state if key not in rows]:
            raise ValueError(
                f"load_state_dict: found optimizers of keys {shown(unknown)}, which have no value"
            )
        if state and (self._make is None or optimizer != self.optimizer):
            raise ValueError(
                f"load_state_dict: found the state of {optimizer}, wanted that of "
                f"{self.optimizer or 'no optimizer'}; call set_optimizer with {optimizer} first"
            )
        made = {key: self._restored(key, rows[key], one) for key, one in state.items()}

        def put() -> None:
            for key in rows:
                self._optimizers.pop(key, None)
            self._optimizers.update(made)

        return put

    def _restored(self, key: Key, rows: Tensor, state: Any) -> torch.optim.Optimizer:
        assert self._make is not None
        optimizer = self._make(rows)
        try:
            optimizer.load_state_dict(copy.deepcopy(state))  # torch keeps it
        except Exception as error:  # of torch, which takes its form for granted
            raise ValueError(
                f"load_state_dict: key {key!r}: found no state of {self.optimizer} "
                f"({type(error).__name__}: {error}), wanted what state_dict returns"
            ) from error
        return optimizer


def _form(rows: Tensor) -> str:
    memory = f"strides {rows.stride()} and {rows.untyped_storage().nbytes()} bytes"
    return f"{about(rows)} on {rows.device} with {memory}"


def _copied(state: Mapping[str, Any]) -> dict[str, Any]:
    # clone, where it can: deepcopy takes eleven times as long for ten elements, three times for
    # 100,000 (AMD EPYC, family 26 model 2, 2026-11-27).
    return {
        name: x.clone() if isinstance(x, Tensor) else copy.deepcopy(x) for name, x in state.items()
    }


def _replace(_: Key, update: Tensor, rows: Tensor) -> None:
    rows.copy_(update)
