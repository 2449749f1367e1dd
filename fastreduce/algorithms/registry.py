"""The algorithms by name. An algorithm is a pure function ``k -> Program``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar

from fastreduce.program import Program

Algorithm: TypeAlias = Callable[[int], Program]
_Algorithm = TypeVar("_Algorithm", bound=Algorithm)

registry: dict[str, Algorithm] = {}
_on_change: list[Callable[[], None]] = []


def algorithm(name: str) -> Callable[[_Algorithm], _Algorithm]:
    """Register a function ``k -> Program`` as ``algorithm=name`` of `fastreduce.allreduce`.

    The program is verified once for each k, at its first use. Registering a name again replaces
    the earlier function, so a notebook cell can be run twice.

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
        registry[name] = function
        for changed in _on_change:
            changed()
        return function

    return register


def names() -> list[str]:
    """The names that `fastreduce.allreduce` takes, besides ``"auto"``."""
    return sorted(registry)
