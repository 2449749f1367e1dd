"""A program for torchrun that is killed once, in the middle: it goes on from its last checkpoint.

python -m torch.distributed.run --nproc-per-node 2 --max-restarts 1 elastic_program.py FOLDER STEP
"""

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from ddp_programs import Net, batch
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

import fastreduce.distributed  # noqa: F401

folder, killed_at = Path(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("fastreduce")
rank, again = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])

model = DDP(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
start = 0
if (folder / "last").exists():
    start, state, optimizer_state = torch.load(folder / "last")
    model.load_state_dict(state)
    optimizer.load_state_dict(optimizer_state)
print(f"rank {rank} begins at step {start}", flush=True)

for step in range(start, 6):
    X, y = batch(rank, step)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(X), y)
    if rank == 1 and step == killed_at and not again:
        os.kill(os.getpid(), signal.SIGKILL)
    loss.backward()
    optimizer.step()
    if rank == 0 and step % 2 == 1:
        torch.save((step + 1, model.state_dict(), optimizer.state_dict()), folder / "new")
        (folder / "new").rename(folder / "last")

torch.save(model.module.state_dict(), folder / f"end-{rank}")
dist.destroy_process_group()
