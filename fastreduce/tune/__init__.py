"""What "auto" goes by: how fast each algorithm is on this machine, measured once and kept."""

from fastreduce.tune.files import load, save, tuned
from fastreduce.tune.table import Table
from fastreduce.tune.timing import measure

__all__ = ["Table", "load", "measure", "save", "tuned"]
