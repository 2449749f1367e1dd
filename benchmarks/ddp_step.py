"""What does a step of DistributedDataParallel cost by the backend "fastreduce", and by Gloo?

    python benchmarks/ddp_step.py --out benchmarks/results/ddp_step      # some minutes

Two processes of one thread each train the same networks on random data: through either backend, and
with DDP that sums nothing, where the ranks only wait for each other after each step. The contenders
take turns, in another order in each round, and the time of a step is that of the slower rank.
"synchronisation" is what the step takes longer than without sums in the same round: what a backend
costs that DDP does not hide behind the backward pass. Times are medians. LeNet is trained with the
book's batch of 256, and with 32, where a step is short and synchronisation a larger part of it.

Before anything is timed, each takes two steps; through either backend, all ranks must then have the
same parameters, to the bit, and those of the other backend but for rounding.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from operator import sub
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from axes import one_legend, save_figure, show_title, where
from measure import at_least, machine, medians, preamble, save, slowest_s, stem
from nets import task
from rows import Row
from step_contenders import CHECKED_STEPS, bare, vector
from torch import Tensor, nn
from torch.multiprocessing import start_processes
from torch.nn.parallel import DistributedDataParallel

from fastreduce.distributed import register

PROCESSES = 2
# By name: the network, the examples of a batch over all ranks, the steps of a sample.
MODELS = {
    "LeNet": ("LeNet", 256, 10),
    "LeNet, batch 32": ("LeNet", 32, 40),
    "ResNet-18": ("ResNet-18", 16, 1),
    "transformer": ("transformer", 8, 1),
}
NO_SUMS = "no sums"


def unsummed(_, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations kept as text
    """DDP's hook for a bucket: it stays as this rank has it."""
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def started(model: str, rank: int, group: Any) -> tuple[Callable[[], Any], nn.Module]:
    """A step of DDP on this rank's part of the batch; without a group, one that sums nothing."""
    name, examples, _ = MODELS[model]
    net, X, y = task(name)
    X, y = (x[:examples].chunk(PROCESSES)[rank] for x in (X, y))
    model_of_rank = DistributedDataParallel(net, process_group=group)
    step, net = bare(model_of_rank, X, y)
    if group is not None:
        return step, net
    model_of_rank.register_comm_hook(None, unsummed)

    def in_step() -> None:
        step()
        dist.barrier()  # else waiting for the slower rank would count as the backends' work

    return in_step, net


def check(params: dict[str, Tensor]) -> None:
    for name, found in params.items():
        ranks = [torch.empty_like(found) for _ in range(dist.get_world_size())]
        dist.all_gather(ranks, found)
        if not all(torch.equal(found, other) for other in ranks):
            raise SystemExit(f"{name}: the ranks have different parameters")
    first, *others = params.values()
    for name, found in zip(list(params)[1:], others, strict=True):
        if not torch.allclose(found, first, 1e-3, 1e-4):
            raise SystemExit(f"{name}: the parameters are not those of {next(iter(params))}")


def rows_of(model: str, rounds: int, groups: dict[str, Any]) -> Iterator[Row]:
    rank = dist.get_rank()
    contenders, params = {}, {}
    for name, group in groups.items():
        contenders[name], net = started(model, rank, group)
        for _ in range(CHECKED_STEPS):
            contenders[name]()
        if group is not None:
            params[name] = vector(net)
    check(params)
    found = slowest_s(contenders, MODELS[model][2], rounds)
    step_s = medians(found)
    sync_s = medians({name: map(sub, x, found[NO_SUMS]) for name, x in found.items()})
    for name in groups:
        yield {
            "model": model,
            "parameters": sum(p.numel() for p in net.parameters()),
            "contender": name,
            "step_s": step_s[name],
            "sync_s": sync_s[name],
            "step_over_gloo": step_s[name] / step_s["gloo"],
            "sync_over_gloo": sync_s[name] / sync_s["gloo"],
        }


def work(rank: int, models: list[str], rounds: int, folder: str) -> None:
    torch.set_num_threads(1)
    register()
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("fastreduce", meeting, rank=rank, world_size=PROCESSES)
    gloo = dist.new_group(backend="gloo")
    groups = {"fastreduce": dist.group.WORLD, "gloo": gloo, NO_SUMS: None}
    rows = [row for model in models for row in rows_of(model, rounds, groups)]
    if rank == 0:
        Path(folder, "rows.json").write_text(json.dumps(rows))
    dist.destroy_process_group()


def draw(rows: list[Row], about: Row, path: Path) -> None:
    from matplotlib.figure import Figure

    models = list(dict.fromkeys(row["model"] for row in rows))
    figure = Figure(figsize=(2.3 * len(models), 3.6), layout="constrained")
    fields = figure.subplots(1, len(models), squeeze=False)[0]
    names = {"fastreduce": "fastreduce", "gloo": "Gloo"}
    for axes, model in zip(fields, models, strict=True):
        own = {row["contender"]: row for row in rows if row["model"] == model}
        without_ms = 1e3 * own[NO_SUMS]["step_s"]
        # Noise may make it less than nothing.
        added_ms = [max(0.0, 1e3 * own[name]["sync_s"]) for name in names]
        bars = {"width": 0.6, "tick_label": list(names.values())}
        axes.bar([0, 1], [without_ms] * 2, color="lightgrey", label="a step without sums", **bars)
        label = "synchronisation: what the sums add to it"
        axes.bar([0, 1], added_ms, bottom=without_ms, color="C0", label=label, **bars)
        axes.set_title(model, fontsize=11)
    fields[0].set_ylabel("time of a step (ms)")
    place = where(about, each=" for each process")
    show_title(figure, f"A step of DistributedDataParallel, {PROCESSES} processes\n{place}")
    one_legend(figure)
    save_figure(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", nargs="+", choices=MODELS, default=list(MODELS), help="models")
    parser.add_argument("-n", type=at_least(1), default=15, help="rounds; median shown (15)")
    parser.add_argument("--out", type=stem, help="write OUT.json and OUT.png")
    args = parser.parse_args()
    about = machine() | {"processes": PROCESSES, "threads": 1}
    print(preamble(about))
    with tempfile.TemporaryDirectory() as folder:
        start_processes(work, (args.m, args.n, folder), PROCESSES, start_method="spawn")
        rows = json.loads(Path(folder, "rows.json").read_text())
    print(f"# {'model':<17}{'contender':<12}{'step ms':>9}{'sync ms':>9}{'step/gloo':>11}", end="")
    print(f"{'sync/gloo':>11}")
    for x in rows:
        times = f"{1e3 * x['step_s']:>9.2f}{1e3 * x['sync_s']:>9.2f}"
        ratios = f"{x['step_over_gloo']:>11.2f}{x['sync_over_gloo']:>11.2f}"
        print(f"  {x['model']:<17}{x['contender']:<12}{times}{ratios}")
    if args.out:
        save(args.out.with_suffix(".json"), {"machine": about, "rows": rows})
        draw(rows, about, args.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
