"""Trees in time that are cheap where each message in each turn has a price."""

from __future__ import annotations

import numpy as np

from fastreduce.synthesis.halves import Half, Side, grown
from fastreduce.synthesis.moving import moved
from fastreduce.synthesis.timed import TimedTree
from fastreduce.topology.traffic import Floats


class Prices:
    """``prices[t, i, j]`` is what a message from rank i to rank j costs in turn t."""

    def __init__(self, prices: Floats) -> None:
        self.moments = 2 * len(prices)
        backwards = prices.swapaxes(1, 2)
        # Who hands its sum over reads what is there and writes the sum of both.
        up = np.stack([backwards, backwards + prices], axis=1)
        down = np.stack([prices, prices], axis=1)[::-1]
        shape = self.moments, *prices.shape[1:]
        self.up = Side(up.reshape(shape), True)
        self.down = Side(down.reshape(shape), False)

    def cheap(self, root: int, turn: int, haste: float = 0.0) -> TimedTree | None:
        """A tree of which ``root`` has the result in ``turn``; None if there is no time for it."""
        up = grown(self.up, root, 2 * turn + 1, haste / 2)
        down = grown(self.down, root, self.moments - 1 - 2 * turn, haste / 2)
        if up is None or down is None or np.sort(up.level)[-2] != 2 * turn:
            return None
        return self._joined(root, turn, moved(self.up, up), moved(self.down, down))

    def _joined(self, root: int, turn: int, up: Half, down: Half) -> TimedTree:
        last = self.moments - 1
        return TimedTree(
            root, turn, up.edges(), [(last - at, inner, outer) for at, outer, inner in down.edges()]
        )
