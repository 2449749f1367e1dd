"""For torchrun: the processes end while calls wait, whose callbacks are in Python."""

import time

import torch
import torch.distributed as dist

import fastreduce.distributed  # noqa: F401

dist.init_process_group("fastreduce")
dist.barrier()
if dist.get_rank() == 1:
    time.sleep(0.3)
works = [dist.all_reduce(torch.ones(300_000), async_op=True) for _ in range(5)]
results = [work.get_future().then(lambda _: sum(range(1_000_000))) for work in works]
