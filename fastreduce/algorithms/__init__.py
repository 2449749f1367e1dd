"""The algorithms, one per file: each is a pure function of the number of ranks.

Each function is imported here under the name of its file. `registry` maps names to functions, and
also has those that users register.
"""

from fastreduce.algorithms.bidirectional import bidirectional
from fastreduce.algorithms.by_parameter import by_parameter
from fastreduce.algorithms.halving_doubling import halving_doubling
from fastreduce.algorithms.hierarchical import hierarchical
from fastreduce.algorithms.host import host
from fastreduce.algorithms.leader import leader
from fastreduce.algorithms.multi_ring import multi_ring
from fastreduce.algorithms.naive import naive
from fastreduce.algorithms.registration import (
    Algorithm,
    algorithm,
    built_in,
    names,
    registry,
    seal,
)
from fastreduce.algorithms.ring import ring
from fastreduce.algorithms.sharded import sharded
from fastreduce.algorithms.tree import tree

seal()

__all__ = [
    "Algorithm",
    "algorithm",
    "bidirectional",
    "built_in",
    "by_parameter",
    "halving_doubling",
    "hierarchical",
    "host",
    "leader",
    "multi_ring",
    "naive",
    "names",
    "registry",
    "ring",
    "sharded",
    "tree",
]
