"""What each rank of test_machines.py does: python machines_worker.py MODE FOLDER."""

import itertools
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from fastreduce.distributed import empty, register

OPS = {"sum": dist.ReduceOp.SUM, "avg": dist.ReduceOp.AVG, "max": dist.ReduceOp.MAX}
DTYPES = {
    "sum": (torch.float32, torch.bfloat16, torch.int64, torch.complex64),
    "avg": (torch.float32,),
    "max": (torch.int32,),
}


def value(rank, count, dtype):
    return ((torch.arange(count) * 7 + rank * 3) % 5).to(dtype)


def values(size, rank):
    reach = (torch.empty, empty)
    for op, count, make in itertools.product(OPS, (0, 1, 5, 1000, 2_200_001), reach):
        for dtype in DTYPES[op]:
            each = torch.stack([value(r, count, dtype) for r in range(size)])
            wanted = each.amax(0) if op == "max" else each.sum(0).to(dtype)
            x = make(count, dtype=dtype)
            x.copy_(value(rank, count, dtype))
            dist.all_reduce(x, OPS[op])
            assert torch.equal(x, wanted / size if op == "avg" else wanted), (op, dtype, count)
    lists = [torch.full((n,), rank + 1.0) for n in (3, 0, 70_000)]
    dist.all_reduce_coalesced(lists)
    assert all(torch.equal(x, torch.full_like(x, size * (size + 1) / 2)) for x in lists)
    dist.broadcast(x := torch.full((3,), float(rank)), src=size - 1)
    assert torch.equal(x, torch.full((3,), size - 1.0))
    dist.all_gather(outs := [torch.empty(1) for _ in range(size)], torch.tensor([float(rank)]))
    assert [x.item() for x in outs] == list(range(size))
    for dtype in (torch.float32, torch.uint16, torch.float8_e5m2):  # Gloo knows the first alone
        ranks = torch.arange(size).to(torch.float32).to(dtype)
        mine = ranks[rank : rank + 1]
        dist.all_to_all_single(out := torch.empty_like(ranks), mine.repeat(size))
        assert torch.equal(out.float(), ranks.float())
        outs = [torch.empty_like(mine) for _ in ranks]
        dist.gather(mine, outs if rank == 0 else None)
        assert rank > 0 or torch.equal(torch.cat(outs).float(), ranks.float())
    dist.barrier()


def until_cut_off(folder, rank):
    dist.barrier()
    (folder / f"ready {rank}").touch()
    begin = time.monotonic()
    try:
        while time.monotonic() - begin < 60:
            dist.all_reduce(torch.ones(10_000))
    except dist.DistBackendError as error:
        (folder / str(rank)).write_text(str(error))


def until_killed(folder, rank):
    """The kill comes in the first call: on a link this slow it takes minutes."""
    dist.barrier()
    (folder / f"ready {rank}").write_text(str(os.getpid()))
    part, parts = torch.empty(2_500_000), [torch.ones(2_500_000)] * dist.get_world_size()
    try:
        while True:
            dist.scatter(part, parts if rank == 0 else None)
    except dist.DistBackendError as error:
        (folder / str(rank)).write_text(str(error))


def main(mode, folder):
    torch.set_num_threads(1)
    register()
    timeout = timedelta(seconds=4 if mode == "until cut off" else 300)
    dist.init_process_group("fastreduce", timeout=timeout)
    if mode == "values":
        values(dist.get_world_size(), dist.get_rank())
        dist.destroy_process_group()
    else:
        {"until cut off": until_cut_off, "until killed": until_killed}[mode](
            Path(folder), dist.get_rank()
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
