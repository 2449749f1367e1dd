"""Which ranks of a topology are alike: what may change places without any difference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
        return _roots(self.images)


def symmetry_of(links: Links) -> Symmetry:
    """Turns of ranks that are alike, as far as the links allow; see `_turns`.

    No more than one image for each rank: a copy of a program with all its images shall be short. Of
    the turns that can be added, the one that leaves the fewest orbits of ranks comes first.

    >>> from fastreduce.topology.traffic import Links
    >>> from fastreduce.topology import cluster
    >>> whole = cluster("dgx-h100", machines=2, gbit=400, nics=8)
    >>> for topology in (whole, whole.scaled(("m0/nic3", "network"), 0.25)):
    ...     found = symmetry_of(Links(topology, 16))
    ...     print(len(found.images), found.roots(), int(found.orbit.max()) + 1)
    16 [0] 8
    6 [0, 1, 3, 8, 9, 11] 48
    """
    images = [tuple(range(links.k))]
    turns = [
        (turn, moved)
        for turn in dict.fromkeys(_turns(links))
        if (moved := links.moved(turn)) is not None
    ]
    orbit = np.arange(len(links.names))
    while True:
        groups = [(more, moved) for x, moved in turns if (more := _closed([*images, x], links.k))]
        more, moved = min(groups, key=lambda x: len(_roots(x[0])), default=(images, orbit))
        if len(_roots(more)) == len(_roots(images)):
            return Symmetry(tuple(images), np.unique(orbit, return_inverse=True)[1])
        images = more
        for link, other in enumerate(moved):
            orbit[orbit == orbit[other]] = orbit[link]


def _turns(links: Links) -> Iterator[tuple[int, ...]]:
    """What may be a symmetry. The ranks fall into equal blocks of neighbours, and each block into
    equal parts. Parts that are alike change places in turn, within all blocks at once.
    """
    kinds, ranks = _kinds(links), np.arange(links.k)
    for block in _divisors(links.k):
        for part in _divisors(block)[:-1]:
            # A row for the first parts of all blocks, one for the second parts, and so on.
            rows = ranks.reshape(-1, block // part, part).swapaxes(0, 1).reshape(block // part, -1)
            _, kind = np.unique(kinds[rows], axis=0, return_inverse=True)
            for alike in (np.flatnonzero(kind == x) for x in range(kind.max() + 1)):
                image = ranks.copy()
                image[rows[alike]] = rows[np.roll(alike, -1)]
                yield tuple(image.tolist())


def _divisors(number: int) -> list[int]:
    return [x for x in range(1, number + 1) if number % x == 0]


def _kinds(links: Links) -> Numbers:
    """A number for each rank, the same for those whose messages meet alike links, as far away."""
    all_to_all = links.busy_s(dict.fromkeys(links.pairs, 1.0))
    ways = [links.prices(all_to_all), links.latency_s]
    seen = np.hstack([np.sort(x, axis=1) for way in ways for x in (way, way.T)])
    # Sums in another order differ in their last digits.
    rounded = np.char.mod("%.9e", seen)
    return np.unique(rounded, axis=0, return_inverse=True)[1]


def _roots(images: Sequence[tuple[int, ...]]) -> list[int]:
    return sorted({min(places) for places in zip(*images, strict=True)})


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
