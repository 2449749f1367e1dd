"""Which ranks of a topology are alike: what may change places without any difference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastreduce.topology.traffic import Floats, Links

Numbers: TypeAlias = NDArray[np.intp]


class Symmetry(NamedTuple):
    """Ways to renumber the ranks after which the topology is the same: rank r becomes ``image[r]``.

    A program and its images together load all links of an orbit alike. ``orbit`` has the number of
    each link's orbit.
    """

    images: tuple[tuple[int, ...], ...]
    orbit: Numbers

    def means(self, busy: Floats) -> Floats:
        """For each orbit (column) how long its links are busy, in the mean."""
        found = np.zeros((len(busy), int(self.orbit.max()) + 1))
        np.add.at(found.T, self.orbit, busy.T)
        means: Floats = found / np.bincount(self.orbit)
        return means

    def of_links(self, prices: Floats) -> Floats:
        """Each link's part of the price of its orbit."""
        found: Floats = (prices / np.bincount(self.orbit))[:, self.orbit]
        return found

    def keeps(self, busy: Floats) -> bool:
        """Whether the links of each orbit are busy alike already."""
        return bool(np.allclose(busy, self.means(busy)[:, self.orbit], rtol=1e-9, atol=0))

    def roots(self) -> list[int]:
        """One of the ranks that are images of each other."""
        return [rank for rank in self.images[0] if rank == min(x[rank] for x in self.images)]


def symmetry_of(links: Links) -> Symmetry:
    """Turns of equal blocks of neighbours, each in itself or all, as far as the links allow.

    No more than one image for each rank: a copy of a program with all its images shall be short.

    >>> from fastreduce.topology.traffic import Links
    >>> from fastreduce.topology import cluster
    >>> found = symmetry_of(Links(cluster("dgx-h100", machines=2, gbit=400, nics=8), 16))
    >>> len(found.images), int(found.orbit.max()) + 1
    (16, 8)
    """
    images = [tuple(range(links.k))]
    orbit = np.arange(len(links.names))
    for turned in _turned_blocks(links.k):
        moved = links.moved(turned)
        if moved is None:
            continue
        more = _closed([*images, turned], links.k)
        if more:
            images = more
            for link, other in enumerate(moved):
                orbit[orbit == orbit[other]] = orbit[link]
    return Symmetry(tuple(images), np.unique(orbit, return_inverse=True)[1])


def _turned_blocks(k: int) -> Iterator[tuple[int, ...]]:
    for block in (x for x in range(k, 1, -1) if k % x == 0):
        yield tuple(r // block * block + (r + 1) % block for r in range(k))
        if block < k:
            yield tuple((r + block) % k for r in range(k))


def _closed(images: list[tuple[int, ...]], most: int) -> list[tuple[int, ...]]:
    """With all that follow from them, or none if these are more than ``most``."""
    found = dict.fromkeys(images)
    queue = list(found)
    for one in queue:
        for other in images:
            both = tuple(one[rank] for rank in other)
            if both not in found:
                found[both] = None
                queue.append(both)
        if len(found) > most:
            return []
    return list(found)
