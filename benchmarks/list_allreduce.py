"""How fast is fastreduce.allreduce on the CPU, against the book's loop and against memory?

The loop is that of *Dive into Deep Learning*, section 12.5.4: sum into rank 0, copy back. The limit
is one in-place pass (``x.mul_(1)``) over every rank's buffer: no allreduce moves fewer bytes.

    python benchmarks/list_allreduce.py                    # everything, about five minutes
    python benchmarks/list_allreduce.py -e 1M -k 2 -n 5    # a quick look

Columns are those of nccl-tests: size is bytes a rank, algbw = size / time, busbw = algbw *
2(k-1)/k, GB is 1e9 bytes. "of limit" is the limit's time over this one's. Every result is compared
with a float64 sum before it is timed; #wrong counts elements over all ranks.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from competitors import loop
from measure import HEADER, Row, alternate, machine, preamble, save, show, size_bytes

import fastreduce
from fastreduce.training.lenet import SHAPES


def limit(data: list[torch.Tensor]) -> None:
    for tensor in data:
        tensor.mul_(1)


def competitors(algorithms: list[str]) -> dict[str, Callable[[list[torch.Tensor]], None]]:
    calls: dict[str, Callable[[list[torch.Tensor]], None]] = {"loop": loop}
    for name in algorithms:
        calls[name] = lambda data, name=name: fastreduce.allreduce(data, algorithm=name)
    return calls


def count_wrong(call: Callable[[list[torch.Tensor]], None], data: list[torch.Tensor]) -> int:
    """Elements that differ from the sum; values tell rank and index, and the sums are exact."""
    count = data[0].numel()
    index = torch.arange(count, dtype=torch.float64).remainder_(13)
    for rank, tensor in enumerate(data):
        tensor.copy_(index + rank)
    call(data)
    expected = (index * len(data) + sum(range(len(data)))).to(data[0].dtype)
    return sum(int((tensor != expected).sum()) for tensor in data)


def measure(
    count: int, dtype: torch.dtype, k: int, algorithms: list[str], rounds: int
) -> list[Row]:
    data = [torch.empty(count, dtype=dtype) for _ in range(k)]
    calls = competitors(algorithms)
    wrong = {name: count_wrong(call, data) for name, call in calls.items()}
    for tensor in data:
        tensor.zero_()  # sums repeated in place would run to infinity
    timed = {"limit": lambda: limit(data)} | {
        name: (lambda call=call: call(data)) for name, call in calls.items()
    }
    seconds = alternate(timed, rounds)
    size = count * data[0].element_size()
    return [
        {
            "size_bytes": size,
            "count_elems": count,
            "type": str(dtype).removeprefix("torch."),
            "redop": "sum",
            "k": k,
            "algorithm": name,
            "time_s": seconds[name],
            "algbw_gb_per_s": size / seconds[name] / 1e9,
            "busbw_gb_per_s": size / seconds[name] / 1e9 * 2 * (k - 1) / k,
            "of_limit": seconds["limit"] / seconds[name],
            "over_loop": seconds["loop"] / seconds[name],
            "wrong_elems": wrong[name],
        }
        for name in calls
    ]


def lenet(k: int, rounds: int) -> Row:
    """All gradients of the book's LeNet in one call, against the loop over its parameters."""
    ranks = [[torch.zeros(shape) for shape in SHAPES] for _ in range(k)]
    seconds = alternate(
        {
            "loop": lambda: [loop([rank[i] for rank in ranks]) for i in range(len(SHAPES))],
            "auto": lambda: fastreduce.allreduce(ranks),
        },
        rounds,
    )
    return {
        "k": k,
        "loop_s": seconds["loop"],
        "time_s": seconds["auto"],
        "over_loop": seconds["loop"] / seconds["auto"],
    }


def summary(rows: list[Row], lenet_row: Row) -> dict[str, float]:
    """The figures that this benchmark is there to watch, of algorithm="auto" where not said."""
    auto = [row for row in rows if row["algorithm"] == "auto"]
    float32 = [row for row in auto if row["type"] == "float32"]
    result = {}
    for name, chosen in (
        ("16M_elems_and_more", [row for row in float32 if row["count_elems"] >= 1 << 24]),
        ("1M_elems", [row for row in float32 if row["count_elems"] == 1 << 20]),
    ):
        if chosen:
            result[f"of_limit_at_{name}_median"] = statistics.median(
                row["of_limit"] for row in chosen
            )
    result["over_loop_least"] = min(row["over_loop"] for row in float32)
    result["over_loop_geometric_mean"] = statistics.geometric_mean(
        row["over_loop"] for row in float32
    )
    small = [row for row in float32 if row["count_elems"] == 256 and row["k"] == 2]
    if small:
        result["256_elems_k2_us"] = small[0]["time_s"] * 1e6
    result["lenet_k4_over_loop"] = lenet_row["over_loop"]
    same_bytes = {(row["size_bytes"], row["k"]): row for row in float32}
    for dtype in ("bfloat16", "float16"):
        shares = [
            same_bytes[row["size_bytes"], row["k"]]["time_s"] / row["time_s"]
            for row in auto
            if row["type"] == dtype and (row["size_bytes"], row["k"]) in same_bytes
        ]
        if shares:
            result[f"{dtype}_bytes_per_s_of_float32_median"] = statistics.median(shares)
            result[f"{dtype}_bytes_per_s_of_float32_least"] = min(shares)
    return result


def draw(rows: list[Row], about: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    float32 = [row for row in rows if row["type"] == "float32"]
    ranks = sorted({row["k"] for row in float32})
    figure, all_axes = plt.subplots(
        1, len(ranks), figsize=(4.6 * len(ranks), 4.2), sharey=True, squeeze=False
    )
    for axes, k in zip(all_axes[0], ranks, strict=True):
        of_k = [row for row in float32 if row["k"] == k]
        for name in dict.fromkeys(row["algorithm"] for row in of_k):
            line = [
                (row["size_bytes"], row["algbw_gb_per_s"])
                for row in of_k
                if row["algorithm"] == name
            ]
            axes.plot(
                *zip(*line, strict=True),
                "o--" if name == "loop" else "o-",
                markersize=3,
                label=name,
            )
        top = [
            (row["size_bytes"], row["algbw_gb_per_s"] / row["of_limit"])
            for row in of_k
            if row["algorithm"] == "auto"
        ]
        axes.plot(
            *zip(*top, strict=True),
            color="black",
            linewidth=1,
            linestyle=":",
            label="limit: one pass",
        )
        axes.set(xscale="log", yscale="log", xlabel="bytes a rank", title=f"{k} ranks")
        axes.grid(alpha=0.3)
    all_axes[0][0].set_ylabel("algbw, GB/s")
    all_axes[0][0].legend(fontsize=8)
    figure.suptitle(
        f"allreduce of float32 on {about['cpu']}, {about['threads']} threads", fontsize=10
    )
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    print(f"# wrote {path}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "-b", type=size_bytes, default=1 << 10, help="smallest size, bytes a rank (1K)"
    )
    parser.add_argument(
        "-e", type=size_bytes, default=1 << 28, help="largest size, bytes a rank (256M)"
    )
    parser.add_argument("-f", type=int, default=4, help="factor from size to size (4)")
    parser.add_argument("-n", type=int, default=11, help="rounds; the median is shown (11)")
    parser.add_argument("-k", type=int, nargs="+", default=[2, 4, 8], help="numbers of ranks")
    parser.add_argument("-d", nargs="+", default=["float32", "bfloat16", "float16"], help="dtypes")
    parser.add_argument(
        "-a",
        nargs="+",
        default=["leader", "sharded", "ring"],
        help="algorithms besides auto and loop",
    )
    parser.add_argument("-t", type=int, default=2, help="threads (2)")
    parser.add_argument("--out", type=Path, help="write OUT.json and OUT.png")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.t)
    about = machine()
    print(preamble(about))
    print(HEADER)
    rows: list[Row] = []
    for dtype in (getattr(torch, name) for name in args.d):
        size = args.b
        while size <= args.e:
            for k in args.k:
                algorithms = ["auto", *(args.a if dtype == torch.float32 else [])]
                fresh = measure(size // dtype.itemsize, dtype, k, algorithms, args.n)
                rows += fresh
                for row in fresh:
                    show(row)
            size *= args.f
    lenet_row = lenet(4, 5 * args.n)
    lenet_us = {name: lenet_row[name] * 1e6 for name in ("time_s", "loop_s")}
    print(
        "# LeNet's 8 gradients, k = 4: {time_s:.1f} us, the loop {loop_s:.1f} us".format(**lenet_us)
    )
    figures = summary(rows, lenet_row)
    for name, value in figures.items():
        print(f"# {name}: {value:.2f}")
    wrong = sum(row["wrong_elems"] for row in rows)
    print(f"# Out of bounds values : {wrong} {'OK' if wrong == 0 else 'FAILED'}")
    if args.out:
        save(
            args.out.with_suffix(".json"),
            {"machine": about, "summary": figures, "lenet": lenet_row, "rows": rows},
        )
        draw(rows, about, args.out.with_suffix(".png"))
    if wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
