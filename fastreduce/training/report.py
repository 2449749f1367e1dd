"""What is kept of a training run: metrics as JSON lines, and a picture of its learning curve."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

import fastreduce

from .data import FashionMNIST
from .trainer import Config, Epoch


class Metrics:
    """Writes ``metrics.jsonl``: first the configuration, then each epoch as it ends."""

    def __init__(self, path: Path, config: Config, data: FashionMNIST) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
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
