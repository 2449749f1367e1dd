"""Notices when parameters have been written to."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils.weak import TensorWeakRef

# By id. A WeakSet would not do: iterating over it raises if another thread makes a Watch meanwhile.
_watches: weakref.WeakValueDictionary[int, Watch] = weakref.WeakValueDictionary()


class Watch:
    """Whether parameters have changed since the last look.

    Their version counters say so, except after a step of an optimizer with ``fused=True``, which
    writes without counting (torch 2.13). So the steps of optimizers are noticed, too, and followed
    by a call of ``after_step``, a method of an object that this does not keep alive.
    """

    def __init__(self, after_step: Callable[[], None] | None = None) -> None:
        self._after_step = weakref.WeakMethod(after_step) if after_step else lambda: None
        self._seen: list[tuple[int, int]] = []
        # By id; the reference tells whether the id is still that of this tensor.
        self._params: dict[int, TensorWeakRef] = {}
        self._stepped = False
        _listen()
        _watches[id(self)] = self

    def changed(self, params: Sequence[Tensor]) -> bool:
        """Whether these are other parameters than at the last call, or have other values."""
        seen = [(id(parameter), parameter._version) for parameter in params]
        if seen == self._seen and not self._stepped:
            return False
        self._seen, self._stepped = seen, False
        self._params = {id(x): TensorWeakRef(x) for x in params}
        return True

    def note(self, optimizer: Optimizer) -> None:
        """The optimizer has taken a step."""
        if any(self._knows(x) for group in optimizer.param_groups for x in group["params"]):
            self._stepped = True
            if after_step := self._after_step():
                after_step()

    def _knows(self, parameter: Tensor) -> bool:
        known = self._params.get(id(parameter))
        return known is not None and known() is parameter


@functools.cache
def _listen() -> None:
    def note(optimizer: Optimizer, *_: Any) -> None:
        for reference in _watches.valuerefs():
            if (watch := reference()) is not None:
                watch.note(optimizer)

    register_optimizer_step_post_hook(note)
