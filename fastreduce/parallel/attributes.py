"""Has replicas follow what is done to a module's plain attributes between two forward passes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

# Attributes of these types follow the module's before every pass: training, eps, a dropout's p.
_SIMPLE = {bool, int, float, str, type(None)}
_REGISTRIES = vars(nn.Module()).keys() - {"training"}  # `structure_of` looks at them


class Attributes:
    """The attributes of a module and its children as they were after the last forward pass.

    So what a pass itself sets is no change: every replica has its own. Objects, lists and dicts
    are compared by identity; what is done inside of them is not noticed.

    Args:
        modules: the module and its children, and in the same order those of each replica.
    """

    def __init__(self, *modules: Iterable[nn.Module]):
        self._places = list(zip(*modules, strict=True))
        self._tensors: set[tuple[int, str]] = set()
        self.keep()

    def keep(self) -> None:
        """A forward pass has ended."""
        self._held = [dict(vars(module)) for module, *_ in self._places]
        self._versions = {
            (number, name): _version(self._held[number].get(name)) for number, name in self._tensors
        }

    def let_go(self) -> None:
        """A forward pass begins; what it replaces need not stay in memory."""
        self._held.clear()

    def follow(self) -> bool:
        """Set in the replicas what has changed; False if that takes new replicas."""
        for number, (module, *copies) in enumerate(self._places):
            now, held = vars(module), self._held[number]
            for name in now.keys() - _REGISTRIES:
                value = now[name]
                if type(value) in _SIMPLE:
                    for own in copies:
                        if vars(own).get(name) is not value:
                            vars(own)[name] = value
                elif isinstance(value, Tensor) and not (value.is_leaf and value.requires_grad):
                    self._follow_tensor(number, name, value, copies)
                elif held.get(name) is not value:
                    return False
            if not held.keys() <= now.keys():
                return False
        return True

    def _follow_tensor(
        self, number: int, name: str, value: Tensor, copies: Sequence[nn.Module]
    ) -> None:
        place = number, name
        known = self._versions.get(place, _version(value))
        self._tensors.add(place)
        if value.grad_fn is not None:
            return  # the result of a pass
        if self._held[number].get(name) is not value or known != _version(value):
            for own in copies:
                before = vars(own).get(name)
                device = before.device if isinstance(before, Tensor) else value.device
                with torch.inference_mode(False):  # or no later pass could train with it
                    vars(own)[name] = value.detach().to(device, copy=True)


def _version(value: Any) -> int:
    """How often a tensor has been written to."""
    return value._version if isinstance(value, Tensor) and not value.is_inference() else 0
