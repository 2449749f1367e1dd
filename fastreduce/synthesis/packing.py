"""Packs trees into a topology, and proves how good the packing is.

Along a tree, ranks are summed to its root and the sum is spread again: each link of the tree
carries each byte once in each direction. Different trees take different parts of the data. The best
packing is a linear program whose columns are trees; new columns are the cheapest trees at the
program's prices (column generation). The same prices prove a bound, see `Packing.bound_s`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastreduce.simulation.run import bytes_per_s

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from fastreduce.topology import Topology

Floats: TypeAlias = NDArray[np.float64]
Tree: TypeAlias = tuple[tuple[int, int], ...]

# Trees before the first linear program, and programs after it. Presets need 1 to 6 programs, and 64
# GPUs on 8 machines less than 10.
WARM_UP, PROGRAMS = 40, 40
CLOSE = 1e-3  # the gap at which to stop
# Times of a linear program, in its unit: the solver refuses what is beyond 1e15. A tree over a link
# that is slower than others by as much gets no share of the data, whatever it is.
LONGEST = 1e12


class Links:
    """The links that messages between a topology's first k devices use.

    Raises:
        ValueError: the bandwidth of a link is unknown.
    """

    def __init__(self, topology: Topology, k: int) -> None:
        from scipy.sparse import csr_array

        devices = topology.devices[:k]
        self.k, self.devices = k, set(devices)
        self.pairs = [(i, j) for i in range(k) for j in range(k) if i != j]
        routes = [topology.route(devices[i], devices[j]) for i, j in self.pairs]
        self.names = list(dict.fromkeys(link for route in routes for link in route))
        number = {link: i for i, link in enumerate(self.names)}
        # The other direction of each link, or the link itself.
        self.back = np.array([number.get((b, a), i) for i, (a, b) in enumerate(self.names)])
        self.media = [topology.graph.edges[link]["medium"] for link in self.names]
        self.bytes_per_s = np.array([bytes_per_s(topology, link) for link in self.names])
        self.latency_s = np.zeros((k, k))
        for pair, route in zip(self.pairs, routes, strict=True):
            self.latency_s[pair] = topology.latency_s(route)
        rows = np.repeat(np.arange(len(self.pairs)), [len(route) for route in routes])
        columns = np.array([number[link] for route in routes for link in route], dtype=np.intp)
        shape = len(self.pairs), len(self.bytes_per_s)
        self._uses: csr_array = csr_array((np.ones(len(rows)), (rows, columns)), shape)
        self._routes = [[number[link] for link in route] for route in routes]
        self._row = {pair: row for row, pair in enumerate(self.pairs)}

    def slow(self) -> Iterator[int]:
        """The links with less than half of the rate that is usual for their medium, by number."""
        for number, medium in enumerate(self.media):
            usual = np.median(self.bytes_per_s[[x == medium for x in self.media]])
            if self.bytes_per_s[number] < usual / 2:
                yield number

    def avoiding(self, numbers: Sequence[int], times: float) -> Links:
        """These links, of which some are so much slower than the others that trees avoid them.

        They are as slow whatever their own rates, so that the same trees are found.
        """
        found = copy(self)
        found.bytes_per_s = self.bytes_per_s.copy()
        found.bytes_per_s[numbers] = np.delete(self.bytes_per_s, numbers).min() / times
        return found

    def prices(self, link_prices: Floats) -> Floats:
        """What a message from rank i to rank j costs: the sum over its links."""
        found = np.zeros((self.k, self.k))
        found[tuple(np.array(self.pairs).T)] = self._uses @ link_prices
        return found

    def moved(self, image: Sequence[int]) -> NDArray[np.intp] | None:
        """If rank r becomes ``image[r]``: which link each one becomes; None if that is not as good.

        >>> from fastreduce.topology import preset
        >>> links = Links(preset("pcie4-x8"), 8)  # ranks 0 to 3 on one socket, 4 to 7 on the other
        >>> [links.moved(x) is None for x in ([1, 2, 0, 3, 4, 5, 6, 7], [0, 1, 2, 4, 3, 5, 6, 7])]
        [False, True]
        """
        found = np.full(len(self.names), -1)
        for (i, j), route in zip(self.pairs, self._routes, strict=True):
            other = self._routes[self._row[image[i], image[j]]]
            if len(other) != len(route) or ((found[route] != -1) & (found[route] != other)).any():
                return None
            found[route] = other
        same = (self.bytes_per_s[found] == self.bytes_per_s).all()
        near = self.latency_s[np.ix_(image, image)] == self.latency_s
        return found if same and near.all() and len({*found}) == len(found) else None

    def earliest_s(self, ramp_bytes: float) -> Floats:
        """For each link, how long after its launch the first message on it begins to move."""
        crossed, begins = self._uses.indices, self._uses.indptr[:-1]
        full_rate = np.minimum.reduceat(self.bytes_per_s[crossed], begins)
        delay_s = self.latency_s[tuple(np.array(self.pairs).T)] + ramp_bytes / full_rate
        found = np.full(len(self.bytes_per_s), math.inf)
        np.minimum.at(found, crossed, np.repeat(delay_s, [len(x) for x in self._routes]))
        return found

    def busy_s(self, messages: Mapping[tuple[int, int], float]) -> Floats:
        """How long each link is busy with so many bytes from rank i to rank j."""
        found = np.zeros(len(self.pairs))
        for pair, nbytes in messages.items():
            found[self._row[pair]] += nbytes
        busy_s: Floats = (self._uses.T @ found) / self.bytes_per_s
        return busy_s

    def tree_s(self, tree: Tree) -> Floats:
        """How long each link is busy if each edge of a tree carries a byte in each direction."""
        return self.busy_s(
            {pair: 1.0 for one, other in tree for pair in ((one, other), (other, one))}
        )


class Packing(NamedTuple):
    """Trees and their shares of the data, in descending order.

    For each byte on every rank the busiest link is busy for ``time_s``. No program needs less than
    ``bound_s``: at certain prices, with which one second of all links costs 1, each tree costs at
    least that much, and whatever moves each rank's data to all ranks costs no less than the
    cheapest tree (Tutte and Nash-Williams: however the ranks are divided into m parts, at least
    2 (m - 1) messages lead from part to part). ``prices`` are those prices, of a second of each
    link.
    """

    trees: tuple[Tree, ...]
    shares: tuple[float, ...]
    time_s: float
    bound_s: float
    prices: Floats


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
    for link_prices in search.obvious_prices():
        search.add(link_prices)
    search.warm_up()
    if not programs:
        return Packing((), (), math.inf, search.bound_s, search.prices)
    time_s, shares, dual = search.solve()
    for _ in range(programs):
        if search.bound_s >= time_s * (1 - CLOSE):
            break
        # The program's own prices jump; on the way from the best so far they lead to it sooner.
        search.add(dual / dual.sum())
        search.add(0.3 * dual / dual.sum() + 0.7 * search.center)
        time_s, shares, dual = search.solve()
    order = [int(i) for i in np.argsort(-shares) if shares[i] > 1e-6]
    of_data = [float(shares[i]) for i in order]
    trees = tuple(search.trees[i] for i in order)
    return Packing(
        trees, tuple(x / sum(of_data) for x in of_data), time_s, search.bound_s, search.prices
    )


class _Search:
    """Trees so far, and the best bound so far with its prices."""

    def __init__(self, links: Links) -> None:
        self.links = links
        self.trees: list[Tree] = []
        self.columns: list[Floats] = []
        self.bound_s = 0.0
        self.prices = self.center = np.full(len(links.bytes_per_s), 1 / len(links.bytes_per_s))

    def obvious_prices(self) -> Iterator[Floats]:
        """Around each device, between machines or sockets: all links of a kind cost alike."""
        links = self.links
        kinds = [[medium == kind for medium in links.media] for kind in sorted({*links.media})]
        for chosen in ([link[0] in links.devices for link in links.names], *kinds):
            prices = np.array(chosen) * links.bytes_per_s
            yield prices / prices.sum()
        for device in sorted(links.devices):
            prices = np.array([device in link for link in links.names]) * links.bytes_per_s
            yield prices / prices.sum()

    def add(self, shares: Floats) -> Floats:
        """Add the cheapest tree where a second of link l costs ``shares[l]``, of 1 in all."""
        shares = (shares + shares[self.links.back]) / 2  # trees use both directions alike
        prices = self.links.prices(shares / self.links.bytes_per_s)
        tree = cheapest_tree(prices + prices.T)
        least = np.minimum(prices, prices.T)
        bound_s = 2 * float(sum(least[edge] for edge in cheapest_tree(least)))
        if bound_s > self.bound_s:
            self.bound_s, self.prices, self.center = bound_s, shares, shares
        self.trees.append(tree)
        self.columns.append(self.links.tree_s(tree))
        return self.columns[-1]

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

    idle = np.zeros((1, busy.shape[0])) if idle is None else idle
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
