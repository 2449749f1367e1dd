"""Long tuples that print on one line, and some whose items are made when somebody reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, TypeVar, overload

T = TypeVar("T")


class Listing(tuple[T, ...]):
    """A tuple that names its first item and its length, where a tuple would print every item.

    >>> Listing([3, 1, 2])
    (3, ... 3 in all)
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"({self[0]!r}, ... {len(self)} in all)" if len(self) > 1 else super().__repr__()


class LazyListing(Sequence[T]):
    """A `Listing` of ``count`` items that ``make`` makes, all of them when the first one is read.

    >>> squares = LazyListing(3, lambda: (i * i for i in range(3)))
    >>> len(squares), squares[-1], squares == (0, 1, 4)
    (3, 4, True)
    """

    def __init__(self, count: int, make: Callable[[], Iterable[T]]) -> None:
        self._count, self._make = count, make

    @cached_property
    def items(self) -> Listing[T]:
        return Listing(self._make())

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...
    def __getitem__(self, index: Any) -> Any:
        return self.items[index]

    def __eq__(self, other: object) -> bool:
        return self.items == (other.items if isinstance(other, LazyListing) else other)

    def __hash__(self) -> int:
        return hash(self.items)

    def __repr__(self) -> str:
        return repr(self.items)

    def __reduce__(self) -> tuple[type[Listing[T]], tuple[tuple[T, ...]]]:
        return Listing, (tuple(self.items),)
