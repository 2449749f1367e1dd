"""The algorithms by name. An algorithm is a pure function ``k -> Program``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar

from fastreduce.names import listed
from fastreduce.program import Program
from fastreduce.program.files import cached

Algorithm: TypeAlias = Callable[[int], Program]
_Algorithm = TypeVar("_Algorithm", bound=Algorithm)

registry: dict[str, Algorithm] = {}
_built_in: set[str] = set()
_on_change: list[Callable[[], None]] = []

# What "auto" stands for where no other algorithm can be named: between processes, and for the
# other collectives.
INTERNAL = ("direct", "pull", "pulled-leader")

# What stands before the path of a saved program, where a name is wanted.
FILE = "file:"

# Programs and functions that were passed to calls instead of a name, by the name made for them. The
# limit is more than a notebook tries; beyond it the oldest is forgotten, and gets a new name if it
# is passed again.
_unnamed: dict[str, Algorithm] = {}
_MOST_UNNAMED = 256
_count = 0


def algorithm(name: str) -> Callable[[_Algorithm], _Algorithm]:
    """Register a function ``k -> Program`` as ``algorithm=name`` of `fastreduce.allreduce`.

    The program is verified once for each k, at its first use. Registering the same name again
    replaces the earlier function, so a notebook cell can be run twice.

    Raises:
        TypeError: what is registered is no function.
        ValueError: an empty name, space around it, "auto", or the name of an algorithm of the
            package, because what plain ``allreduce(x)`` does must not change by accident.

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
    if not isinstance(name, str) or name in ("", "auto") or name.startswith(FILE):
        raise ValueError(
            f"an algorithm needs a name other than 'auto', and without 'file:', not {name!r}"
        )
    if name != name.strip() or not name.isprintable():
        raise ValueError(
            f"an algorithm needs a name without space around it and in one line, not {name!r}"
        )

    def register(function: _Algorithm) -> _Algorithm:
        if not callable(function):
            raise TypeError(
                f"algorithm {name!r}: found {type(function).__name__}, want a function from the "
                "number of ranks to a Program"
            )
        if name in _built_in or name in INTERNAL:
            raise ValueError(
                f'{name!r} is a name of fastreduce\'s own, which "auto" relies on; register your '
                "function under another name"
            )
        registry[name] = function
        _changed()
        return function

    return register


def find(name: str) -> Algorithm:
    """The algorithm of this name, or the program in the file that "file:PATH" names.

    Raises:
        OSError: the file cannot be read.
        ValueError: there is none, or the file is wrong; the message lists the known names.

    >>> find("ring")(2).k
    2
    """
    if name.startswith(FILE):
        path = name.removeprefix(FILE)
        if not path:
            raise ValueError(f"algorithm {name!r} names no file, want such as 'file:mine.json'")
        return _Given(cached(path, _changed))
    if name == "auto":
        raise ValueError(f'"auto" chooses for a call; want one of {", ".join(names())}')
    found = registry.get(name) or _unnamed.get(name)
    if found is None:
        known = listed(["auto", *names()], name)
        raise ValueError(f"unknown algorithm {name!r}; known are {known}")
    return found


def name_of(chosen: str | Algorithm | Program) -> str:
    """The name under which the extension knows an ``algorithm`` argument.

    Raises:
        TypeError: it is neither a name, a program, nor a function.

    >>> from fastreduce.algorithms import ring
    >>> name_of("ring"), name_of(ring), name_of(ring(4)).startswith("program ")
    ('ring', 'ring', True)
    """
    global _count
    if isinstance(chosen, str):
        return chosen
    if not isinstance(chosen, Program) and not callable(chosen):
        raise TypeError(
            f"algorithm is {type(chosen).__name__}; want a name, a Program, or a function from the "
            "number of ranks to a Program"
        )
    for name, known in (*registry.items(), *_unnamed.items()):
        if known is chosen or (isinstance(known, _Given) and known.program == chosen):
            return name
    _count += 1
    name = f"program {_count}" if isinstance(chosen, Program) else f"function {_count}"
    _unnamed[name] = _Given(chosen) if isinstance(chosen, Program) else chosen
    if len(_unnamed) > _MOST_UNNAMED:
        del _unnamed[next(iter(_unnamed))]
        _changed()
    return name


def described(name: str) -> str:
    """How errors call an algorithm: one that was passed to a call has a name that nobody gave.

    >>> described("ring")
    "algorithm 'ring'"
    """
    if name in _unnamed:
        kind = "program" if isinstance(_unnamed[name], _Given) else "function"
        return f"the {kind} passed as algorithm="
    return f"algorithm {name!r}"


class _Given:
    """A program as an algorithm; `fastreduce.algorithms.collectives.program` compares its k."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def __call__(self, k: int) -> Program:
        return self.program


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
    """From now on nobody can register the names that are registered now."""
    _built_in.update(registry)


def on_change(call: Callable[[], None]) -> None:
    """Call ``call`` whenever a name gets another function, or a function loses its name."""
    _on_change.append(call)


def _changed() -> None:
    for call in _on_change:
        call()
