"""The accuracy that each learning rate and number of replicas reaches."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fastreduce.devices import deal_devices
from fastreduce.files import replacing, write_whole
from fastreduce.parallel.losses import NonFiniteLoss

from .config import Config
from .data import FashionMNIST
from .report import SWEEP, SWEEP_PICTURE
from .trainer import Trainer

REPLICAS = (1, 2, 4)


@dataclass(frozen=True)
class Outcome:
    """One training: ``batch_size`` counts all replicas' examples. None: its loss was not finite."""

    replicas: int
    batch_size: int
    lr: float
    test_accuracy: float | None


def configs(config: Config, lrs: Sequence[float]) -> list[Config]:
    """Of 1, 2 and 4 replicas, each with a batch of ``config.batch_size``, at each rate.

    Raises ValueError for a rate or a setting that does not go with that.
    """
    if twice := [lr for lr in lrs if lrs.count(lr) > 1]:
        raise ValueError(f"lr-sweep: found {twice[0]:g} twice, wanted each rate once")
    if config.skip_nonfinite:
        raise ValueError(
            "skip-nonfinite: found together with lr-sweep, whose table says at which rates a loss "
            "was not finite; leave one of the two out"
        )
    devices = list(dict.fromkeys(config.devices))
    return [
        config.changed(
            devices=deal_devices(devices[:replicas], replicas),
            batch_size=config.batch_size * replicas,
            lr=lr,
        )
        for replicas in REPLICAS
        for lr in lrs
    ]


def sweep(config: Config, data: FashionMNIST, lrs: Sequence[float]) -> Iterator[Outcome]:
    """Train all of `configs`.

    Source: *Dive into Deep Learning*, "Training on Multiple GPUs", "Exercises".
    """
    for one in configs(config, lrs):
        try:
            accuracy = list(Trainer(one, data).epochs())[-1].test_accuracy
        except NonFiniteLoss:
            accuracy = None
        yield Outcome(len(one.devices), one.batch_size, one.lr, accuracy)


def table(outcomes: Sequence[Outcome]) -> str:
    """A line for each rate, a column for each number of replicas."""
    columns = list(dict.fromkeys((x.replicas, x.batch_size) for x in outcomes))
    found = {(x.replicas, x.lr): _cell(x.test_accuracy) for x in outcomes}
    head = "".join(f"  {k} x {batch // k:>4}" for k, batch in columns)
    lines = [f"{'lr':>8}{head}   (replicas x batch of each: test accuracy)"]
    for lr in dict.fromkeys(x.lr for x in outcomes):
        lines.append(f"{lr:>8g}" + "".join(found.get((k, lr), "-").rjust(10) for k, _ in columns))
    return "\n".join(lines)


def _cell(accuracy: float | None) -> str:
    return "diverged" if accuracy is None else f"{accuracy:.3f}"


def write(outcomes: Sequence[Outcome], folder: Path, title: str) -> list[Path]:
    """Write the outcomes as JSON and as a picture."""
    from matplotlib.figure import Figure

    results, picture = folder / SWEEP, folder / SWEEP_PICTURE
    write_whole(results, json.dumps([vars(x) for x in outcomes], indent=1) + "\n")
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for replicas, batch in dict.fromkeys((x.replicas, x.batch_size) for x in outcomes):
        own = [x for x in outcomes if x.replicas == replicas]
        axes.plot(
            [x.lr for x in own],
            [math.nan if x.test_accuracy is None else x.test_accuracy for x in own],
            marker="o",
            label=f"replicas: {replicas}, batch: {batch}",
        )
    axes.set(xscale="log", xlabel="learning rate", ylabel="test accuracy (share of images)")
    axes.set_ylim(0, 1)
    axes.set_title(title, fontsize=9)
    axes.grid(alpha=0.3)
    axes.legend()
    with replacing(picture) as unfinished:
        figure.savefig(unfinished, format="png", dpi=120)
    return [results, picture]
