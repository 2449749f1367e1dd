"""Packs trees into a topology, and proves how good the packing is.

Along a tree, ranks are summed to its root and the sum is spread again: each link of the tree
carries each byte once in each direction. Different trees take different parts of the data. The best
packing is a linear program whose columns are trees; new columns are the cheapest trees at the
program's prices (column generation). The same prices prove a bound, see `Packing.bound_s`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fastreduce.topology.cuts import slowest_cut
from fastreduce.topology.traffic import Floats, Links, Tree

if TYPE_CHECKING:
    from scipy.sparse import csr_array

# Trees before the first linear program, and linear programs after it. Presets need 1 to 6 of them,
# and 64 GPUs on 8 machines less than 10 (counted on 2026-11-25).
WARM_UP, PROGRAMS = 40, 40
CLOSE = 1e-3  # the gap at which to stop
# Times of a linear program, in its unit: the solver refuses what is beyond 1e15. A tree over a link
# that is slower than others by as much gets no share of the data, whatever it is.
LONGEST = 1e12


class Pricing(NamedTuple):
    """At these prices of a second of each link, of 1 for all together, whatever moves a byte of
    each rank to all ranks costs at least ``byte_s``. So no program needs less for each byte.

    However the ranks are divided into m parts, at least 2 (m - 1) messages lead from part to part
    (Tutte and Nash-Williams), so each byte costs no less than the cheapest tree, twice.
    """

    byte_s: float
    prices: Floats


class Packing(NamedTuple):
    """Trees and their shares of the data, in descending order.

    For each byte on every rank the busiest link is busy for ``time_s``. The highest ``byte_s``
    of the ``pricings`` is the bound for many bytes. Others hold as well, and tell more of few bytes
    where their links begin late. Where links are not equally fast in both directions, one is that
    of `slowest_cut`, which trees need not reach.
    """

    trees: tuple[Tree, ...]
    shares: tuple[float, ...]
    time_s: float
    pricings: tuple[Pricing, ...]

    @property
    def bound_s(self) -> float:
        return max(pricing.byte_s for pricing in self.pricings)


def cheapest_tree(prices: Floats) -> Tree:
    """The cheapest tree over all ranks (Prim), as pairs (nearer to rank 0, farther).

    >>> cheapest_tree(np.array([[0.0, 1, 9], [1, 0, 2], [9, 2, 0]]))
    ((0, 1), (1, 2))
    """
    k = len(prices)
    near, cost = np.zeros(k, dtype=np.intp), prices[0].copy()
    left = np.full(k, True)
    left[0] = False
    edges = []
    for _ in range(k - 1):
        rank = int(np.argmin(np.where(left, cost, math.inf)))
        edges.append((int(near[rank]), rank))
        left[rank] = False
        closer = (prices[rank] < cost) & left
        cost[closer], near[closer] = prices[rank][closer], rank
    return tuple(edges)


def pack(links: Links, programs: int = PROGRAMS) -> Packing:
    """The best packing of trees that is found with so many linear programs, for one byte on each
    rank. Without one there is only the bound.

    >>> from fastreduce.topology import preset
    >>> found = pack(Links(preset("dgx1"), 8))
    >>> round(found.time_s * 1e12, 2), round(found.bound_s / found.time_s, 3)
    (12.82, 1.0)
    """
    search = _Search(links)
    if not search.are_alike:
        search.note(*slowest_cut(links))
        # Divisions, whose messages go either way.
        for byte_s, prices in pack(links.evened(), programs).pricings:
            search.note(byte_s, links.one_price(prices))
    for link_prices in search.obvious_prices(of_trees=programs > 0):
        search.add(link_prices)
    search.warm_up()
    if not programs:
        return Packing((), (), math.inf, tuple(search.pricings))
    time_s, shares, dual = search.solve()
    for _ in range(programs):
        if search.bound_s >= time_s * (1 - CLOSE):
            break
        # The prices of a linear program jump from one to the next. So a point between them and the
        # best prices so far is tried too, which needs fewer linear programs.
        search.add(dual / dual.sum())
        search.add(0.3 * dual / dual.sum() + 0.7 * search.center)
        time_s, shares, dual = search.solve()
    order = [int(i) for i in np.argsort(-shares) if shares[i] > 1e-6]
    of_data = [float(shares[i]) for i in order]
    trees = tuple(search.trees[i] for i in order)
    return Packing(trees, tuple(x / sum(of_data) for x in of_data), time_s, tuple(search.pricings))


class _Search:
    """Trees and pricings so far."""

    def __init__(self, links: Links) -> None:
        self.links, self.are_alike = links, links.are_alike_both_ways
        self.trees: list[Tree] = []
        self.columns: list[Floats] = []
        self.pricings: list[Pricing] = []
        self.bound_s = 0.0
        self.center = np.full(len(links.bytes_per_s), 1 / len(links.bytes_per_s))

    def obvious_prices(self, of_trees: bool) -> Iterator[Floats]:
        """Around each device, between machines or sockets: all links of a kind cost alike.

        Those around devices with equal links give other trees, but equal bounds.
        """
        links, known = self.links, set()
        kinds = [[medium == kind for medium in links.media] for kind in sorted({*links.media})]
        for chosen in ([link[0] in links.devices for link in links.names], *kinds):
            prices = np.array(chosen) * links.bytes_per_s
            yield prices / prices.sum()
        for device in links.devices:
            around = np.array([device in link for link in links.names])
            rates = tuple(np.sort(links.bytes_per_s[around]))
            if of_trees or rates not in known:
                prices = around * links.bytes_per_s
                yield prices / prices.sum()
            known.add(rates)

    def add(self, shares: Floats) -> Floats:
        """Add the cheapest tree where a second of link l costs ``shares[l]``, of 1 in all."""
        links = self.links
        shares = (shares + shares[links.back]) / 2  # trees use both directions alike
        prices = links.prices(shares / links.bytes_per_s)
        tree = cheapest_tree(prices + prices.T)
        if not self.are_alike:  # the bound counts messages whichever way they go
            shares = links.one_price(shares)
            prices = links.prices(shares / links.bytes_per_s)
        least = np.minimum(prices, prices.T)
        bound_s = 2 * float(sum(least[edge] for edge in cheapest_tree(least)))
        if self.note(bound_s, shares):
            self.center = shares
        self.trees.append(tree)
        self.columns.append(self.links.tree_s(tree))
        return self.columns[-1]

    def note(self, byte_s: float, prices: Floats) -> bool:
        """Whether it is the best so far. Where some ranks are joined for nothing, it is none."""
        if byte_s > 0:
            self.pricings.append(Pricing(byte_s, prices))
        best = byte_s > self.bound_s
        self.bound_s = max(self.bound_s, byte_s)
        return best

    def warm_up(self) -> None:
        """Prices that rise on the links that trees crowd (multiplicative weights)."""
        crowd = np.zeros(len(self.links.bytes_per_s))
        for _ in range(WARM_UP):
            heat = 0.3 * crowd / self.bound_s
            shares = np.exp(heat - heat.max())
            crowd += self.add(shares / shares.sum())
        self.center = shares / shares.sum()

    def solve(self) -> tuple[float, Floats, Floats]:
        """The busiest link's seconds with the best shares of the trees, these, and the prices."""
        # In units of the bound: the solver takes 1e-9 for nothing.
        time_s, shares, dual = least_busy(np.array(self.columns).T / self.bound_s)
        return time_s * self.bound_s, shares, dual


def least_busy(
    busy: Floats | csr_array, idle: Floats | None = None
) -> tuple[float, Floats, Floats]:
    """The shares of the columns, of 1 in all, with which the busiest link is busy for the shortest
    time: this time, the shares, and the prices of the rows.

    Rows are links. If there are ``idle`` times, of each turn (row) and link (column), then each
    link has a row for each turn, turn by turn, and the sum of the turns' times is the least: a turn
    is as long as its busiest link is busy and idle.
    """
    from scipy.optimize import linprog
    from scipy.sparse import csr_array, eye_array, hstack, kron

    idle = np.zeros((1, busy.shape[0])) if idle is None else np.minimum(idle, LONGEST)
    busy = csr_array(busy)
    busy.data = np.minimum(busy.data, LONGEST)
    (turns, links), columns = idle.shape, busy.shape[1]
    lengths = kron(eye_array(turns), np.ones((links, 1)))
    found = linprog(
        np.repeat([0.0, 1.0], [columns, turns]),
        A_ub=hstack([busy, -lengths], format="csr"),
        b_ub=-idle.ravel(),
        A_eq=csr_array([np.repeat([1.0, 0.0], [columns, turns])]),
        b_eq=[1.0],
        method="highs",
    )
    return float(found.fun), found.x[:columns], -found.ineqlin.marginals
