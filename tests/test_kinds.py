"""What a value from a file must be: errors say what was found, and True is no number."""

import pytest

from fastreduce.kinds import KINDS, check_kind

RIGHT = {str: "leader", int: 3, float: 3.5, bool: False, list: [1], dict: {"k": 4}}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_takes_its_own_values_only(kind):
    taken = {int, float} if kind is float else {kind}  # JSON may write a number as 3
    for other, found in RIGHT.items():
        if other in taken:
            check_kind("x", found, kind)
        else:
            with pytest.raises(ValueError, match=f"^x is .*, want {KINDS[kind]}$"):
                check_kind("x", found, kind)


def test_an_error_shows_only_the_beginning_of_what_is_long():
    with pytest.raises(ValueError, match=r"nodes is \[1, 1, .*\.\.\.\], want an object") as error:
        check_kind("nodes", [1] * 300_000, dict)
    assert len(str(error.value)) < 200
