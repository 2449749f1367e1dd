"""Data-parallel training of any `nn.Module` in one process."""

from fastreduce.parallel.batch import Whole
from fastreduce.parallel.data_parallel import DataParallel

__all__ = ["DataParallel", "Whole"]
