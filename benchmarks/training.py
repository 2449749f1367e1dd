"""What does a training step of the book's LeNet cost, and how much of that is the allreduce?

    python benchmarks/training.py                                     # about a minute
    python benchmarks/training.py -k 2 4 --out benchmarks/results/training

All contenders use the same batch of `fastreduce train`'s data and begin with the same parameters:
the trainer's step (`fastreduce.training.train_batch`); the same with the book's loop instead of
fastreduce.allreduce; the bare loop of *Dive into Deep Learning* (a backward pass for each replica,
the loop over each parameter's gradients, the update); and one replica that takes the whole batch,
which is training without data parallelism.

Before anything is timed, each contender takes three steps and is checked: its replicas must hold
the same bits; with k replicas these must be the bare loop's bits; one replica must have the same
values up to rounding. Times are medians of one step, contenders in turn. An epoch is as many steps
as the 60,000 images of Fashion-MNIST fill, without the evaluation.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from axes import save_figure, show_title, where
from measure import alternate, at_least, machine, medians, preamble, save, stem
from rows import Row
from torch import Tensor

from fastreduce.devices import deal_devices, usable_devices
from fastreduce.training import (
    check_replicas,
    get_params,
    initial_params,
    lenet,
    load_fashion_mnist,
    loop_allreduce,
    loss,
    sgd,
    split_batch,
    train_batch,
)

BATCH, LR, IMAGES = 256, 0.2, 60_000
EPOCH_STEPS = -(-IMAGES // BATCH)
CHECKED_STEPS = 3

Replicas = list[list[Tensor]]
Devices = Sequence[torch.device]
Step = Callable[[Tensor, Tensor, Replicas, Devices], Any]


def bare(X: Tensor, y: Tensor, replicas: Replicas, devices: Devices) -> None:
    """The step of *Dive into Deep Learning*, "Training on Multiple GPUs", unchanged."""
    shards = zip(*split_batch(X, y, devices), replicas, strict=True)
    losses = [loss(lenet(X_shard, params), y_shard) for X_shard, y_shard, params in shards]
    for shard_loss in losses:
        shard_loss.backward()
    with torch.no_grad():
        for i in range(len(replicas[0])):
            loop_allreduce([[params[i].grad] for params in replicas])
    for params in replicas:
        sgd(params, [p.grad for p in params], LR, len(X))
        for p in params:
            p.grad = None


def contenders(k: int) -> dict[str, tuple[int, Step]]:
    """By name: the number of replicas, and their step."""
    return {
        "trainer": (k, partial(train_batch, lr=LR)),
        "trainer, loop": (k, partial(train_batch, lr=LR, allreduce=loop_allreduce)),
        "bare loop": (k, bare),
        "one replica": (1, bare),
    }


def batch() -> tuple[Tensor, Tensor]:
    data = load_fashion_mnist().train
    rows = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[:BATCH]
    return data.images[rows], data.labels[rows]


def replicas_on(devices: Devices) -> Replicas:
    params = initial_params(torch.Generator().manual_seed(0))
    return [get_params(params, device) for device in devices]


def check(steps: dict[str, tuple[int, Step]], X: Tensor, y: Tensor) -> None:
    """Raise AssertionError, which names the contender, if one trains a different model."""
    found = {}
    for name, (k, step) in steps.items():
        devices = devices_of(k)
        replicas = replicas_on(devices)
        for _ in range(CHECKED_STEPS):
            step(X, y, replicas, devices)
        check_replicas(replicas)
        found[name] = [p.detach().cpu() for p in replicas[0]]
    for name, params in found.items():
        one = steps[name][0] == 1
        for index, (own, wanted) in enumerate(zip(params, found["bare loop"], strict=True)):
            same = torch.allclose(own, wanted, 1e-3, 1e-5) if one else torch.equal(own, wanted)
            assert same, f"{name}: parameter {index} is not the bare loop's after the same steps"


def devices_of(k: int) -> tuple[torch.device, ...]:
    return deal_devices(usable_devices()[:k], k)


def measure(k: int, rounds: int, X: Tensor, y: Tensor) -> list[Row]:
    steps = contenders(k)
    check(steps, X, y)

    def call(ranks: int, step: Step) -> Callable[[], None]:
        devices = devices_of(ranks)
        replicas, here = replicas_on(devices), (X.to(devices[0]), y.to(devices[0]))

        def run() -> None:
            step(*here, replicas, devices)
            for device in devices:
                if device.type == "cuda":
                    torch.cuda.synchronize(device)

        return run

    step_s = medians(alternate({name: call(*x) for name, x in steps.items()}, rounds))
    return [
        {
            "replicas": steps[name][0],
            "k": k,
            "contender": name,
            "step_s": step_s[name],
            "epoch_s": step_s[name] * EPOCH_STEPS,
            "over_bare_loop": step_s["bare loop"] / step_s[name],
        }
        for name in steps
    ]


def draw(rows: list[Row], about: dict[str, Any], path: Path) -> None:
    from matplotlib.figure import Figure

    names = [
        f"{x['contender']}, k = {x['k']}" if x["replicas"] > 1 else x["contender"] for x in rows
    ]
    figure = Figure(figsize=(7, 0.9 + 0.35 * len(rows)), layout="constrained")
    axes = figure.subplots()
    bars = axes.barh(range(len(rows)), [row["step_s"] * 1e3 for row in rows])
    axes.bar_label(bars, [f" {row['epoch_s']:.1f} s per epoch" for row in rows], fontsize=8)
    axes.set(xlabel=f"ms per step of {BATCH} images", yticks=range(len(rows)), yticklabels=names)
    axes.margins(x=0.25)
    axes.invert_yaxis()
    place = where(about, on_gpu="gpu" in about)
    show_title(figure, f"LeNet on Fashion-MNIST, k replicas\n{place}")
    save_figure(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "-k", type=at_least(1), nargs="+", default=[2], help="numbers of replicas (2)"
    )
    parser.add_argument("-n", type=at_least(1), default=21, help="rounds; median shown (21)")
    parser.add_argument("--out", type=stem, help="write OUT.json and OUT.png")
    args = parser.parse_args()
    about = machine()
    print(preamble(about))
    line = "{:>8} {:>14} {:>10} {:>10} {:>14}".format
    print(line("#", "contender", "step", "epoch", "over bare loop"))
    print(line("#replicas", "", "(ms)", "(s)", ""))
    rows: list[Row] = []
    X, y = batch()
    for k in args.k:
        fresh = measure(k, args.n, X, y)
        rows += fresh
        for row in fresh:
            times = (f"{row['step_s'] * 1e3:.2f}", f"{row['epoch_s']:.2f}")
            ratio = f"{row['over_bare_loop']:.2f}"
            print(line(row["replicas"], row["contender"], *times, ratio), flush=True)
    print("# the parameters after three steps : OK")
    if args.out:
        save(args.out.with_suffix(".json"), {"machine": about, "rows": rows})
        draw(rows, about, args.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
