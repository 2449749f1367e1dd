"""How errors list the names that are known, and show what was found in their place."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

_short = reprlib.Repr()
_short.maxlist = _short.maxtuple = _short.maxdict = 20
_short.maxlevel = 3
_short.maxstring = _short.maxother = 200


def shown(found: object) -> str:
    """``repr(found)`` without what is far inside: for lists that are nested deeper than Python's
    stack, repr itself raises.

    >>> shown([1, [2, [3, [4, [5]]]]])
    '[1, [2, [3, [...]]]]'
    """
    return _short.repr(found)


def counted(count: int, one: str) -> str:
    """
    >>> counted(1, "shard"), counted(2000, "shard")
    ('1 shard', '2,000 shards')
    """
    return f"{count:,} {one}{'s' * (count != 1)}"


def ranks_named(names: Sequence[str]) -> str:
    """
    >>> ranks_named(["1"]), ranks_named(["1", "2"])
    ('rank 1', 'ranks 1, 2')
    """
    return f"rank{'s' * (len(names) > 1)} {', '.join(names)}"


def listed(known: Iterable[str], found: object) -> str:
    """The known names, and which of them was perhaps meant by ``found``.

    >>> listed(["leader", "ring", "tree"], "rnig")
    "leader, ring, tree; did you mean 'ring'?"
    >>> listed(["leader", "ring"], "fastest")
    'leader, ring'
    """
    names = list(known)
    return ", ".join(names) + meant(names, found)


def meant(known: Iterable[str], found: object) -> str:
    """Only which of the known names was perhaps meant, where they would be too many to list.

    >>> meant(["0.weight", "0.bias"], "O.weight")
    "; did you mean '0.weight'?"
    """
    by_small = {name.casefold(): name for name in known}
    name = str(found) if isinstance(found, str | int) else ""
    near = get_close_matches(name.casefold(), by_small, n=1)
    return f"; did you mean {by_small[near[0]]!r}?" if near else ""
