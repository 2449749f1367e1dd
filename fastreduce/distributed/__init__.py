"""The backend "fastreduce" of torch.distributed, for processes of one machine or of several.

>>> import torch, torch.distributed as dist
>>> import fastreduce.distributed  # before torch 2.15; from then on torch finds the backend itself
>>> store = dist.HashStore()
>>> dist.init_process_group("fastreduce", store=store, rank=0, world_size=1)
>>> x = torch.ones(3)
>>> dist.all_reduce(x)
>>> x
tensor([1., 1., 1.])
>>> dist.destroy_process_group()
"""

from fastreduce.distributed.backend import Options, empty, register
from fastreduce.distributed.hook import comm_hook

register()

__all__ = ["Options", "comm_hook", "empty", "register"]
