"""What is kept of a training run: metrics as JSON lines, and a picture of its learning curve."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import math
import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

import fastreduce
from fastreduce.files import lock, naming, replacing

from .config import Config
from .data import FashionMNIST
from .progress import Epoch

METRICS, PICTURE, CHECKPOINTS = "metrics.jsonl", "learning_curve.png", "checkpoints"
TRACE, TENSORBOARD = "trace.json", "tensorboard"
SWEEP, SWEEP_PICTURE = "lr_sweep.json", "lr_sweep.png"


class Metrics:
    """Writes ``metrics.jsonl``: first the configuration, then each epoch as it ends.

    A run that goes on gives its ``past`` epochs; the file begins anew with these. Else it raises
    FileExistsError if the file has something in it: that of an earlier run is never replaced. Until
    `close`, or the end of the process, no other run may write there: it gets a BlockingIOError.
    """

    def __init__(
        self, path: Path, config: Config, data: FashionMNIST, past: Sequence[Epoch] | None = None
    ) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        # Opened now, so that a run does not begin if its results cannot be written.
        self._locked = path.open("a")
        try:
            self._lock()
            if past is None and self._locked.tell():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
            self._locked.truncate(0)
            self._begin(_preamble(config, data), past)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        self._locked.close()

    def _lock(self) -> None:
        try:
            lock(self._locked, wait=False)
        except BlockingIOError:
            raise BlockingIOError(
                f"{self.path}: found that another fastreduce train writes there, wanted one at a "
                "time; wait until it has ended, or end it"
            ) from None

    def _begin(self, preamble: dict[str, Any], past: Sequence[Epoch] | None) -> None:
        try:
            self._append(preamble)
        except OSError:
            if past is None:  # a run that does not begin leaves nothing that looks like one
                with contextlib.suppress(OSError):
                    self.path.unlink()
            raise
        for epoch in past or ():
            self.add(epoch)

    def add(self, epoch: Epoch) -> None:
        # A loss that diverged is null: JSON has no NaN.
        loss = epoch.loss if math.isfinite(epoch.loss) else None
        self._append({**asdict(epoch), "loss": loss, "allreduce_share": epoch.allreduce_share})

    def _append(self, line: dict[str, Any]) -> None:
        # Opened for each line, so that each is on disk however the run ends; and never made anew,
        # so that a folder that was removed is an error.
        with naming(self.path), self.path.open("r+", encoding="utf-8") as file:
            file.seek(0, os.SEEK_END)
            print(json.dumps(line, allow_nan=False), file=file)


def _preamble(config: Config, data: FashionMNIST) -> dict[str, Any]:
    return {
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "config": config.to_json(),
        "data": {
            "folder": str(data.folder),
            "is_sample": data.is_sample,
            "train_images": len(data.train),
            "test_images": len(data.test),
        },
        "versions": {
            "fastreduce": fastreduce.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "threads": torch.get_num_threads(),
    }


def run_folder(out: Path | None, model: str) -> Path:
    """Return a folder for a new run's files that does not hold them yet.

    It is ``out``; without ``out`` it is ``runs/lenet``, after the model, or if that holds a run
    ``runs/lenet-2``, ``runs/lenet-3`` and so on. Nothing is written.

    Raises FileExistsError if ``out`` holds a run, because a run is never overwritten;
    NotADirectoryError if it is a file or below one; PermissionError if it cannot be written.
    """
    folder = out or next(path for path in _numbered(Path("runs", model)) if not _kept_in(path))
    if kept := _kept_in(folder):
        raise FileExistsError(
            f"--out {folder}: found an earlier run's {' and '.join(kept)} there, wanted a folder "
            "without; name another one, or remove that run first"
        )
    existing = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    if not existing.is_dir():
        raise NotADirectoryError(f"--out {folder}: found {existing} to be a file, wanted a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise PermissionError(f"--out {folder}: found that {existing} cannot be written to")
    return folder


@contextlib.contextmanager
def claimed(out: Path | None, model: str, name: str) -> Iterator[Path]:
    """A folder as of `run_folder`, which this run alone has: an empty file ``name`` says so.

    The file is removed in the end, if nothing was written to it.
    """
    while True:
        folder = run_folder(out, model)
        path = folder / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.open("x").close()
            break
        except FileExistsError:  # another run was faster: it is looked at, or another folder taken
            continue
    try:
        yield folder
    finally:
        with contextlib.suppress(FileNotFoundError):
            if not path.stat().st_size:
                path.unlink()


def _numbered(folder: Path) -> Iterator[Path]:
    yield folder
    for number in itertools.count(2):
        yield folder.with_name(f"{folder.name}-{number}")


def _kept_in(folder: Path) -> list[str]:
    return [
        name for name in (METRICS, PICTURE, CHECKPOINTS, SWEEP) if os.path.lexists(folder / name)
    ]


def closing_line(epochs: Sequence[Epoch], devices: Sequence[torch.device]) -> str:
    """Return the book's last line: test accuracy, mean seconds per epoch, devices."""
    mean_s = sum(epoch.epoch_s for epoch in epochs) / len(epochs)
    return f"test acc: {epochs[-1].test_accuracy:.2f}, {mean_s:.1f} sec/epoch on {list(devices)}"


def plot(epochs: Sequence[Epoch], path: Path, title: str) -> None:
    """Draw loss and test accuracy over the epochs, side by side, as a PNG at ``path``."""
    # Imported here, because it is slow to import. Figure and not pyplot, because pyplot chooses a
    # backend for the whole process.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    figure.suptitle(title)
    numbers = [epoch.epoch for epoch in epochs]
    curves = {
        "training loss (cross-entropy, mean)": [epoch.loss for epoch in epochs],
        "test accuracy (share of images)": [epoch.test_accuracy for epoch in epochs],
    }
    for axes, (label, values) in zip(figure.subplots(1, 2), curves.items(), strict=True):
        axes.plot(numbers, values, marker="o", color="tab:blue")
        axes.set(xlabel="epoch", ylabel=label, xlim=(numbers[0] - 0.5, numbers[-1] + 0.5))
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
    losses = [epoch.loss for epoch in epochs if math.isfinite(epoch.loss)]
    figure.axes[0].set_ylim(0, 1.1 * max(losses, default=0.0) or 1.0)
    figure.axes[1].set_ylim(0, 1)
    with replacing(path) as unfinished:
        figure.savefig(unfinished, format="png", dpi=150)
