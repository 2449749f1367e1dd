"""Is auto ever slower on the CPU than an algorithm that one could have named?

Every algorithm of the package and auto are timed in turn, round after round, on the same tensors;
each result is compared with a float64 sum first. "over best" is the median's ratio to that of the
fastest algorithm that was named: at most 1.1 is wanted of auto. auto and the algorithm that it
stands for run the same program, so by how much these two differ is the machine's noise.

    fastreduce tune && python benchmarks/auto.py --out benchmarks/results/auto  # a minute or two
    python benchmarks/auto.py -e 64K -n 5                                       # a quick look

The other columns are those of nccl-tests: size is bytes a rank, algbw = size / time, busbw = algbw
* 2(k-1)/k, GB is 1e9 bytes; #wrong counts elements over all ranks.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import torch
from list_allreduce import competitors, count_wrong
from measure import (
    Row,
    alternate,
    header,
    machine,
    parser_of_sizes,
    preamble,
    save,
    show,
    sizes_bytes,
)

from fastreduce import algorithms
from fastreduce.plan.choose import choose
from fastreduce.plan.table_files import tuned

WANTED = 1.1


def measure(size: int, k: int, rounds: int) -> list[Row]:
    data = [torch.empty(size // 4) for _ in range(k)]
    calls = competitors(["auto", *algorithms.names()])
    del calls["loop"]
    wrong = {name: count_wrong(call, data) for name, call in calls.items()}
    for tensor in data:
        tensor.zero_()  # sums repeated in place would run to infinity
    seconds = alternate({n: (lambda call=call: call(data)) for n, call in calls.items()}, rounds)
    best = min(algorithms.names(), key=seconds.__getitem__)
    return [
        {
            "size_bytes": size,
            "count_elems": size // 4,
            "type": "float32",
            "redop": "sum",
            "k": k,
            "algorithm": name,
            "time_s": seconds[name],
            "algbw_gb_per_s": size / seconds[name] / 1e9,
            "busbw_gb_per_s": size / seconds[name] / 1e9 * 2 * (k - 1) / k,
            "over_best": seconds[name] / seconds[best],
            "best": best,
            "auto_is": choose("cpu", k, 1 << (size - 1).bit_length()),
            "wrong_elems": wrong[name],
        }
        for name in calls
    ]


def closing_lines(rows: list[Row]) -> str:
    autos = [row for row in rows if row["algorithm"] == "auto"]
    worst = max(autos, key=lambda row: row["over_best"])
    times = {(row["size_bytes"], row["k"], row["algorithm"]): row["time_s"] for row in rows}
    noise = [row["time_s"] / times[row["size_bytes"], row["k"], row["auto_is"]] for row in autos]
    verdict = "OK" if worst["over_best"] <= WANTED else f"MORE THAN {WANTED}"
    return (
        f"# Worst ratio of auto to the best : {worst['over_best']:.3f} {verdict}, at "
        f"{worst['size_bytes']} bytes, k = {worst['k']}: auto stood for {worst['auto_is']}, the "
        f"best was {worst['best']}\n"
        "# Noise: auto to the algorithm that it stood for, the same program : "
        f"{min(noise):.3f} to {max(noise):.3f}"
    )


def draw(rows: list[Row], about: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    autos = [row for row in rows if row["algorithm"] == "auto"]
    figure, axes = plt.subplots(figsize=(7, 4))
    for k in sorted({row["k"] for row in autos}):
        line = [(row["size_bytes"], row["over_best"]) for row in autos if row["k"] == k]
        axes.plot(*zip(*line, strict=True), "o-", markersize=3, label=f"{k} ranks")
    axes.axhline(WANTED, color="black", linewidth=1, linestyle=":", label=f"{WANTED} wanted")
    axes.set(xscale="log", xlabel="bytes a rank", ylabel="time of auto over that of the best")
    axes.set_ylim(bottom=min(0.9, *(row["over_best"] for row in autos)))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    axes.set_title(f"{about['cpu']}, {about['threads']} threads, {about['auto']}", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    print(f"# wrote {path}")


def main() -> None:
    args = parser_of_sizes(__doc__, largest_bytes=1 << 26, rounds=21).parse_args()
    torch.set_num_threads(args.t)
    table = tuned()
    about = machine() | {"auto": f"tuned on {table.date}" if table else "documented defaults"}
    print(preamble(about))
    print(header("over best"))
    rows: list[Row] = []
    for size, k in itertools.product(sizes_bytes(args), args.k):
        fresh = measure(size, k, args.n)
        rows += fresh
        for row in fresh:
            show(row, row["over_best"])
    print(closing_lines(rows))
    wrong = sum(row["wrong_elems"] for row in rows)
    print(f"# Out of bounds values : {wrong} {'OK' if wrong == 0 else 'FAILED'}")
    if args.out:
        save(args.out.with_suffix(".json"), {"machine": about, "rows": rows})
        draw(rows, about, args.out.with_suffix(".png"))
    if wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
