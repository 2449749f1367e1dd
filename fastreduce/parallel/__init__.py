"""Data-parallel training of any `nn.Module` in one process."""

from fastreduce.parallel.data_parallel import DataParallel
from fastreduce.parallel.trees import Whole

__all__ = ["DataParallel", "Whole"]
