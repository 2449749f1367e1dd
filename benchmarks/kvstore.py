"""How long do m workers and n servers of a KVStore take to push and pull? O(m / n), says the book.

Measured: 1 to 4 processes, each in a network namespace of its own as if it were a machine, all at
one switch, with links that tc's token buckets slow down (else the processor would be the limit, and
not the network). Servers are the first n of the processes. Before it is timed, each result is
compared with the sum. Simulated: the same step on the same network, with up to 64 machines.

Needs Linux, root, and the commands ip and tc (Debian: iproute2).

    sudo python benchmarks/kvstore.py                                    # half a minute
    sudo python benchmarks/kvstore.py --out benchmarks/results/kvstore   # and writes JSON and PNG

Source of the claim: *Dive into Deep Learning*, "Parameter Servers".
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import networkx as nx
import torch
import torch.distributed as dist
from axes import binary_size, save_figure, show_times, show_title, where
from measure import at_least, machine, medians, preamble, save, slowest_s, stem
from namespaces import missing_commands, namespaces, start_in
from rows import Row

import fastreduce
from fastreduce.instruction import Instruction
from fastreduce.program import Program
from fastreduce.simulation import BOOK
from fastreduce.topology import Topology
from fastreduce.units import duration

MEASURED = [1, 2, 3, 4]
SIMULATED = [2, 4, 8, 16, 32, 64]
KINDS = ("dist_sync", "dist_async")
ROWS, ROW_ELEMS = 64, 4096  # 1 MiB of float32
NBYTES = 4 * ROWS * ROW_ELEMS
RATE_MBIT = 200


# ---- simulated


def network(machines: int) -> Topology:
    graph = nx.DiGraph()
    graph.add_node("switch", kind="switch")
    for name in (f"machine{i}" for i in range(machines)):
        graph.add_node(name, kind="gpu", memory_bytes_per_s=10e9)
        for link in ((name, "switch"), ("switch", name)):
            rate = RATE_MBIT * 1e6 / 8
            graph.add_edge(*link, bytes_per_s=rate, latency_s=50e-6, medium="network")
    return Topology("machines at a switch", f"{RATE_MBIT} Mbit/s, set by tc", graph)


def simulated_s(workers: int, servers: int) -> float:
    """Server r reads shard r of all workers, adds, and then gives the result to all."""
    everyone = tuple(range(workers))
    program = Program(
        workers, servers, [Instruction(r, r, everyone, everyone) for r in range(servers)]
    )
    return fastreduce.simulate(program, network(workers), NBYTES, costs=BOOK).time_s


# ---- measured


def measure(workers: int, repeats: int) -> list[Row]:
    with namespaces(workers, RATE_MBIT) as names, tempfile.TemporaryDirectory() as folder:
        own = [sys.executable, __file__, "--worker", folder, "-n", str(repeats)]
        # Process numbers of their own, too: else torch's rpc copies from process to process.
        processes = [
            start_in(name, own, {"RANK": rank, "WORLD_SIZE": workers}, "--pid", "--fork")
            for rank, name in enumerate(names)
        ]
        failed = [rank for rank, process in enumerate(processes) if process.wait(300)]
        if failed:
            raise SystemExit(f"ranks {failed} of {workers} failed")
        found_rows: list[Row] = json.loads(Path(folder, "rows").read_text())
        return found_rows


def work(folder: str, repeats: int) -> None:
    """What each process does."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    workers, rank = dist.get_world_size(), dist.get_rank()
    cases = list(itertools.product(range(1, workers + 1), KINDS))
    stores = [store_of(servers, kind) for servers, kind in cases]
    steps = [step_of(store, rank, workers) for store in stores]
    times_s = medians(slowest_s(dict(zip(cases, steps, strict=True)), 1, repeats))
    if rank == 0:
        rows = [
            {"workers": workers, "servers": n, "kind": kind, "time_s": time_s}
            for (n, kind), time_s in times_s.items()
        ]
        Path(folder, "rows").write_text(json.dumps(rows))
    for store in stores:
        store.close()
    dist.destroy_process_group()


def store_of(servers: int, kind: str) -> fastreduce.KVStore:
    staleness = 0 if kind == "dist_async" else None
    return fastreduce.KVStore(kind, servers=range(servers), staleness=staleness)


def step_of(store: fastreduce.KVStore, rank: int, workers: int) -> Callable[[], None]:
    value = torch.full((ROWS, ROW_ELEMS), rank + 1.0)
    store.broadcast("x", value, out := torch.empty_like(value))

    def step() -> None:
        store.pushpull("x", value, out)

    step()
    assert torch.equal(out, torch.full_like(out, workers * (workers + 1) / 2)), store.kind
    return step


# ---- shown


def table(rows: list[Row]) -> Iterator[str]:
    yield f"# {NBYTES} bytes, links of {RATE_MBIT} Mbit/s; simulated times are predictions"
    yield f"{'workers':>8}{'servers':>8}{'m/n':>6}  {'kind':<11}{'measured':>10}{'simulated':>10}"
    for row in rows:
        m, n = row["workers"], row["servers"]
        measured = duration(row["time_s"]) if row["time_s"] else "-"
        predicted = duration(row["simulated_s"]) if row["simulated_s"] else "-"
        yield f"{m:>8}{n:>8}{m / n:>6.2f}  {row['kind'] or '-':<11}{measured:>10}{predicted:>10}"


def draw(rows: list[Row], about: Row, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.8), layout="constrained")
    axes = figure.subplots()
    names = {1: "1 server", 4: "4 servers", None: "as many servers as workers"}
    colors = ("tab:red", "tab:orange", "tab:blue")
    for color, (servers, name) in zip(colors, names.items(), strict=True):
        mine = [r for r in rows if r["servers"] == (servers or r["workers"]) and r["workers"] > 1]
        points = {r["workers"]: r["simulated_s"] for r in mine if r["simulated_s"]}
        axes.plot(points.keys(), points.values(), color=color, label=f"{name}, simulated")
        for kind, marker in zip(KINDS, "ox", strict=True):
            found = {r["workers"]: r["time_s"] for r in mine if r["kind"] == kind}
            if found and (servers != 4):
                label = f"{name}, measured, {kind}"
                axes.plot(found.keys(), found.values(), marker, color=color, label=label)
    axes.set_xscale("log", base=2)
    show_times(axes)
    workers = sorted({r["workers"] for r in rows} - {1})
    axes.set_xticks(workers, [str(x) for x in workers])
    axes.set(xlabel="workers", ylabel="time to push and pull")
    title = f"KVStore, {binary_size(NBYTES)}, machines at a switch, {RATE_MBIT} Mbit/s each"
    title += "; measured between network namespaces"
    show_title(figure, f"{title}\n{where(about, each=' for each process')}")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    save_figure(figure, path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", "--repeats", type=at_least(1), default=9, help="rounds (default: 9)")
    parser.add_argument(
        "--workers",
        type=at_least(1),
        nargs="+",
        default=MEASURED,
        help="how many to measure (default: 1 2 3 4)",
    )
    parser.add_argument("--out", type=stem, help="write JSON and PNG, with this stem")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args.worker, args.repeats)
        return
    if missing := missing_commands():
        parser.error(f"needs {missing}")
    about = machine() | {"threads": 1}  # of each process
    print(preamble(about))
    rows: list[Row] = []
    for workers in args.workers:
        for row in measure(workers, args.repeats):
            predicted = simulated_s(workers, row["servers"]) if workers > 1 else None
            rows.append({**row, "simulated_s": predicted})
    for workers in SIMULATED:
        for servers in (n for n in sorted({1, 4, workers}) if n <= workers):
            if workers not in args.workers:
                predicted = simulated_s(workers, servers)
                row = {"workers": workers, "servers": servers, "kind": None, "time_s": None}
                rows.append({**row, "simulated_s": predicted})
    print(*table(rows), sep="\n")
    if args.out:
        save(args.out.with_suffix(".json"), {"machine": about, "rows": rows})
        draw(rows, about, args.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
