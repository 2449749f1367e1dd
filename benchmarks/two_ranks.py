"""An allreduce of torch.distributed between two processes that share one GPU, for comparison.

    torchrun --standalone --nproc-per-node 2 benchmarks/two_ranks.py --out FILE.json

NCCL allows it from 2.30 on; before, it finds a duplicate GPU. With --backend gloo it runs on the
CPU. Times are medians of calls one by one, of rank 0's clock.
"""

from __future__ import annotations

import argparse
import os
import statistics
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from measure import sample_s, save

SIZES_BYTES = (1 << 16, 1 << 22, 1 << 28)
ROUNDS, CALLS = 5, 10


def seconds(nbytes: int, device: torch.device) -> float:
    x = torch.ones(nbytes // 4, device=device)
    dist.all_reduce(x)
    assert bool((x == dist.get_world_size()).all()), f"a wrong sum of {nbytes} bytes"
    x.zero_()
    return statistics.median(sample_s(partial(dist.all_reduce, x), CALLS) for _ in range(ROUNDS))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", default="nccl", choices=["nccl", "gloo"])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES_BYTES, help="in bytes")
    parser.add_argument("--out", type=Path, required=True, help="the JSON that rank 0 writes")
    args = parser.parse_args()
    os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
    dist.init_process_group(args.backend)
    device = torch.device("cpu" if args.backend == "gloo" else "cuda:0")
    rows = [{"size_bytes": nbytes, "called_s": seconds(nbytes, device)} for nbytes in args.sizes]
    if dist.get_rank() == 0:
        save(args.out, {"backend": args.backend, "rows": rows})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
