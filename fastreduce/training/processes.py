"""The processes of a run that torchrun starts: one group, and devices for each of them."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import (
    PrefixStore,
    _get_default_store,
    default_pg_timeout,
)
from torch.distributed.rendezvous import rendezvous

from fastreduce.devices import CPU, usable_devices
from fastreduce.distributed.rendezvous import own_part
from fastreduce.kvstore.peers import Group

from .checkpoint import NAME, Checkpoint, CheckpointError, read, whole
from .config import Config
from .data import FashionMNIST, fingerprint
from .learners import PROCESSES
from .report import CHECKPOINTS, METRICS, claimed

# In torchrun's store: where the results of this job go.
PLACE = "folder of fastreduce train"


@dataclass(frozen=True)
class Processes:
    """``rank`` is this one's number of ``size``, ``local_rank`` that on its machine, of so many
    ``machines``."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    machines: int = 1

    @property
    def command(self) -> str:
        """What to type to start as many, on each machine."""
        if self.size == 1:
            return "fastreduce"
        nodes = f"--nnodes {self.machines} " if self.machines > 1 else ""
        return f"torchrun {nodes}--nproc-per-node {self.size // self.machines} -m fastreduce"

    def devices(self, names: list[str] | None, backend: str | None) -> list[torch.device]:
        """Those of these names, without names all GPUs or the CPU: one of them for each process
        of a ``backend``, and where none is named also for each of several others."""
        found = usable_devices(names)
        one_each = backend is not None or (names is None and self.size > 1)
        return [found[self.local_rank % len(found)]] if one_each else found

    def check(self, config: Config) -> None:
        """Raise ValueError for settings that several processes cannot have."""
        together = config.backend or config.kvstore in ("dist_sync", "dist_async")
        if self.size > 1 and not together:
            raise ValueError(
                f"kvstore: found {config.kvstore} in {self.size} processes, wanted dist_sync or "
                "dist_async, which train one network together, or a backend; start one process "
                "for the others"
            )

    @contextlib.contextmanager
    def joined(self, config: Config) -> Iterator[None]:
        """In the group of all, if ``config`` needs one."""
        if config.backend is None and config.kvstore in (None, "local"):
            yield
            return
        of_store = "gloo" if config.devices[0] == CPU else None  # None: the one of each device
        backend = config.backend or of_store
        if self.size == 1:
            alone = dist.HashStore()  # type: ignore[attr-defined]
            dist.init_process_group(backend, store=alone, rank=0, world_size=1)
        else:
            store, rank, size = next(rendezvous("env://"))
            # Gloo would take words of processes that have ended for those of its peers.
            own = own_part(store, rank, size, default_pg_timeout)
            dist.init_process_group(backend, store=own, rank=rank, world_size=size)
        try:
            yield
        finally:
            dist.destroy_process_group()

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """What is printed is rank 0's."""
        with contextlib.redirect_stdout(None) if self.rank else contextlib.nullcontext():
            yield

    def writes(self, config: Config) -> bool:
        """Whether this process keeps results: each of a store, and rank 0 of a backend."""
        return self.rank == 0 or config.backend is None

    def folder(self, out: Path, config: Config) -> Path:
        """Where the results of this process's part in a run are, or else those of rank 0."""
        return out / f"rank{self.rank}" if self.rank and config.backend is None else out

    def all(self, value: Any) -> list[Any]:
        """What all processes have at this place, in the order of their ranks."""
        return Group(None).told(value) if self.size > 1 else [value]

    def place_before(self) -> Path | None:
        """Where results go, if torchrun has started this job again; see `settled`."""
        store = _store_of_the_job() if self.size > 1 else None
        return Path(store.get(PLACE).decode()) if store and store.check([PLACE]) else None

    def agree(self, config: Config, data: FashionMNIST) -> None:
        """Raise ValueError, on all of them, if they have other settings or other images."""
        if self.size == 1:
            return
        settings = {**config.to_json(), "devices": None}  # these may differ
        compared = {"images": fingerprint(data), **settings}
        told = self.all((compared, {"images": f"those of {data.folder}", **settings}))
        wanted, on_first = told[0]
        for rank, (found, said) in enumerate(told):
            differ = [
                f"{name}: {said[name]}, where rank 0 has {on_first[name]}"
                for name in wanted
                if found[name] != wanted[name]
            ]
            if differ:
                raise ValueError(
                    f"rank {rank}: found {'; '.join(differ)}; wanted the same on all ranks"
                )

    @contextlib.contextmanager
    def settled(self, out: Path | None, model: str) -> Iterator[Path]:
        """A folder that rank 0 has `claimed` for a new run. All are told, and so are the processes
        that torchrun starts again."""
        with contextlib.ExitStack() as claim:
            own = claim.enter_context(claimed(out, model, METRICS)) if self.rank == 0 else None
            place: Path = self.all(own)[0]
            if self.size > 1 and self.rank == 0:
                _store_of_the_job().set(PLACE, str(place))
            yield place

    def last(self, run: Path) -> Checkpoint:
        """This process's last checkpoint of the run in a folder.

        Raises CheckpointError where that run is of another number of processes.
        """
        own = run / f"rank{self.rank}"
        # One that the run did not have has no folder there; rank 0's tells how many there were.
        try:
            found = read((own if own.is_dir() else run) / CHECKPOINTS)
        except FileNotFoundError as error:
            above = [
                x for x in run.absolute().parents[:2] if any((x / CHECKPOINTS).glob("step-*s"))
            ]
            meant = f"; did you mean --resume {shlex.quote(str(above[0]))}?" if above else ""
            raise FileNotFoundError(f"{error}{meant}") from None
        before = found.state.get(PROCESSES, 1)
        if before not in (None, self.size):
            raise CheckpointError(
                f"--resume {run}: the number of processes was {before} when the run was saved, and "
                f"is {self.size} now; each goes on with its own part, so start as many; on one "
                f"machine: torchrun --nproc-per-node {before}"
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

    def forget_later(self, found: Checkpoint) -> None:
        """Remove checkpoints of later steps than that from which all of several processes go on.

        With them a step could come to be of two runs, where this one ends before all have saved it.
        """
        if self.size > 1:
            for path in found.path.parent.iterdir():
                match = NAME.fullmatch(path.name)
                if match and int(match[1]) > found.step and not path.is_dir():
                    path.unlink()

    def last_before(self, folder: Path) -> Checkpoint | None:
        """Where a job that torchrun has started again goes on: with nothing, if it ended before all
        had their first checkpoint."""
        own: list[Checkpoint] = []
        with contextlib.suppress(FileNotFoundError, CheckpointError):
            own.extend(whole(folder / CHECKPOINTS))
        try:
            return self.last_of_all(own)
        except CheckpointError:
            return None


def _store_of_the_job() -> Any:
    """That of torchrun, which is the same when it starts the processes again."""
    store = _get_default_store()
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store


def started() -> Processes:
    """What torchrun says in the environment; without it, one process.

    Raises ValueError for what torchrun does not say.
    """
    size = _told("WORLD_SIZE", "1")
    if size <= 1:  # the others are then of something else
        return Processes()
    machines = max(1, _told("GROUP_WORLD_SIZE", "1", size + 1))
    return Processes(_told("RANK", "", size), size, _told("LOCAL_RANK", "0", size), machines)


def _told(name: str, default: str, size: int | None = None) -> int:
    found = os.environ.get(name, default)
    if not found.isdecimal() or (size is not None and int(found) >= size):
        wanted = "a number of processes" if size is None else f"0 to {size - 1}"
        raise ValueError(
            f"${name}: found {found!r}, wanted {wanted}; let torchrun set it and $WORLD_SIZE, or "
            "unset both for one process"
        )
    return int(found)
