"""Long tuples that print on one line."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


class Listing(tuple[T, ...]):
    """A tuple that names its first item and its length, where a tuple would print every item.

    >>> Listing([3, 1, 2])
    (3, ... 3 in all)
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"({self[0]!r}, ... {len(self)} in all)" if len(self) > 1 else super().__repr__()
