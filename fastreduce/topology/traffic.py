"""The links that messages between devices use, and how long messages keep them busy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from fastreduce.topology.graph import Topology
    from fastreduce.topology.routes import Link

Floats: TypeAlias = NDArray[np.float64]
Tree: TypeAlias = tuple[tuple[int, int], ...]


def bytes_per_s(topology: Topology, link: Link) -> float:
    """The bandwidth of a link; that from a node to itself is its memory.

    Raises:
        ValueError: it is unknown.
    """
    src, dst = link
    what = f"the link {src!r} -> {dst!r}" if src != dst else f"the memory of {src!r}"
    found: float | None = (
        topology.bytes_per_s[link]
        if src != dst
        else topology.graph.nodes[src]["memory_bytes_per_s"]
    )
    if found is None:
        raise ValueError(
            f"topology {topology.name!r}: the program uses {what}, whose bandwidth is unknown; "
            "want it in bytes per second (save the topology, fill it in, load it)"
        )
    return float(found)  # numpy has no whole numbers as large as a topology's file may have


class Links:
    """The links that messages between a topology's first k devices use.

    Raises:
        ValueError: the bandwidth of a link is unknown.
    """

    def __init__(self, topology: Topology, k: int) -> None:
        from scipy.sparse import csr_array

        devices = topology.devices[:k]
        self.k, self.devices = k, devices
        self.pairs = [(i, j) for i in range(k) for j in range(k) if i != j]
        self._cells = tuple(np.array(self.pairs, dtype=np.intp).reshape(-1, 2).T)
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

    @property
    def are_alike_both_ways(self) -> bool:
        return bool((self.bytes_per_s == self.bytes_per_s[self.back]).all())

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

    def evened(self) -> Links:
        """These links with the mean rate of both directions in each."""
        found = copy(self)
        found.bytes_per_s = (self.bytes_per_s + self.bytes_per_s[self.back]) / 2
        return found

    def one_price(self, of_seconds: Floats) -> Floats:
        """For prices of a second of each link, others of the same sum at which a byte costs as much
        in one direction of a link as in the other."""
        part = self.bytes_per_s / (self.bytes_per_s + self.bytes_per_s[self.back])
        found: Floats = (of_seconds + of_seconds[self.back]) * part
        return found

    def prices(self, link_prices: Floats) -> Floats:
        """What a message from rank i to rank j costs: the sum over its links."""
        found = np.zeros((self.k, self.k))
        found[self._cells] = self._uses @ link_prices
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
        delay_s = self.latency_s[self._cells] + ramp_bytes / full_rate
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
