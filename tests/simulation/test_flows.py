"""Max-min fair sharing: what makes it so, and transfers that come and go."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastreduce import _C
from fastreduce.simulation.flows import max_min

CASES = [
    ("one alone", [[0]], [1], [10], [10]),
    ("two share", [[0]], [2], [10], [5]),
    ("the narrow link decides", [[0, 1]], [1], [10, 4], [4]),
    ("what one leaves another takes", [[0], [0, 1], [1]], [1, 1, 1], [10, 4], [8, 2, 2]),
    ("three levels", [[0, 1], [1, 2], [2]], [1, 2, 1], [1, 4, 10], [1, 1.5, 7]),
    ("nobody on a path", [[0], [0]], [0, 2], [6], [0, 3]),
    ("no paths", [], [], [6], []),
]


@pytest.mark.parametrize("paths, counts, capacity, expected", [c[1:] for c in CASES])
def test_rates(paths, counts, capacity, expected):
    found = max_min(paths, np.array(counts, float), np.array(capacity, float))
    assert found == pytest.approx(expected)


@st.composite
def networks(draw):
    capacity = draw(st.lists(st.integers(1, 40), min_size=1, max_size=6))
    links = st.lists(st.integers(0, len(capacity) - 1), min_size=1, max_size=4, unique=True)
    paths = draw(st.lists(links, min_size=1, max_size=8))
    counts = draw(st.lists(st.integers(0, 3), min_size=len(paths), max_size=len(paths)))
    return paths, counts, capacity


def overloaded(rates, paths, counts, capacity):
    """Links that would carry more than they can."""
    load = _load(rates, paths, counts, capacity)
    return [link for link, used in enumerate(load) if used > capacity[link] * (1 + 1e-9)]


def without_bottleneck(rates, paths, counts, capacity):
    """Paths without a full link on which no other is faster: they could be given more."""
    load = _load(rates, paths, counts, capacity)
    fastest = [
        max((r for r, p, n in zip(rates, paths, counts, strict=True) if n and link in p), default=0)
        for link in range(len(capacity))
    ]
    return [
        number
        for number, (rate, path) in enumerate(zip(rates, paths, strict=True))
        if counts[number]
        and not any(
            load[link] > capacity[link] * (1 - 1e-9) and rate > fastest[link] * (1 - 1e-9)
            for link in path
        )
    ]


def _load(rates, paths, counts, capacity):
    load = [0.0] * len(capacity)
    for rate, path, count in zip(rates, paths, counts, strict=True):
        for link in path:
            load[link] += rate * count
    return load


class TestMaxMin:
    @given(networks())
    def test_fits_and_leaves_no_one_short(self, network):
        paths, counts, capacity = network
        rates = max_min(paths, np.array(counts, float), np.array(capacity, float))
        assert overloaded(rates, *network) == []
        assert without_bottleneck(rates, *network) == []

    def test_control_both_checks_see_what_is_wrong(self):
        network = [[0], [0, 1], [1]], [1, 1, 1], [10, 4]
        assert overloaded([8.1, 2, 2], *network) == [0]
        assert without_bottleneck([5, 2, 2], *network) == [0]  # an equal share of each link
        assert without_bottleneck([7, 3, 1], *network) == [2]  # 1 while another gets 3

    @given(networks(), st.integers(2, 9))
    def test_scales_with_the_bandwidths(self, network, factor):
        paths, counts, capacity = network
        counts, capacity = np.array(counts, float), np.array(capacity, float)
        slow, fast = max_min(paths, counts, capacity), max_min(paths, counts, capacity * factor)
        assert fast == pytest.approx(slow * factor)


def by_fractions(paths, capacity, starts):
    """When each (when, path, bytes) ends: textbook water-filling, exact, one at a time."""
    left = {n: Fraction(nbytes) for n, (_, _, nbytes) in enumerate(starts)}
    waiting = sorted(range(len(starts)), key=lambda n: starts[n][0])
    now, active, ends = Fraction(0), set(), {}
    while waiting or active:
        rates, free = {}, [Fraction(c) for c in capacity]
        while len(rates) < len(active):
            open_ = [n for n in active if n not in rates]
            share = {
                link: free[link] / sum(link in paths[starts[n][1]] for n in open_)
                for n in open_
                for link in paths[starts[n][1]]
            }
            narrowest = min(share, key=lambda link: share[link])
            for n in [n for n in open_ if narrowest in paths[starts[n][1]]]:
                rates[n] = share[narrowest]
                for link in paths[starts[n][1]]:
                    free[link] -= rates[n]
        moments = [now + left[n] / rates[n] for n in active]
        then = min(moments + ([Fraction(starts[waiting[0]][0])] if waiting else []))
        for n in active:
            left[n] -= rates[n] * (then - now)
        now = then
        ends.update({n: now for n in active if left[n] == 0})
        active -= ends.keys()
        while waiting and starts[waiting[0]][0] <= now:
            active.add(waiting.pop(0))
    return [float(ends[n]) for n in range(len(starts))]


def by_network(paths, capacity, starts):
    network, now, ends = _C.Network(paths, capacity), 0.0, [0.0] * len(starts)
    waiting = sorted(range(len(starts)), key=lambda n: starts[n][0])
    while waiting or network.next_s() < float("inf"):
        left_s = network.next_s()
        if waiting:
            left_s = min(left_s, starts[waiting[0]][0] - now)
        for n in network.advance(left_s):
            ends[n] = now + left_s
        now += left_s
        while waiting and starts[waiting[0]][0] <= now + 1e-12:
            n = waiting.pop(0)
            network.start(n, starts[n][1], starts[n][2])
    return ends


class TestNetwork:
    @given(networks(), st.data())
    def test_transfers_end_when_exact_arithmetic_says(self, network, data):
        paths, _, capacity = network
        one = st.tuples(st.integers(0, 5), st.integers(0, len(paths) - 1), st.integers(1, 200))
        starts = data.draw(st.lists(one, min_size=1, max_size=8))
        found = by_network(paths, [float(c) for c in capacity], starts)
        assert found == pytest.approx(by_fractions(paths, capacity, starts))

    def test_control_fair_sharing_shows_in_the_ends(self):
        both = [(0, 0, 100), (5, 0, 100)]
        assert by_network([[0]], [10.0], both) == pytest.approx([15, 20])
        assert by_fractions([[0]], [10], both) == [15, 20]
        assert by_fractions([[0], [1]], [10, 10], [(0, 0, 100), (5, 1, 100)]) == [10, 15]

    def test_transfers_of_nothing_end_at_once(self):
        assert by_network([[0]], [10.0], [(1, 0, 0)]) == [1]

    def test_nothing_under_way_never_ends(self):
        assert _C.Network([[0]], [1.0]).next_s() == float("inf")
