"""What does `fastreduce.DataParallel` cost in a training step, beside the model without it?

    python benchmarks/data_parallel.py                               # some minutes
    python benchmarks/data_parallel.py -m LeNet MLP -k 2 --no-ddp --out benchmarks/results/dp

All contenders run on the CPU, with one batch of random data and equal initial parameters: the bare
module; `DataParallel` with k replicas (`model.backward`), which run at the same time; the same with
at_once=False, one by one; the ten lines of docs/training.md, which copy the module k times and
update k copies; the bare module with the batch in k parts, one after the other, whose gradients it
accumulates; one replica with reproducible=8; and torch's DDP, two processes of one thread each over
Gloo. Those cannot take turns with the others: they run right after them, once per model. All
contenders have the same cores: what is above the bare module is the price of small shards, the sum
and the wrapper. The accumulating loop has small shards too, but no wrapper and one list of
gradients: no way to run k shards one after the other can be much faster than it. `DataParallel` has
the C library keep freed memory (csrc/shard_threads.cpp); so have all contenders of the process.

Before anything is timed, each contender takes two steps, and its parameters must be the bare
module's up to rounding (DDP's are looked at when it has run). Without sync_batchnorm, BatchNorm
normalizes with a shard's own statistics: models with it must have the parameters of the ten lines
with as many shards. Times are medians of one step, contenders in turn. "sum" is one
`fastreduce.reduce` of as many lists of gradients as there are shards, alone (the ten lines and DDP
do an allreduce instead). "hidden" is the share of the time of `DataParallel`'s sums that passes
while other threads compute, from a trace of one more step. "memory" is what a process that takes a
few steps needs at its peak more than before it had the model; each contender has a process of its
own for that.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from axes import save_figure, show_title, where
from hidden import hidden_share, spans_of
from measure import alternate, at_least, machine, medians, preamble, save, stem
from memory import peak_bytes
from nets import SHAPES, task
from rows import Row
from step_contenders import (
    LR,
    Contender,
    Started,
    Step,
    check,
    contenders,
    ddp,
    has_batchnorm,
    trained,
)
from torch import nn

import fastreduce

DDP = "DDP, Gloo, 2 processes"


def steps(model: str, start: Callable[..., Started]) -> None:
    trained(start, task(model))


def following(net: nn.Module, rounds: int) -> Row:
    """What a replica with a copy of its own needs after a step: the parameters by one broadcast, or
    an optimizer of its own (which would need all gradients, too)."""
    lists = [[p.detach().clone() for p in net.parameters()] for _ in range(2)]
    params = [p.clone().requires_grad_() for p in lists[0]]
    for param in params:
        param.grad = torch.ones_like(param)
    ways: dict[str, Step] = {"broadcast": partial(fastreduce.broadcast, lists)}
    for kind in (torch.optim.SGD, torch.optim.AdamW):
        ways[kind.__name__] = kind(params, lr=LR).step
    return medians(alternate(ways, rounds))


def measure(model: str, own: Mapping[str, Contender], rounds: int, with_ddp: bool) -> list[Row]:
    fresh = task(model)
    started = {name: trained(start, fresh) for name, (_, _, start) in own.items()}
    check(fresh, {name: (own[name][1], params) for name, (_, params) in started.items()})
    samples = alternate({name: step for name, (step, _) in started.items()}, rounds, warmup=0)
    counts = {name: (replicas, shards) for name, (replicas, shards, _) in own.items()}
    if with_ddp:
        samples[DDP], params = ddp(model, rounds)
        counts[DDP] = (2, 2)
        check(fresh, {DDP: (2, params)})
    lists = {
        k: [[torch.ones_like(p) for p in fresh[0].parameters()] for _ in range(k)]
        for k in {shards for _, shards in counts.values()} - {1}
    }
    sums = alternate({k: partial(fastreduce.reduce, x) for k, x in lists.items()}, rounds)
    sum_s, step_s = medians(sums), medians(samples)
    hidden = {name: hidden_share(spans_of(step)) for name, (step, _) in started.items()}
    return [
        {
            "model": model,
            "parameters": sum(p.numel() for p in fresh[0].parameters()),
            "contender": name,
            "replicas": replicas,
            "shards": shards,
            "step_s": step_s[name],
            "over_bare": step_s[name] / step_s["bare"],
            "sum_s": sum_s.get(shards),
            "share": sum_s[shards] / step_s[name] if shards > 1 else None,
            "hidden": hidden.get(name),
            "peak_bytes": peak_bytes(partial(steps, model, own[name][2])) if name in own else None,
        }
        for name, (replicas, shards) in counts.items()
    ]


def draw(rows: list[Row], about: dict[str, Any], path: Path) -> None:
    from matplotlib.figure import Figure

    models = list(dict.fromkeys(row["model"] for row in rows))
    rows = sorted((x for x in rows if x["contender"] != "bare"), key=lambda x: x["shards"])
    shards = {row["contender"]: row["shards"] for row in rows}
    groups = sorted(set(shards.values()))
    at = {name: i + 0.6 * groups.index(k) for i, (name, k) in enumerate(shards.items())}
    kinds = list(dict.fromkeys(name.split(",")[0] for name in shards))
    figure = Figure(figsize=(2 + 2.3 * len(models), 1.2 + 0.33 * len(at)), layout="constrained")
    panels = figure.subplots(1, len(models), sharex=True, sharey=True, squeeze=False)[0]
    for axes, model in zip(panels, models, strict=True):
        own = {row["contender"]: row["over_bare"] for row in rows if row["model"] == model}
        colours = [f"C{kinds.index(name.split(',')[0])}" for name in own]
        axes.axvline(1, color="grey", linewidth=0.8, zorder=0)
        bars = axes.barh([at[name] for name in own], list(own.values()), color=colours)
        axes.bar_label(bars, fmt=" %.2f", fontsize=8)
        axes.set(yticks=list(at.values()), yticklabels=list(at), xlabel="time over bare")
        axes.set_title(model, fontsize=9)
        axes.margins(x=0.25)
    panels[0].invert_yaxis()
    title = "A training step's time over the bare module's; behind a name: how many replicas"
    show_title(figure, f"{title}\n{where(about)}")
    save_figure(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", nargs="+", choices=SHAPES, default=list(SHAPES), help="models (all)")
    parser.add_argument(
        "-k", type=at_least(1), nargs="+", default=[1, 2, 4], help="replicas (1 2 4)"
    )
    parser.add_argument("-n", type=at_least(1), default=7, help="rounds; median shown (7)")
    parser.add_argument("--no-ddp", action="store_true", help="without DistributedDataParallel")
    parser.add_argument("--out", type=stem, help="write OUT.json and OUT.png")
    args = parser.parse_args()
    about = machine()
    print(preamble(about))
    line = "{:>12} {:>11} {:>22} {:>9} {:>10} {:>10} {:>9} {:>7} {:>7} {:>11}".format
    names = ("parameters", "contender", "replicas", "step (ms)", "over bare", "sum (ms)", "share")
    names += ("hidden", "memory (MB)")
    print(line("#      model", *names))
    rows: list[Row] = []
    follow_s: dict[str, Row] = {}
    for model in args.m:
        own = contenders(args.k, has_batchnorm(task(model)[0]))
        fresh = measure(model, own, args.n, not args.no_ddp)
        rows += fresh
        for row in fresh:
            what = (row["model"], row["parameters"], row["contender"], row["replicas"])
            times = (f"{row['step_s'] * 1e3:.2f}", f"{row['over_bare']:.2f}")
            alone = row["sum_s"] is None
            part = ("-", "-") if alone else (f"{row['sum_s'] * 1e3:.2f}", f"{row['share']:.1%}")
            hidden = "-" if row["hidden"] is None else f"{row['hidden']:.1%}"
            peak = "-" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 1e6:.0f}"
            print(line(*what, *times, *part, hidden, peak), flush=True)
        follow_s[model] = following(task(model)[0], args.n)
    print("# the parameters after two steps : OK")
    print("# A copy of the parameters follows by a broadcast, or by a step of its own:")
    for model, found in follow_s.items():
        print(f"# {model}:", ", ".join(f"{name} {x * 1e3:.2f} ms" for name, x in found.items()))
    if args.out:
        content = {"machine": about, "rows": rows, "follow_s": follow_s}
        save(args.out.with_suffix(".json"), content)
        draw(rows, about, args.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
