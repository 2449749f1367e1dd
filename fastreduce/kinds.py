"""Whether a value is a number, or what else it must be. Python takes True and False for whole
numbers; here they are none."""

from __future__ import annotations

from numbers import Integral, Real

from fastreduce.names import shown


def is_whole(found: object) -> bool:
    """
    >>> is_whole(3), is_whole(3.0), is_whole(True)
    (True, False, False)
    """
    return isinstance(found, Integral) and not isinstance(found, bool)


def is_number(found: object) -> bool:
    """
    >>> is_number(3), is_number(3.5), is_number(True)
    (True, True, False)
    """
    return isinstance(found, Real) and not isinstance(found, bool)


KINDS: dict[type, str] = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}


def check_kind(what: str, found: object, kind: type) -> None:
    """Raise ValueError unless ``found``, from a JSON file, is of ``kind``, one of `KINDS`.

    >>> check_kind("nodes", 3, list)
    Traceback (most recent call last):
    ValueError: nodes is 3, want a list
    """
    types = (int, float) if kind is float else kind
    if not isinstance(found, types) or isinstance(found, bool) != (kind is bool):
        raise ValueError(f"{what} is {shown(found)}, want {KINDS[kind]}")
