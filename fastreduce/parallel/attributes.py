"""Has replicas follow what is done to a module's plain attributes between two forward passes."""

from __future__ import annotations

import enum
import numbers
import warnings
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterable, Sequence
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

# Attributes of these types follow the module's before every pass: training, eps, a dropout's p.
_SIMPLE = {bool, int, float, str, type(None)}
_CONTAINERS = {list, dict, set, OrderedDict, defaultdict, Counter, deque}
_REGISTRIES = vars(nn.Module()).keys() - {"training"}  # `structure_of` looks at them


class Attributes:
    """The attributes of a module and its children as they were after the last forward pass.

    So what a pass itself sets is no change: every replica has its own. Lists, dicts and sets of
    numbers and strings are compared by their contents, and so are the numbers and strings that are
    attributes (or items) of an object, such as a configuration. What is done deeper inside is not
    noticed.

    Args:
        modules: the module and its children, and in the same order those of each replica.
        devices: of the module and of each replica.
    """

    def __init__(self, *modules: Iterable[nn.Module], devices: Sequence[torch.device] = ()):
        self._places = list(zip(*modules, strict=True))
        self._home = devices[0] if devices else None
        self._device_of = {
            own: device
            for _, *copies in self._places
            for own, device in zip(copies, devices[1:], strict=True)
        }
        self.keep()

    def _look(self) -> None:
        """Which attributes, by their modules' numbers and by names, are more than simple values.

        After every pass, because forward may have made some.
        """
        seen = set[int]()
        self._tensors: set[tuple[int, str]] = set()
        self._with_contents: list[tuple[int, str]] = []
        for number, held in enumerate(self._held):
            for name in held.keys() - _REGISTRIES:
                value = held[name]
                if type(value) in _SIMPLE or id(value) in seen:
                    continue
                if isinstance(value, Tensor):
                    self._tensors.add((number, name))
                elif type(value) in _CONTAINERS or _has_settings(value):
                    self._with_contents.append((number, name))
                    if type(value) not in _CONTAINERS:  # all modules of a replica share its copy
                        seen.add(id(value))

    def keep(self, idle: Collection[int] = ()) -> None:
        """A forward pass has ended, in which these replicas had no shard.

        They take over what the module has made in it; the others have made their own.
        """
        self._idle = idle
        self._held = [dict(vars(module)) for module, *_ in self._places]
        self._look()
        self._versions = {
            (number, name): version(self._held[number][name]) for number, name in self._tensors
        }
        self._contents = [
            _content(self._held[number][name]) for number, name in self._with_contents
        ]

    def let_go(self) -> None:
        """A forward pass begins; what it replaces need not stay in memory."""
        values = {place: vars(self._places[place[0]][0]).get(place[1]) for place in self._tensors}
        self._results = {
            place: weakref.ref(value) for place, value in values.items() if _is_result(value)
        }
        self._held.clear()

    def follow(self) -> bool:
        """Set in the replicas what has changed; False if that takes new replicas."""
        if not self._held and self._places:  # the last pass was interrupted before `keep`
            return False
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
        return self._follow_contents()

    def _follow_contents(self) -> bool:
        for (number, name), known in zip(self._with_contents, self._contents, strict=True):
            module, *copies = self._places[number]
            value = vars(module)[name]
            content = _content(value)
            changed = content != known
            if changed and (content is None or known is None or _is_retyped(value, content, known)):
                return False
            if content is None:
                continue
            for own in self._behind(copies, changed):
                if type(value) in _CONTAINERS:
                    vars(own)[name] = content.copy()
                elif vars(own).get(name) is not value and type(vars(own).get(name)) is type(value):
                    _set_settings(vars(own)[name], content, known)
        return True

    def _follow_tensor(
        self, number: int, name: str, value: Tensor, copies: Sequence[nn.Module]
    ) -> None:
        place = number, name
        known = self._versions.get(place, version(value))
        self._tensors.add(place)
        is_new = self._held[number].get(name) is not value
        if _is_result(value):  # forward has left it, and each replica has its own
            behind = copies if is_new else ()
        else:
            behind = self._behind(copies, is_new or known != version(value))
        for own in behind:
            device = self._device_of[own] if value.device == self._home else value.device
            # Even if this pass has no gradients, a later one may train with the copy.
            with torch.inference_mode(False), torch.enable_grad():
                if _is_result(value):
                    vars(own)[name] = value.to(device)
                else:
                    vars(own)[name] = value.detach().to(device, copy=True)

    def _behind(self, copies: Sequence[nn.Module], changed: bool) -> list[nn.Module]:
        """Those of all replicas, if the module has changed, else of those that were idle."""
        return [
            own for replica, own in enumerate(copies, start=1) if changed or replica in self._idle
        ]

    def warn_of_results(self) -> None:
        """Warn of tensors with a graph that the last pass has left in the module's attributes.

        Not in a module with hooks that run before forward: these leave the weight that they have
        computed, as that of ``weight_norm``.
        """
        for number, held in enumerate(self._held):
            module = self._places[number][0]
            for name, value in held.items():
                before = self._results.get((number, name), lambda: None)()
                if _is_result(value) and value is not before and not module._forward_pre_hooks:
                    warnings.warn(
                        f"DataParallel: forward has set {type(module).__name__}.{name} to a tensor "
                        "with a graph. The model has that of the first shard only, so a loss made "
                        "of it lacks the other shards; have forward return it",
                        stacklevel=2,
                    )


def _is_result(value: Any) -> bool:
    return isinstance(value, Tensor) and value.grad_fn is not None


def _has_settings(value: Any) -> bool:
    others = nn.Module | Tensor | type | FunctionType | MethodType | ModuleType
    return hasattr(value, "__dict__") and not isinstance(value, others)


def _spaces(value: Any) -> list[dict[Any, Any]]:
    """Where an object has numbers and strings: its attributes, and its items if it is a dict."""
    return [vars(value), value] if isinstance(value, dict) else [vars(value)]


def _content(value: Any) -> Any:
    """What can be compared with the same object later; None for contents that cannot."""
    if type(value) in _CONTAINERS:
        items = [*value, *value.values()] if isinstance(value, dict) else value
        return value.copy() if all(map(_is_simple, items)) else None
    if _has_settings(value):
        spaces = map(dict.items, _spaces(value))
        return [{name: x for name, x in space if _is_simple(x)} for space in spaces]
    return None


def _is_retyped(value: Any, content: Any, known: Any) -> bool:
    """Whether what was a number or a string of an object is now something else."""
    return type(value) not in _CONTAINERS and any(
        not before.keys() & space.keys() <= now.keys()
        for space, now, before in zip(_spaces(value), content, known, strict=True)
    )


def _set_settings(own: Any, content: Any, known: Any) -> None:
    """Give a replica's ``own`` an object's numbers and strings, which were the ``known``."""
    for space, now, before in zip(_spaces(own), content, known, strict=True):
        dict.update(space, now)
        for gone in before.keys() - now.keys():
            dict.pop(space, gone, None)


def _is_simple(value: Any) -> bool:
    """Whether it is a number, also one of NumPy's, a string, a name of an Enum, or a tuple of such,
    which nothing can change inside."""
    if type(value) in _SIMPLE or isinstance(value, numbers.Number | str | enum.Enum):
        return True
    return type(value) is tuple and all(map(_is_simple, value))


def version(value: Any) -> int:
    """How often a tensor has been written to."""
    return value._version if isinstance(value, Tensor) and not value.is_inference() else 0
