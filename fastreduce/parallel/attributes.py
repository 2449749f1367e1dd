"""Has replicas follow what is done to a module's plain attributes between two forward passes."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

# Attributes of these types follow the module's before every pass: training, eps, a dropout's p.
_SIMPLE = {bool, int, float, str, type(None)}
_CONTAINERS = {list, dict, set}
_REGISTRIES = vars(nn.Module()).keys() - {"training"}  # `structure_of` looks at them


class Attributes:
    """The attributes of a module and its children as they were after the last forward pass.

    So what a pass itself sets is no change: every replica has its own. Lists, dicts and sets of
    numbers and strings are compared by their contents, all other objects by identity; what is done
    inside of those is not noticed.

    Args:
        modules: the module and its children, and in the same order those of each replica.
    """

    def __init__(self, *modules: Iterable[nn.Module]):
        self._places = list(zip(*modules, strict=True))
        self._tensors: set[tuple[int, str]] = set()
        self._containers = [
            (number, name)
            for number, (module, *_) in enumerate(self._places)
            for name, value in vars(module).items()
            if type(value) in _CONTAINERS and name not in _REGISTRIES
        ]
        self.keep()

    def keep(self) -> None:
        """A forward pass has ended."""
        self._held = [dict(vars(module)) for module, *_ in self._places]
        self._versions = {
            (number, name): version(self._held[number].get(name)) for number, name in self._tensors
        }
        self._contents = [
            _content(self._held[number].get(name)) for number, name in self._containers
        ]

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
        self._follow_contents()
        return True

    def _follow_contents(self) -> None:
        for (number, name), known in zip(self._containers, self._contents, strict=True):
            module, *copies = self._places[number]
            value = vars(module)[name]
            content = _content(value)
            if content is not None and content != known:
                for own in copies:
                    vars(own)[name] = type(value)(value)

    def _follow_tensor(
        self, number: int, name: str, value: Tensor, copies: Sequence[nn.Module]
    ) -> None:
        place = number, name
        known = self._versions.get(place, version(value))
        self._tensors.add(place)
        if value.grad_fn is not None:  # `warn_of_results` has said so
            return
        if self._held[number].get(name) is not value or known != version(value):
            for own in copies:
                before = vars(own).get(name)
                device = before.device if isinstance(before, Tensor) else value.device
                with torch.inference_mode(False):  # or no later pass could train with it
                    vars(own)[name] = value.detach().to(device, copy=True)

    def warn_of_results(self) -> None:
        """Of tensors with a graph that the last pass has left in the module's attributes.

        Hooks that run before forward leave some too, but have made a weight.
        """
        for (module, *_), held in zip(self._places, self._held, strict=True):
            for name, value in held.items():
                has_graph = isinstance(value, Tensor) and value.grad_fn is not None
                if has_graph and not module._forward_pre_hooks:
                    warnings.warn(
                        f"DataParallel: forward has set {type(module).__name__}.{name} to a tensor "
                        "with a graph. The model has that of the first shard only, so a loss made "
                        "of it lacks the other shards; have forward return it",
                        stacklevel=2,
                    )


def _content(value: Any) -> Any:
    """What can be compared with the same container later; None for contents that cannot."""
    if type(value) not in _CONTAINERS:
        return None
    items = [*value, *value.values()] if isinstance(value, dict) else value
    return value.copy() if all(type(item) in _SIMPLE for item in items) else None


def version(value: Any) -> int:
    """How often a tensor has been written to."""
    return value._version if isinstance(value, Tensor) and not value.is_inference() else 0
