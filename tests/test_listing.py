"""Long tuples that print on one line."""

import pickle

import pytest

from fastreduce.listing import LazyListing, Listing


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


class TestLazily:
    def counting(self):
        made = []
        return made, LazyListing(3, lambda: made.append(0) or (7, 8, 9))

    def test_is_made_once_when_read(self):
        made, lazy = self.counting()
        assert len(lazy) == 3 and made == []
        assert (lazy[0], lazy[-1], lazy[1:], list(lazy), 8 in lazy) == (
            7,
            9,
            (8, 9),
            [7, 8, 9],
            True,
        )
        assert made == [0]

    def test_is_the_listing_in_all_else(self):
        _, lazy = self.counting()
        _, other = self.counting()
        assert lazy == other == (7, 8, 9) != (7, 8)
        assert hash(lazy) == hash((7, 8, 9)) and repr(lazy) == "(7, ... 3 in all)"
        again = pickle.loads(pickle.dumps(lazy))
        assert isinstance(again, Listing) and again == lazy
