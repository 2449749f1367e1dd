"""The commands ``fastreduce train``, ``fastreduce plan`` and ``fastreduce doctor``."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from fastreduce.topology import Topology
    from fastreduce.training import Config, Epoch, FashionMNIST

FAILED = 1
PLAN_DESCRIPTION = (
    "Predict how long each algorithm takes for an allreduce, which limit binds, and which is the "
    "fastest. Nothing is run."
)
INTERRUPTED = 130  # As a shell reports a process that SIGINT ended.


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that ``argv`` (default: the process's) names, and return its exit status.

    0 is success, 1 an error on the way, 130 an end by Ctrl-C. Arguments that make no sense raise
    SystemExit(2), after a line that says which and why, as argparse does.

    >>> main(["train", "--data", "/no/such/folder"])
    1
    """
    args = _parser().parse_args(argv)
    try:
        status: int = args.run(args)
        return status
    except KeyboardInterrupt:
        print("fastreduce: interrupted", file=sys.stderr)
        return INTERRUPTED
    except (OSError, RuntimeError, ValueError) as error:
        print(f"fastreduce: error: {error}", file=sys.stderr)
        return FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("fastreduce", description="Allreduce for PyTorch.")
    commands = parser.add_subparsers(required=True, metavar="command")
    doctor = commands.add_parser("doctor", help="print versions, devices, and what is missing")
    doctor.set_defaults(run=_doctor)
    _add_plan(commands)
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
    return parser


def _add_plan(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    plan = commands.add_parser(
        "plan", help="predict every algorithm on a machine, on paper", description=PLAN_DESCRIPTION
    )
    plan.set_defaults(run=_plan, refuse=plan.error)
    plan.add_argument(
        "--topology",
        metavar="NAME|FILE",
        help="a preset's name, a JSON file, or 'detect' (default: ranks in one memory, the CPU's)",
    )
    plan.add_argument(
        "--machines", type=int, default=1, help="so many of that preset, networked (default: 1)"
    )
    plan.add_argument(
        "--gbit", type=float, default=400.0, help="of a network card (default: %(default)g)"
    )
    plan.add_argument(
        "--nics", type=int, default=1, help="network cards a machine (default: %(default)s)"
    )
    plan.add_argument("--size", default="160MB", help="bytes a rank: 160MB, 64MiB (default: 160MB)")
    plan.add_argument("--ranks", type=int, help="default: the topology's GPUs; 2 without one")
    plan.add_argument(
        "--algorithm", metavar="NAME", help="to draw and trace (default: the one that is chosen)"
    )
    plan.add_argument("--draw", metavar="SVG", help="draw who sends which shard to whom")
    plan.add_argument("--trace", metavar="JSON", help="write a trace for ui.perfetto.dev")
    plan.add_argument("--timeline", metavar="PNG", help="draw when each device and link works")


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


def _plan(args: argparse.Namespace) -> int:
    from fastreduce import draw, explain, simulate
    from fastreduce.units import parse_size

    refuse: Callable[[str], NoReturn] = args.refuse
    if (args.trace or args.timeline) and not args.topology:
        refuse("--trace and --timeline show links: they need a --topology")
    try:
        nbytes, topology = parse_size(args.size), _topology(args)
        plan = explain(nbytes, k=args.ranks, topology=topology)
        shown = plan.candidate(args.algorithm or plan.algorithm)
    except ValueError as error:
        refuse(str(error))
    print(plan)
    if args.draw:
        draw(shown.program, args.draw)
    if topology and (args.trace or args.timeline):
        sizes = [nbytes] if shown.program.whole_tensors else nbytes
        timeline = simulate(shown.program, topology, sizes, slices=shown.slices)
        if args.trace:
            timeline.to_trace(args.trace)
        if args.timeline:
            timeline.to_png(args.timeline)
    if written := [path for path in (args.draw, args.trace, args.timeline) if path]:
        print("written:", *written)
    return 0


def _topology(args: argparse.Namespace) -> Topology | None:
    from fastreduce.topology import cluster, detect, load, names, preset

    if args.topology is None:
        return None
    if args.machines != 1:
        return cluster(args.topology, args.machines, args.gbit, nics=args.nics)
    if args.topology == "detect":
        return detect()
    if args.topology in names() or not Path(args.topology).exists():
        return preset(args.topology)
    return load(args.topology)


def _doctor(_: argparse.Namespace) -> int:
    from fastreduce.doctor import report

    print(report())
    return 0


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
