"""What tells one loss function from another, where each step may make it anew."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping
from types import FunctionType, MethodType
from typing import Any

# How many levels of what a loss function holds are looked at: a module's buffers are two below it.
DEEP = 3


def kind_of(function: Callable[..., Any]) -> Hashable:
    """Its code, and of all that comes with it (a partial's arguments, a closure, an object's
    attributes) numbers and words by their values, and all else by its type.

    So a lambda in a loop stays the same, whatever tensors it holds; but a weight for each class
    where there was none makes another function.

    >>> import torch
    >>> kind_of(torch.nn.CrossEntropyLoss()) == kind_of(torch.nn.CrossEntropyLoss())
    True
    >>> weighted = torch.nn.CrossEntropyLoss(weight=torch.ones(3))
    >>> kind_of(torch.nn.CrossEntropyLoss()) == kind_of(weighted)
    False
    """
    return _form(function, DEEP)


def _form(value: Any, deep: int) -> Hashable:
    if value is None or isinstance(value, str | int):
        return type(value), value
    parts: list[Any] = []
    if deep == 0:
        pass
    elif isinstance(value, Mapping):
        parts = [x for pair in value.items() for x in pair]
    elif isinstance(value, tuple):  # no lists, since functions write to them
        parts = [*value]
    elif isinstance(value, functools.partial):
        parts = [value.func, value.args, value.keywords]
    elif isinstance(value, MethodType):
        parts = [value.__func__, getattr(value.__self__, "__dict__", {})]
    elif isinstance(value, FunctionType):
        parts = [value.__defaults__, *map(_content, value.__closure__ or ())]
    elif callable(value) and not isinstance(value, type):
        parts = [getattr(value, "__dict__", {})]
    code = getattr(value, "__code__", type(value))
    return code, tuple(_form(part, deep - 1) for part in parts)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the variable has no value yet
        return None
