"""Long tuples that print on one line."""

import pickle

import pytest

from fastreduce.listing import Listing


@pytest.mark.parametrize(
    ("items", "text"),
    [
        ([], "()"),
        ([7], "(7,)"),
        ([7, 8], "(7, ... 2 in all)"),
        (range(10**5), "(0, ... 100000 in all)"),
    ],
)
def test_says_the_first_and_how_many(items, text):
    assert repr(Listing(items)) == str(Listing(items)) == text


def test_is_the_tuple_in_all_else():
    found = Listing([1, 2])
    assert found == (1, 2) and hash(found) == hash((1, 2)) and sorted(found) == [1, 2]
    assert pickle.loads(pickle.dumps(found)) == found
