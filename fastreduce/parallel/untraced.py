"""Keeps torch.compile out of functions that it cannot trace."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def untraced(function: Callable[P, R]) -> Callable[P, R]:
    """The same function, which torch.compile calls and does not look into.

    Asking it for that imports it, which takes a second; where nobody has imported it, nobody
    compiles.
    """
    run = function

    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal run
        if run is function and "torch._dynamo" in sys.modules:
            run = torch._dynamo.disable(function)  # type: ignore[no-untyped-call]
        return run(*args, **kwargs)

    # A code object of its own: torch.compile keeps only a few versions of each code object, and all
    # functions that are decorated here would share one.
    called.__code__ = called.__code__.replace()
    return functools.wraps(function)(called)
