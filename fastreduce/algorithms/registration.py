"""The algorithms by name. An algorithm is a pure function ``k -> Program``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar

from fastreduce.program import Program

Algorithm: TypeAlias = Callable[[int], Program]
_Algorithm = TypeVar("_Algorithm", bound=Algorithm)

registry: dict[str, Algorithm] = {}
_built_in: set[str] = set()
_on_change: list[Callable[[], None]] = []


def algorithm(name: str) -> Callable[[_Algorithm], _Algorithm]:
    """Register a function ``k -> Program`` as ``algorithm=name`` of `fastreduce.allreduce`.

    The program is verified once for each k, at its first use. Registering a name of one's own again
    replaces the earlier function, so a notebook cell can be run twice.

    Raises:
        ValueError: no name, "auto", or the name of an algorithm of the package: what plain
            ``allreduce(x)`` does must not change by accident.

    >>> import torch, fastreduce
    >>> from fastreduce import Instruction, Program
    >>> @fastreduce.algorithm("via-last")
    ... def via_last(k):
    ...     everyone = tuple(range(k))
    ...     return Program(k, 1, [Instruction(k - 1, 0, everyone, everyone)])
    >>> x = [torch.ones(3), torch.ones(3)]
    >>> fastreduce.allreduce(x, algorithm="via-last")
    >>> x[0]
    tensor([2., 2., 2.])
    """
    if not isinstance(name, str) or not name or name == "auto":
        raise ValueError(f"an algorithm needs a name other than 'auto', not {name!r}")

    def register(function: _Algorithm) -> _Algorithm:
        if name in _built_in:
            raise ValueError(
                f'{name!r} is an algorithm of fastreduce, which "auto" relies on; register '
                f"{function.__qualname__} under a name of its own"
            )
        registry[name] = function
        for changed in _on_change:
            changed()
        return function

    return register


def names() -> list[str]:
    """The names that `fastreduce.allreduce` takes, besides ``"auto"``."""
    return sorted(registry)


def built_in() -> list[str]:
    """The package's own algorithms, without those that users registered.

    >>> "ring" in built_in()
    True
    """
    return sorted(_built_in)


def seal() -> None:
    """From now on no other function can take the names that are registered."""
    _built_in.update(registry)
