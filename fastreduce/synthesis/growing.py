"""Programs that a search makes as it goes: trees in time that are cheap at a linear program's
prices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from fastreduce.instruction import Instruction
from fastreduce.program import Program
from fastreduce.synthesis.cheap import Prices
from fastreduce.synthesis.estimate import shape_of
from fastreduce.synthesis.seeds import Seed
from fastreduce.synthesis.symmetry import symmetry_of
from fastreduce.synthesis.timed import TimedTree
from fastreduce.topology.traffic import Floats, Links

# Where links cost nothing, the shortest way is the best: this part of the mean price is added.
NEVER_FREE = 1e-3
# The bonus of an edge for each turn by which it is nearer to the root's, as a share of the mean
# price: a rank that is read later can sum more, one that is written sooner can pass on more. Four
# values from 0 to 1, each with a tree of its own, took twice as long, for programs that are at most
# 0.6 % faster (2 x dgx1, simulated, 2026-11-25).
HASTE = 0.2


class Garden:
    """Seeds and what grows from prices, with the shapes of all."""

    def __init__(self, seeds: Sequence[Seed], links: Links) -> None:
        self.links, self.symmetry = links, symmetry_of(links)
        self.seeds = list(seeds)
        self.shapes = [shape_of(seed.program, links, seed.in_turns) for seed in seeds]
        self._of_tree: dict[tuple[Instruction, ...], int] = {}

    def grown(self, prices: Floats, guide: Floats, less_than: float) -> Iterator[tuple[int, int]]:
        """Programs and the turns in which they begin: trees that cost less than that where a second
        of orbit l in turn t costs ``prices[t, l]``, of those that are cheap at ``guide``."""
        of_pairs = self._of_pairs(prices)
        for tree in self._cheap(guide):
            if sum(float(of_pairs[x]) for x in tree.messages()) < less_than:
                yield self._planted(tree)

    def _cheap(self, guide: Floats) -> Iterator[TimedTree]:
        of_pairs = self._of_pairs(guide + NEVER_FREE * guide.mean())
        prices = Prices(of_pairs)
        for root in self.symmetry.roots():
            for turn in range(len(guide)):
                tree = prices.cheap(root, turn, HASTE * of_pairs.mean())
                if tree:
                    yield tree

    def _of_pairs(self, prices: Floats) -> Floats:
        """What a byte from rank i to rank j costs, turn by turn."""
        of_links = self.symmetry.of_links(prices) / self.links.bytes_per_s
        return np.array([self.links.prices(x) for x in of_links])

    def _planted(self, tree: TimedTree) -> tuple[int, int]:
        instructions, turns = tree.instructions()
        start = min(turns)
        steps = tuple(turn - start for turn in turns)
        key = tuple(x._replace(shard=step) for x, step in zip(instructions, steps, strict=True))
        if key not in self._of_tree:
            images = self.symmetry.images
            program = Program(
                self.links.k,
                len(images),
                [_moved(x, image, n) for n, image in enumerate(images) for x in instructions],
            )
            self._of_tree[key] = len(self.seeds)
            self.seeds.append(Seed("tree in time", program, steps * len(images)))
            self.shapes.append(shape_of(program, self.links, self.seeds[-1].steps))
        return self._of_tree[key], start


def _moved(x: Instruction, image: Sequence[int], shard: int) -> Instruction:
    srcs = tuple(sorted(image[rank] for rank in x.srcs))
    return Instruction(image[x.rank], shard, srcs, tuple(image[rank] for rank in x.dsts))
