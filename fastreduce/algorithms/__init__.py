"""One algorithm, one file: each a pure function of the number of ranks.

``leader``, ``sharded`` and ``ring`` are functions here; `registry` has them by name, with those
that users register.
"""

from fastreduce.algorithms.leader import leader
from fastreduce.algorithms.registry import Algorithm, algorithm, names, registry
from fastreduce.algorithms.ring import ring
from fastreduce.algorithms.sharded import sharded

__all__ = ["Algorithm", "algorithm", "leader", "names", "registry", "ring", "sharded"]
