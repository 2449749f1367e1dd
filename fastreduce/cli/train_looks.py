"""What ``fastreduce train`` shows beside its own lines: a comparison, TensorBoard, a sweep."""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fastreduce.names import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastreduce.training import Config, Epoch, FashionMNIST, Trainer


class Look(Protocol):
    def follow(self, epoch: Epoch) -> None:
        """Look at an epoch that has ended."""
        ...

    def conclude(self) -> None:
        """Say what was seen in all of them."""
        ...


class Comparing:
    """Trains a second time, an epoch after each of the first."""

    def __init__(self, trainer: Trainer, data: FashionMNIST, name: str) -> None:
        from fastreduce.training.compare import Rivals

        self._rivals = Rivals(trainer, data, name)

    def follow(self, epoch: Epoch) -> None:
        other = self._rivals.follow(epoch)
        print(
            f"  {self._rivals.name}: loss {other.loss:.3f}, test acc {other.test_accuracy:.3f}, "
            f"{other.epoch_s:.1f} s",
            flush=True,
        )

    def conclude(self) -> None:
        print(f"{self._rivals.name}: {self._rivals.compared()}")


class TensorBoard:
    """Raises ImportError, which says what to install, where there is no TensorBoard."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError(f"--tensorboard: {error}; pip install tensorboard") from None
        self._writer = SummaryWriter(folder)

    def follow(self, epoch: Epoch) -> None:
        values = {"loss": epoch.loss, "test accuracy": epoch.test_accuracy}
        for name, value in {**values, "seconds per epoch": epoch.epoch_s}.items():
            self._writer.add_scalar(name, value, epoch.epoch)
        self._writer.flush()

    def conclude(self) -> None:
        self._writer.close()


def looks(
    args: argparse.Namespace, trainer: Trainer, data: FashionMNIST, folder: Path
) -> list[Look]:
    """Those that were asked for."""
    from fastreduce.training.report import TENSORBOARD

    found: list[Look] = []
    if args.tensorboard:
        found.append(TensorBoard(folder / TENSORBOARD))
    if args.compare is not None:
        found.append(Comparing(trainer, data, args.compare))
    return found


def check(args: argparse.Namespace, config: Config) -> None:
    """Raise ValueError for what cannot be compared or swept."""
    from fastreduce.training.compare import rival

    for name, other in itertools.product(("compare", "lr_sweep"), ("kvstore", "backend")):
        if getattr(config, other) is not None and getattr(args, name) is not None:
            raise ValueError(
                f"{name.replace('_', '-')}: found together with {other} "
                f"{getattr(config, other)!r}, wanted a run without"
            )
    if args.lr_sweep is not None:
        _check_sweep(args, config)
    if args.compare is not None and args.profile:
        raise ValueError(
            "compare: found together with --profile, which slows down the steps that it traces; "
            "leave one of the two out"
        )
    if args.compare is not None:
        rival(config, args.compare)


def _check_sweep(args: argparse.Namespace, config: Config) -> None:
    from fastreduce.training.sweep import configs

    others = (
        *("lr", "replicas", "scale_batch", "checkpoint_every"),
        *("profile", "compare", "tensorboard"),
    )
    if flags := [f"--{name.replace('_', '-')}" for name in others if getattr(args, name)]:
        raise ValueError(
            f"{', '.join(flags)}: found together with --lr-sweep, which trains 1, 2 and 4 replicas "
            "at its rates and keeps their accuracies only; leave one of the two out"
        )
    if len(set(args.devices or ())) < len(args.devices or ()):
        raise ValueError(
            f"devices: found {' '.join(args.devices)} with --lr-sweep, which deals 1, 2 and 4 "
            "replicas out over them, wanted each device once"
        )
    configs(config, args.lr_sweep)


def sweep(config: Config, data: FashionMNIST, lrs: Sequence[float], folder: Path) -> int:
    """Train at all these rates, and say, write and draw what accuracy each reached."""
    from fastreduce.training.sweep import Outcome, sweep, table, write

    title = f"{config.model} after {counted(config.epochs, 'epoch')}"
    outcomes: list[Outcome] = []
    written: list[Path] = []
    try:
        for outcome in sweep(config, data, lrs):
            outcomes.append(outcome)
            accuracy = outcome.test_accuracy
            print(
                f"replicas: {outcome.replicas}, batch: {outcome.batch_size}, lr: {outcome.lr:g}, "
                f"test acc: {'diverged' if accuracy is None else format(accuracy, '.3f')}",
                flush=True,
            )
            written = write(outcomes, folder, title)
    finally:  # also where it is interrupted
        if written:
            print(table(outcomes))
            print("written:", *written)
    return 0
