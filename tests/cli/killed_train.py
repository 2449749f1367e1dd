"""``fastreduce train`` under torchrun, whose rank 1 is killed before the step of a number, once.

python -m torch.distributed.run --max-restarts 1 killed_train.py STEP FLAG...
"""

import os
import signal
import sys

from fastreduce.cli import main
from fastreduce.training import Trainer

killed_at, *flags = sys.argv[1:]
taken = 0
real = Trainer._step


def step(self, rows):
    global taken
    taken += 1
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if first and os.environ["RANK"] == "1" and taken == int(killed_at):
        os.kill(os.getpid(), signal.SIGKILL)
    real(self, rows)


Trainer._step = step
sys.exit(main(["train", *flags]))
