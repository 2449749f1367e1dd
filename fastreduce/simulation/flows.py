"""Transfers that share links: the rate of each, and when each ends. The extension finds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastreduce import _C

Floats: TypeAlias = NDArray[np.float64]

# Transfers that end within a picosecond end together.
MOMENT_S = _C.moment_s


def max_min(paths: Sequence[Sequence[int]], counts: Floats, bytes_per_s: Floats) -> Floats:
    """The max-min fair rate, in bytes per second, of each of ``counts[p]`` transfers on path p.

    A path lists its links by index into ``bytes_per_s``. Rates are max-min fair if no transfer can
    get a higher rate without lowering that of another which is as slow or slower.

    >>> max_min([[0], [0, 1], [1]], np.array([1.0, 1, 1]), np.array([10.0, 4]))
    array([8., 2., 2.])
    """
    return np.array(_C.max_min(paths, counts.tolist(), bytes_per_s.tolist()))
