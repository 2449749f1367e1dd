"""The options of ``fastreduce train``."""

from __future__ import annotations

import argparse

from fastreduce.cli.paths import folder


def add(train: argparse.ArgumentParser) -> None:
    """Add all of them. None stands for what was not asked for: a default depends on the model, on
    the data and on the run that goes on."""
    _add_settings(train.add_argument_group("what is trained"))
    _add_execution(train.add_argument_group("how a step is computed"))
    _add_replicas(train.add_argument_group("replicas"))
    _add_processes(train.add_argument_group("a key-value store, and the processes of torchrun"))
    _add_files(train.add_argument_group("files"))
    _add_looks(train.add_argument_group("a closer look"))


def _add_settings(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--model", metavar="NAME", help="lenet, resnet18 or mlp (default: lenet)")
    group.add_argument(
        "--batch-size",
        type=int,
        help="examples per step, over all replicas (default: 256; on the shipped sample 16, and 32 "
        "for resnet18)",
    )
    group.add_argument(
        "--scale-batch",
        action="store_true",
        default=None,
        help="take --batch-size for each replica of each process instead",
    )
    group.add_argument(
        "--lr",
        type=float,
        help="learning rate (default: 0.2 for lenet, else 0.1; on the shipped sample 0.08 for "
        "lenet, 0.05 for resnet18)",
    )
    group.add_argument(
        "--lr-schedule",
        metavar="NAME",
        help="constant, or linear: the rate falls in equal steps, from --lr in the first epoch to "
        "--lr / --epochs in the last (default: constant)",
    )
    group.add_argument("--momentum", type=float, help="of SGD (default: 0); not in a kvstore")
    group.add_argument("--weight-decay", type=float, help="of SGD (default: 0); not in a kvstore")
    group.add_argument(
        "--epochs",
        type=int,
        help="passes over the data (default: 10; on the shipped sample 3, and 1 for resnet18)",
    )
    group.add_argument("--steps", type=int, help="at most so many steps per epoch (default: all)")
    group.add_argument(
        "--init",
        metavar="NAME",
        help="first weights: kaiming, which learns from the first step on, or book, 0.01 * randn "
        "as in the book, with which LeNet stays on a plateau for some 300 steps (default: kaiming)",
    )
    group.add_argument(
        "--seed",
        type=int,
        help="of the first weights and of the order of the images (default: 0)",
    )
    group.add_argument(
        "--skip-nonfinite",
        action="store_true",
        default=None,
        help="leave out a step whose loss is not finite, and count it, instead of stopping (looks "
        "at the losses before each update, so GPUs are waited for)",
    )


def _add_execution(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--precision", metavar="NAME", help="fp32, or bf16: autocast (default: fp32)"
    )
    group.add_argument(
        "--compile", action="store_true", default=None, help="compile the model by torch.compile"
    )
    group.add_argument(
        "--graph",
        action="store_true",
        default=None,
        help="capture each step of all replicas, its update too, into one CUDA graph (untried on "
        "several GPUs)",
    )
    group.add_argument(
        "--overlap",
        action=argparse.BooleanOptionalAction,
        help="sum gradients while the backward pass goes on, or all of them after it (default: "
        "--overlap)",
    )


def _add_replicas(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--devices",
        nargs="+",
        metavar="DEVICE",
        help="such as cuda:0 cuda:1, or cpu (default: all GPUs, else cpu; with --resume those "
        "before)",
    )
    group.add_argument(
        "--replicas",
        type=int,
        help="copies of the model, dealt out over the devices in turn (default: one per device; 2 "
        "where the CPU is the only one, and this the only process; with --resume as before)",
    )
    group.add_argument(
        "--reproducible",
        type=int,
        metavar="N",
        help="cut each batch into N micro-shards: the same bits on 1 to N replicas (with --kvstore "
        "each process cuts its part of the batch, so their number counts)",
    )
    group.add_argument(
        "--allreduce",
        metavar="NAME",
        help="train LeNet with the book's own functions instead of fastreduce.DataParallel, and "
        "sum the gradients with auto, leader, sharded, ring or another algorithm that is "
        "registered, or with loop: the book's loop over the parameters",
    )


def _add_processes(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--kvstore",
        metavar="KIND",
        help="keep and update the parameters in a fastreduce.KVStore: local, or among the "
        "processes that torchrun starts dist_sync or dist_async; each takes a part of every batch",
    )
    group.add_argument(
        "--staleness",
        type=int,
        metavar="STEPS",
        help="by how many steps a process may be ahead of another with --kvstore dist_async "
        "(default: any number)",
    )
    group.add_argument(
        "--backend",
        metavar="NAME",
        help="train by DistributedDataParallel in the processes that torchrun starts, one replica "
        "in each: with fastreduce, which is what torchrun gets without a --kvstore, or gloo",
    )


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"found {text!r}, wanted a number of steps, at least 1")
    return int(text)


def _add_files(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--data",
        metavar="DIR",
        type=folder,
        help="where Fashion-MNIST's four IDX files are "
        "(default: $FASTREDUCE_DATA, else found or downloaded)",
    )
    group.add_argument(
        "--out",
        metavar="DIR",
        type=folder,
        help="where metrics.jsonl, learning_curve.png and checkpoints go, a folder that holds none "
        "yet (default: runs/MODEL, or runs/MODEL-2 and so on where earlier runs are kept)",
    )
    group.add_argument(
        "--checkpoint-every",
        type=_count,
        metavar="STEPS",
        help="write a checkpoint every so many steps of an epoch, too, and not only at its end; "
        "the last 3 are kept",
    )
    group.add_argument(
        "--resume",
        metavar="DIR",
        type=folder,
        help="go on with the run whose results are in DIR, with its settings; only --lr, "
        "--skip-nonfinite, --devices, --replicas, --epochs, --checkpoint-every, --data, --profile "
        "and --tensorboard may be given",
    )


def _add_looks(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--profile",
        action="store_true",
        help="write a trace of a few steps for chrome://tracing or ui.perfetto.dev",
    )
    group.add_argument(
        "--compare",
        metavar="NAME",
        help="train a second time, epoch by epoch in turn, and compare seconds and parameters: "
        "with loop (the book's functions and loop), single (one replica), or nn (nn.DataParallel)",
    )
    group.add_argument(
        "--lr-sweep",
        nargs="+",
        type=float,
        metavar="LR",
        help="instead of one run, train 1, 2 and 4 replicas, each with a batch of --batch-size, at "
        "each of these learning rates: a table and a picture of the accuracies",
    )
    group.add_argument(
        "--tensorboard",
        action="store_true",
        help="write events for TensorBoard, which must be installed",
    )
