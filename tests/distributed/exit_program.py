"""For torchrun: processes end while calls wait, in daemon threads or with callbacks in Python."""

import contextlib
import threading
import time

import torch
import torch.distributed as dist

import fastreduce.distributed  # noqa: F401

dist.init_process_group("fastreduce")
others = dist.new_group()
two = dist.new_group([0, 1])


def wait_again_and_again():
    while True:
        with contextlib.suppress(Exception):
            dist.all_reduce(torch.ones(3), group=others)


if dist.get_rank() == 0:
    threading.Thread(target=wait_again_and_again, daemon=True).start()
    waits = dist.all_reduce(torch.ones(3), group=two, async_op=True)
    threading.Thread(target=waits.wait, daemon=True).start()
    threading.Thread(target=dist.recv, args=(torch.ones(3), 1), daemon=True).start()
dist.barrier()
if dist.get_rank() == 1:
    time.sleep(0.3)
works = [dist.all_reduce(torch.ones(300_000), async_op=True) for _ in range(5)]
results = [work.get_future().then(lambda _: sum(range(1_000_000))) for work in works]
