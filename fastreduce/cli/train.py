"""``fastreduce train``: LeNet on Fashion-MNIST, data-parallel."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from fastreduce.cli.status import FAILED, INTERRUPTED

if TYPE_CHECKING:
    from fastreduce.training import Config, Epoch, FashionMNIST


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
        default=Path("runs/lenet"),
        help="where metrics.jsonl and learning_curve.png go (default: %(default)s)",
    )


def _add_model_options(train: argparse.ArgumentParser) -> None:
    default = "(default: %(default)s)"
    train.add_argument(
        "--batch-size", type=int, default=256, help=f"examples a step, over all replicas {default}"
    )
    train.add_argument(
        "--scale-batch", action="store_true", help="take --batch-size for each replica instead"
    )
    train.add_argument("--lr", type=float, default=0.2, help=f"learning rate {default}")
    train.add_argument("--epochs", type=int, default=10, help=f"passes over the data {default}")
    train.add_argument("--steps", type=int, help="at most so many steps an epoch (default: all)")
    train.add_argument(
        "--seed", type=int, default=0, help=f"of the first parameters and the order {default}"
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
        "(default: one a device; 2 where the CPU is the only one)",
    )
    train.add_argument(
        "--allreduce",
        default="auto",
        metavar="NAME",
        help="auto, leader, sharded, ring or another algorithm that is registered; "
        "loop: the book's loop over the parameters, to compare (default: auto)",
    )


def _train(args: argparse.Namespace) -> int:
    from fastreduce.training import Trainer, load
    from fastreduce.training.report import Metrics

    config = _config(args)
    data = load(args.data)
    metrics = Metrics(args.out / "metrics.jsonl", config, data)
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


def _config(args: argparse.Namespace) -> Config:
    from fastreduce.training import Config
    from fastreduce.training.devices import deal_devices, default_replicas, usable_devices

    try:
        devices = usable_devices(args.devices)
        replicas = default_replicas(devices) if args.replicas is None else args.replicas
        return Config(
            devices=deal_devices(devices, replicas),
            batch_size=args.batch_size * (replicas if args.scale_batch else 1),
            lr=args.lr,
            epochs=args.epochs,
            allreduce=args.allreduce,
            seed=args.seed,
            steps=args.steps,
        )
    except ValueError as error:
        refuse: Callable[[str], NoReturn] = args.refuse
        refuse(str(error))


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
        from fastreduce.training.report import plot
        from fastreduce.training.trainer import closing_line

        print(closing_line(epochs, config.devices))
        picture = metrics_path.with_name("learning_curve.png")
        plot(epochs, picture, _title(config, data))
        written.append(picture)
    else:
        print("no epoch ended: no accuracy, no learning curve")
    print("written:", *written)


def _title(config: Config, data: FashionMNIST) -> str:
    return (
        f"LeNet on {'a sample of ' if data.is_sample else ''}Fashion-MNIST, "
        f"replicas: {len(config.devices)}, batch: {config.batch_size}, lr: {config.lr:g}, "
        f"allreduce: {config.allreduce}"
    )
