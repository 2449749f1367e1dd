"""``fastreduce train``: a network on Fashion-MNIST, data-parallel."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from fastreduce.cli import train_config, train_looks, train_options
from fastreduce.cli.status import FAILED, INTERRUPTED
from fastreduce.files import in_words

if TYPE_CHECKING:
    from fastreduce.training import Checkpoint, Config, Epoch, FashionMNIST, Trainer
    from fastreduce.training.report import Metrics

Made = TypeVar("Made")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    train = commands.add_parser("train", help="train on Fashion-MNIST, data-parallel")
    train.set_defaults(run=_train, refuse=train.error)
    train_options.add(train)


def _train(args: argparse.Namespace) -> int:
    return _start(args) if args.resume is None else _resume(args)


def _start(args: argparse.Namespace) -> int:
    from fastreduce.training import load_fashion_mnist
    from fastreduce.training.processes import started
    from fastreduce.training.report import SWEEP, claimed, run_folder

    # Checked before the data is looked for, because that may be a download.
    here = started()
    config = _config(args, train_config.new_config, False)
    _config(args, train_looks.check, config)
    with here.joined(config), here.heard():
        before = here.place_before()
        if before is None:
            run_folder(args.out, config.model)
        data = load_fashion_mnist(args.data)
        config = _config(args, train_config.new_config, data.is_sample)
        here.agree(config, data)
        if before is not None:
            folder = here.folder(before, config)
            return _run(args, config, data, folder, here.last_before(folder), is_new=False)
        if args.lr_sweep:
            with claimed(args.out, config.model, SWEEP) as folder:
                return train_looks.sweep(config, data, args.lr_sweep, folder)
        with here.settled(args.out, config.model) as place:
            return _run(args, config, data, here.folder(place, config), None, is_new=True)


def _resume(args: argparse.Namespace) -> int:
    from fastreduce.training import load_fashion_mnist
    from fastreduce.training.checkpoint import whole
    from fastreduce.training.processes import started
    from fastreduce.training.report import CHECKPOINTS

    here = started()
    found = here.last(args.resume)
    config = _config(args, train_config.resumed_config, found.state.get("config"))
    data = load_fashion_mnist(args.data)
    folder = here.folder(args.resume, config)
    with here.joined(config), here.heard():
        here.agree(config, data)
        if here.size > 1:
            found = here.last_of_all(whole(folder / CHECKPOINTS))
        return _run(args, config, data, folder, found, is_new=False)


def _config(
    args: argparse.Namespace, make: Callable[[argparse.Namespace, Any], Made], about: Any
) -> Made:
    """What ``make`` returns; settings that make no sense are refused as wrong arguments are."""
    refuse: Callable[[str], NoReturn] = args.refuse
    try:
        return make(args, about)
    except ValueError as error:
        refuse(str(error))


def _trainer(args: argparse.Namespace, config: Config, data: FashionMNIST, folder: Path) -> Trainer:
    from fastreduce.training import Trainer
    from fastreduce.training.processes import started
    from fastreduce.training.report import CHECKPOINTS, TRACE

    here = started()
    writes = here.writes(config)
    return Trainer(
        config,
        data,
        progress=here.rank == 0,
        checkpoints=folder / CHECKPOINTS if writes else None,
        checkpoint_every=args.checkpoint_every,
        trace=folder / TRACE if args.profile and writes else None,
    )


def _run(
    args: argparse.Namespace,
    config: Config,
    data: FashionMNIST,
    folder: Path,
    found: Checkpoint | None,
    *,
    is_new: bool,
) -> int:
    """Train, from the checkpoint ``found`` on if there is one."""
    from fastreduce.training.processes import started
    from fastreduce.training.report import METRICS, Metrics

    with contextlib.closing(_trainer(args, config, data, folder)) as trainer:
        past = trainer.restore(found) if found else []
        if len(past) > config.epochs:
            raise ValueError(
                f"--epochs {config.epochs}: found {len(past)} epochs that have ended, wanted no "
                "fewer"
            )
        if not started().writes(config):
            for _ in trainer.epochs():
                pass
            return 0
        looks = train_looks.looks(args, trainer, data, folder)
        metrics = Metrics(folder / METRICS, config, data, None if is_new else past)
        with contextlib.closing(metrics):
            if found:
                started().forget_later(found)
            print(_settings_line(config, data))
            place = f"goes on from {found.path}" if found else f"results go to {folder}"
            if len(past) >= config.epochs:
                place += ", whose epochs have all ended; --epochs trains longer"
            print(place, flush=True)
            if found and (changes := _changes(found, config)):
                print("changed:", changes, flush=True)
            return _follow(trainer, data, metrics, past, looks)


def _changes(found: Checkpoint, config: Config) -> str:
    """The settings that are others than those of the run that goes on."""
    before = found.state["config"]
    pairs = ((name, before.get(name, now), now) for name, now in config.to_json().items())
    return ", ".join(f"{name}: {was} -> {now}" for name, was, now in pairs if was != now)


def _follow(
    trainer: Trainer,
    data: FashionMNIST,
    metrics: Metrics,
    past: list[Epoch],
    looks: list[train_looks.Look],
) -> int:
    from torch.distributed import DistError

    from fastreduce.kvstore import RankEnded
    from fastreduce.training import NonFiniteLoss

    config, epochs, status, how = trainer.config, list(past), 0, ""
    try:
        for epoch in trainer.epochs():
            epochs.append(epoch)
            metrics.add(epoch)
            print(_epoch_line(epoch, config), flush=True)
            for look in looks:
                look.follow(epoch)
        for look in looks:
            look.conclude()
    except NonFiniteLoss as error:
        print(f"fastreduce: error: {error}; try a lower --lr", file=sys.stderr)
        status = FAILED
        # With the same rate it would come to the same loss, and so perhaps with any.
        how = " --lr RATE (if the loss is not finite at once, remove the last checkpoint first)"
    except (OSError, RankEnded, DistError) as error:
        print(f"fastreduce: error: {in_words(error)}", file=sys.stderr)
        status = FAILED
    except KeyboardInterrupt:
        print(f"fastreduce: interrupted in epoch {len(epochs) + 1}", file=sys.stderr)
        status = INTERRUPTED
    _conclude(epochs, config, data, metrics.path, how if status else None)
    return status


def _settings_line(config: Config, data: FashionMNIST) -> str:
    line = f"{_title(config, data)}, epochs: {config.epochs}, seed: {config.seed}"
    if data.is_sample:
        line += " (batch, lr and epochs as they suit the sample, where no flag says otherwise)"
    return line


def _epoch_line(epoch: Epoch, config: Config) -> str:
    line = (
        f"epoch {epoch.epoch}/{config.epochs}: loss {epoch.loss:.3f}, "
        f"test acc {epoch.test_accuracy:.3f}, {epoch.epoch_s:.1f} s"
    )
    if epoch.allreduce_share is not None:
        line += f", {epoch.allreduce_share:.1%} of it in allreduce"
    if epoch.skipped:
        line += f", {epoch.skipped} steps skipped, whose losses were not finite"
    return line


def _conclude(
    epochs: Sequence[Epoch],
    config: Config,
    data: FashionMNIST,
    metrics_path: Path,
    how: str | None,
) -> None:
    """``how`` a run that has not ended goes on: the flags for that."""
    from fastreduce.training.processes import started
    from fastreduce.training.report import (
        CHECKPOINTS,
        PICTURE,
        TENSORBOARD,
        TRACE,
        closing_line,
        plot,
    )

    written = [metrics_path]
    if epochs:
        print(closing_line(epochs, config.devices))
        picture = metrics_path.with_name(PICTURE)
        plot(epochs, picture, _title(config, data))
        written.append(picture)
    else:
        print("no epoch ended: no accuracy, no learning curve")
    others = [metrics_path.with_name(name) for name in (CHECKPOINTS, TRACE, TENSORBOARD)]
    print("written:", *written, *filter(Path.exists, others))
    if how is not None and others[0].is_dir():
        again = f"--resume {shlex.quote(str(metrics_path.parent))}{how}"
        print(f"to go on from there: {started().command} train {again}")


def _title(config: Config, data: FashionMNIST) -> str:
    from fastreduce.training.processes import started

    parts = [
        f"{config.model} on {'a sample of ' if data.is_sample else ''}Fashion-MNIST",
        f"replicas: {len(config.devices)}",
        f"batch: {config.batch_size}",
        f"lr: {config.lr:g}",
        f"init: {config.init}",
    ]
    others = {
        "lr schedule": config.lr_schedule if config.lr_schedule != "constant" else None,
        "momentum": config.momentum or None,
        "weight decay": config.weight_decay or None,
        "allreduce": config.allreduce,
        "precision": config.precision if config.precision != "fp32" else None,
        "compile": config.compile,
        "reproducible": config.reproducible,
        "kvstore": config.kvstore,
        "staleness": config.staleness,
        "backend": config.backend,
        "processes": started().size if config.backend else None,
    }
    given = [f"{name}: {x}" for name, x in others.items() if x is not None and x is not False]
    return ", ".join([*parts, *given])
