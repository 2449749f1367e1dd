"""How errors list the names that are known."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


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
    near = get_close_matches(str(found).casefold(), by_small, n=1)
    return f"; did you mean {by_small[near[0]]!r}?" if near else ""
