"""What is kept of a training run: metrics as JSON lines, and a picture of its learning curve."""

from __future__ import annotations

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

from .data import FashionMNIST
from .trainer import Config, Epoch

DEFAULT_OUT = Path("runs/lenet")
METRICS, PICTURE = "metrics.jsonl", "learning_curve.png"


class Metrics:
    """Writes ``metrics.jsonl``: first the configuration, then each epoch as it ends.

    Raises FileExistsError where the file is there already: an earlier run's is never replaced.
    """

    def __init__(self, path: Path, config: Config, data: FashionMNIST) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        # Created here and now, so that a run that cannot be kept is not begun.
        path.open("x").close()
        self._append(_preamble(config, data))

    def add(self, epoch: Epoch) -> None:
        # A loss that diverged is null: JSON has no NaN.
        loss = epoch.loss if math.isfinite(epoch.loss) else None
        self._append({**asdict(epoch), "loss": loss, "allreduce_share": epoch.allreduce_share})

    def _append(self, line: dict[str, Any]) -> None:
        # Opened for each line: what was reached is on disk, however the run ends.
        with self.path.open("a", encoding="utf-8") as file:
            print(json.dumps(line, allow_nan=False), file=file)


def _preamble(config: Config, data: FashionMNIST) -> dict[str, Any]:
    return {
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "config": {**asdict(config), "devices": [str(device) for device in config.devices]},
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


def run_folder(out: Path | None) -> Path:
    """Return the folder for the files of a new run, which are not there yet.

    That is ``out``; without it ``runs/lenet``, or where that holds a run ``runs/lenet-2``,
    ``runs/lenet-3`` and so on. Nothing is written.

    Raises FileExistsError where ``out`` holds a run, as one is never overwritten;
    NotADirectoryError where it is a file or below one; PermissionError where it cannot be written.
    """
    folder = out or next(path for path in _numbered(DEFAULT_OUT) if not _kept_in(path))
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


def _numbered(folder: Path) -> Iterator[Path]:
    yield folder
    for number in itertools.count(2):
        yield folder.with_name(f"{folder.name}-{number}")


def _kept_in(folder: Path) -> list[str]:
    return [name for name in (METRICS, PICTURE) if os.path.exists(folder / name)]


def plot(epochs: Sequence[Epoch], path: Path, title: str) -> None:
    """Draw loss and test accuracy over the epochs, side by side, as a PNG at ``path``."""
    # Imported here, as it takes longer than an import of fastreduce may; and Figure, not pyplot,
    # as that would choose a backend for the whole process.
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
    figure.axes[0].set_ylim(0, 1.1 * max(losses, default=1.0))
    figure.axes[1].set_ylim(0, 1)
    figure.savefig(path, dpi=150)
