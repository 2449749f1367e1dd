"""Objects among the arguments: all shards get the same, so what one changes the next would see."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from fastreduce.parallel.attributes import version
from fastreduce.parallel.trees import Whole, leaves_of

# How many objects inside each other are searched for tensors; a cache of 100 layers has 400.
MOST_OBJECTS = 10_000


@contextmanager
def unchanged_objects(arguments: Any, shards: int) -> Iterator[None]:
    """Raises ValueError if shards leave tensors in an object that is among the arguments."""
    if shards == 1:
        yield
        return
    leaves = [x.value if isinstance(x, Whole) else x for x in leaves_of(arguments)[0]]
    objects = [x for x in leaves if _has_attributes(x)]
    before = [_tensors(x) for x in objects]

    def check(cause: Exception | None = None) -> None:
        for value, held in zip(objects, before, strict=True):
            if _tensors(value) != held:
                raise ValueError(
                    f"DataParallel: forward has written to the {type(value).__name__} among its "
                    "arguments, which all shards get, so that each takes what another has left for "
                    "its own. A cache of keys and values can be left out (use_cache=False), or "
                    "call the plain module: model.module(...), model.module.generate(...)"
                ) from cause

    try:
        yield
    except Exception as error:
        check(error)
        raise
    check()


def _has_attributes(value: Any) -> bool:
    others = (Tensor, nn.Module, ModuleType, type)
    return hasattr(value, "__dict__") and not isinstance(value, others) and not callable(value)


def _tensors(value: Any) -> list[tuple[int, int, Tensor]]:
    """All that an object holds, directly or through others: which one, how often it was written to,
    and the tensor itself, so that no other gets its number."""
    found = []
    seen: set[int] = set()
    left = [value]
    while left and len(seen) < MOST_OBJECTS:
        value = left.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            found.append((id(value), version(value), value))
        elif isinstance(value, list | tuple):
            left += value
        elif isinstance(value, dict):
            left += value.values()
        elif _has_attributes(value):
            left += vars(value).values()
    return found
