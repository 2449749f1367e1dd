"""``fastreduce train``: LeNet on Fashion-MNIST, data-parallel."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from fastreduce.cli.status import FAILED, INTERRUPTED

if TYPE_CHECKING:
    from fastreduce.training import Config, Epoch, FashionMNIST
    from fastreduce.training.report import Metrics


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    train = commands.add_parser("train", help="train LeNet on Fashion-MNIST, data-parallel")
    train.set_defaults(run=_train, refuse=train.error)
    _add_model_options(train)
    _add_replica_options(train)
    train.add_argument(
        "--data",
        metavar="DIR",
        help="where Fashion-MNIST's four IDX files are "
        "(default: $FASTREDUCE_DATA, else found or downloaded)",
    )
    train.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        help="where metrics.jsonl and learning_curve.png go, a folder that holds none yet "
        "(default: runs/lenet, or runs/lenet-2 and so on where earlier runs are kept)",
    )


def _add_model_options(train: argparse.ArgumentParser) -> None:
    # The first three have a default for the whole set and one for the sample: see _config.
    train.add_argument(
        "--batch-size",
        type=int,
        help="examples per step, over all replicas (default: 256; 16 on the shipped sample)",
    )
    train.add_argument(
        "--scale-batch", action="store_true", help="take --batch-size for each replica instead"
    )
    train.add_argument(
        "--lr", type=float, help="learning rate (default: 0.2; 0.08 on the shipped sample)"
    )
    train.add_argument(
        "--epochs", type=int, help="passes over the data (default: 10; 3 on the shipped sample)"
    )
    train.add_argument("--steps", type=int, help="at most so many steps per epoch (default: all)")
    train.add_argument(
        "--init",
        default="kaiming",
        metavar="NAME",
        help="first weights: kaiming, which learns from the first step on, or book, 0.01 * randn "
        "as in the book, which stays on a plateau for some 300 steps (default: %(default)s)",
    )
    train.add_argument(
        "--seed",
        type=int,
        default=0,
        help="of the first weights and of the order of the images (default: %(default)s)",
    )


def _add_replica_options(train: argparse.ArgumentParser) -> None:
    train.add_argument(
        "--devices",
        nargs="+",
        metavar="DEVICE",
        help="such as cuda:0 cuda:1, or cpu (default: all GPUs, else cpu)",
    )
    train.add_argument(
        "--replicas",
        type=int,
        help="copies of the model, dealt out over the devices in turn "
        "(default: one per device; 2 where the CPU is the only one)",
    )
    train.add_argument(
        "--allreduce",
        default="auto",
        metavar="NAME",
        help="auto, leader, sharded, ring or another algorithm that is registered; "
        "loop: the book's loop over the parameters, to compare (default: auto)",
    )


def _train(args: argparse.Namespace) -> int:
    from fastreduce.training import load
    from fastreduce.training.report import METRICS, Metrics, run_folder
    from fastreduce.training.trainer import SAMPLE_SETTINGS

    # Checked before the data is looked for, because that may be a download.
    config = _config(args, {})
    folder = run_folder(args.out)
    data = load(args.data)
    if data.is_sample:
        config = _config(args, SAMPLE_SETTINGS)
    metrics = Metrics(folder / METRICS, config, data)
    print(_settings_line(config, data))
    print("results go to", folder, flush=True)
    return _run(config, data, metrics)


def _run(config: Config, data: FashionMNIST, metrics: Metrics) -> int:
    from fastreduce.training import Trainer

    epochs: list[Epoch] = []
    status = 0
    try:
        for epoch in Trainer(config, data).epochs():
            epochs.append(epoch)
            metrics.add(epoch)
            print(_epoch_line(epoch, config), flush=True)
            if not math.isfinite(epoch.loss):
                print("fastreduce: error: the training diverged; try a lower --lr", file=sys.stderr)
                status = FAILED
                break
    except KeyboardInterrupt:
        print(f"fastreduce: interrupted in epoch {len(epochs) + 1}", file=sys.stderr)
        status = INTERRUPTED
    _conclude(epochs, config, data, metrics.path)
    return status


def _config(args: argparse.Namespace, defaults: Mapping[str, Any]) -> Config:
    """Settings from the flags, else from ``defaults``, else those that suit the whole set."""
    from fastreduce.devices import deal_devices, default_replicas, usable_devices
    from fastreduce.training import Config

    flags = {"batch_size": args.batch_size, "lr": args.lr, "epochs": args.epochs}
    settings = {**defaults, **{name: flag for name, flag in flags.items() if flag is not None}}
    try:
        devices = usable_devices(args.devices)
        replicas = default_replicas(devices) if args.replicas is None else args.replicas
        config = Config(
            devices=deal_devices(devices, replicas),
            allreduce=args.allreduce,
            seed=args.seed,
            steps=args.steps,
            init=args.init,
            **settings,
        )
        if args.scale_batch:
            config = replace(config, batch_size=config.batch_size * replicas)
        return config
    except ValueError as error:
        refuse: Callable[[str], NoReturn] = args.refuse
        refuse(str(error))


def _settings_line(config: Config, data: FashionMNIST) -> str:
    line = f"{_title(config, data)}, epochs: {config.epochs}, seed: {config.seed}"
    if data.is_sample:
        line += " (batch, lr and epochs as they suit the sample, where no flag says otherwise)"
    return line


def _epoch_line(epoch: Epoch, config: Config) -> str:
    return (
        f"epoch {epoch.epoch}/{config.epochs}: loss {epoch.loss:.3f}, "
        f"test acc {epoch.test_accuracy:.3f}, {epoch.epoch_s:.1f} s, "
        f"{epoch.allreduce_share:.1%} of it in allreduce"
    )


def _conclude(
    epochs: Sequence[Epoch], config: Config, data: FashionMNIST, metrics_path: Path
) -> None:
    written = [metrics_path]
    if epochs:
        from fastreduce.training.report import PICTURE, plot
        from fastreduce.training.trainer import closing_line

        print(closing_line(epochs, config.devices))
        picture = metrics_path.with_name(PICTURE)
        plot(epochs, picture, _title(config, data))
        written.append(picture)
    else:
        print("no epoch ended: no accuracy, no learning curve")
    print("written:", *written)


def _title(config: Config, data: FashionMNIST) -> str:
    return (
        f"LeNet on {'a sample of ' if data.is_sample else ''}Fashion-MNIST, "
        f"replicas: {len(config.devices)}, batch: {config.batch_size}, lr: {config.lr:g}, "
        f"init: {config.init}, allreduce: {config.allreduce}"
    )
