"""The processes of a run that torchrun starts: one group, and devices for each of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from fastreduce.devices import CPU, usable_devices
from fastreduce.kvstore.peers import Group

from .checkpoint import Checkpoint, CheckpointError, read
from .config import Config
from .learners import PROCESSES
from .report import CHECKPOINTS


@dataclass(frozen=True)
class Processes:
    """``rank`` is this one's number of ``size``, ``local_rank`` that on its machine."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    def devices(self) -> list[torch.device]:
        """Without names given: all GPUs or the CPU; one of these for each of several processes."""
        found = usable_devices()
        return found if self.size == 1 else [found[self.local_rank % len(found)]]

    def check(self, config: Config) -> None:
        """Raise ValueError for settings that several processes cannot have."""
        if self.size > 1 and config.kvstore not in ("dist_sync", "dist_async"):
            raise ValueError(
                f"kvstore: found {config.kvstore} in {self.size} processes, wanted dist_sync or "
                "dist_async, which train one network together; start one process for the others"
            )

    @contextlib.contextmanager
    def joined(self, config: Config) -> Iterator[None]:
        """In the group of all, if the store of ``config`` needs one."""
        if config.kvstore in (None, "local"):
            yield
            return
        backend = "gloo" if config.devices[0] == CPU else None  # None: the one of each device
        if self.size == 1:
            alone = dist.HashStore()  # type: ignore[attr-defined]
            dist.init_process_group(backend, store=alone, rank=0, world_size=1)
        else:
            dist.init_process_group(backend)
        try:
            yield
        finally:
            dist.destroy_process_group()

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """What is printed is rank 0's."""
        with contextlib.redirect_stdout(None) if self.rank else contextlib.nullcontext():
            yield

    def folder(self, out: Path) -> Path:
        """Where this process keeps the results of its part in a run."""
        return out / f"rank{self.rank}" if self.rank else out

    def all(self, value: Any) -> list[Any]:
        """What all processes have at this place, in the order of their ranks."""
        return Group(None).told(value) if self.size > 1 else [value]

    def last(self, run: Path) -> Checkpoint:
        """This process's last checkpoint of the run in a folder.

        Raises CheckpointError where that run is of another number of processes.
        """
        own = self.folder(run)
        # One that the run did not have has no folder there; rank 0's tells how many there were.
        found = read((own if own.is_dir() else run) / CHECKPOINTS)
        before = found.state.get(PROCESSES, 1)
        if before != self.size:
            raise CheckpointError(
                f"--resume {run}: the number of processes was {before} when the run was saved, and "
                f"is {self.size} now; each goes on with its own part, so start as many: "
                f"torchrun --nproc-per-node {before}"
            )
        return found

    def last_of_all(self, own: Iterable[Checkpoint]) -> Checkpoint:
        """The last checkpoint of a step of which each process has one.

        Raises CheckpointError, on all of them, if there is no such step.
        """
        found = {checkpoint.step: checkpoint for checkpoint in own}
        steps = self.all(list(found))
        common = set(found).intersection(*steps)
        if not common:
            kept = "; ".join(f"rank {r}: {', '.join(map(str, x))}" for r, x in enumerate(steps))
            raise CheckpointError(
                f"--resume: found no step of which all ranks have a whole checkpoint ({kept})"
            )
        return found[max(common)]


def started() -> Processes:
    """What torchrun says in the environment; without it, one process."""
    told = {"rank": "RANK", "size": "WORLD_SIZE", "local_rank": "LOCAL_RANK"}
    found = {name: int(os.environ[x]) for name, x in told.items() if x in os.environ}
    return Processes(**found)
