"""The rows of benchmarks/kernels.py as a table, as the figures to watch, and as a picture."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from measure import Row

OURS = ("tiles", "events", "gpus")
LARGE_BYTES = 64 << 20
# More lines than this cannot be told apart: then of our programs these are drawn.
MOST_LINES = 14
DRAWN = ("auto", "sharded", "ring")
CALLED = "called one by one"
_SPEED = "{:>9} {:>8} {:>8} {:>8}"
_ROW = "{:>11} {:>11} {:>8} {:>5} {:>2} {:>6} {:>16}  " + _SPEED + "  " + _SPEED + " {:>7} {:>6}"
_NAMES = ("time", "algbw", "busbw", "of limit")
_UNITS = ("(us)", "(GB/s)", "(GB/s)", "")
HEADER = "\n".join(
    [
        "#" + " " * 65 + f"{'called one by one':^36}  {'captured in a graph':^36}",
        _ROW.format(
            *("#size", "count", "type", "redop", "k", "engine", "algorithm"),
            *(*_NAMES, *_NAMES, "host", "#wrong"),
        ),
        _ROW.format("#(B)", "(elements)", "", "", "", "", "", *_UNITS, *_UNITS, "(us)", ""),
    ]
)


def show(row: Row) -> None:
    """One line under `HEADER`; nccl-tests, too, says N/A of what it did not run."""
    names = ("size_bytes", "count_elems", "type", "redop", "k", "engine", "algorithm")
    host = "N/A" if row["host_s"] is None else f"{row['host_s'] * 1e6:.2f}"
    speeds = (*_speed(row["eager"]), *_speed(row["captured"]))
    print(_ROW.format(*(row[x] for x in names), *speeds, host, row["wrong_elems"]), flush=True)


def _speed(speed: dict[str, Any] | None) -> tuple[str, ...]:
    if speed is None:
        return ("N/A",) * 4
    names = ("algbw_gb_per_s", "busbw_gb_per_s", "of_limit")
    return (f"{speed['time_s'] * 1e6:.2f}", *(f"{speed[name]:.2f}" for name in names))


def describe(failure: Row) -> str:
    who = f"{failure['engine']} {failure['algorithm']}" if failure["engine"] else "the whole case"
    tensors = f" in {failure['tensors']} tensors" if failure["tensors"] > 1 else ""
    what = f"{failure['type']}, k = {failure['k']}, {failure['size_bytes']} B{tensors}"
    return f"{who}, {what}: {failure['error']}"


def best(row: Row) -> dict[str, Any]:
    """Without the caller's own time, where that was measured."""
    return row["captured"] or row["eager"]


def summary(rows: list[Row]) -> dict[str, Any]:
    """The figures that this benchmark is there to watch; of engine tiles, algorithm auto, captured
    where not said."""
    single = [row for row in rows if row["tensors"] == 1]
    found: dict[str, Any] = {}
    for dtype, k in sorted({(row["type"], row["k"]) for row in single}):
        same = [row for row in single if (row["type"], row["k"]) == (dtype, k)]
        auto = sorted(filter(is_auto, same), key=lambda row: row["size_bytes"])
        large = [best(row) for row in auto if row["size_bytes"] >= LARGE_BYTES]
        name = f"{dtype}_k{k}"
        if auto:
            found[f"{name}_{auto[0]['size_bytes']}_bytes_us"] = best(auto[0])["time_s"] * 1e6
        for figure in ("of_limit", "over_loop"):
            if large and large[0][figure]:
                found[f"{name}_64MiB_and_more_{figure}_least"] = min(x[figure] for x in large)
    found |= lenet(rows)
    found |= events_over_tiles(single)
    found["not_ahead_of"] = behind(single)
    return found


def is_auto(row: Row) -> bool:
    return (row["engine"], row["algorithm"]) == ("tiles", "auto")


def lenet(rows: list[Row]) -> dict[str, float]:
    found = {}
    for row in rows:
        if row["tensors"] > 1 and is_auto(row):
            name = f"lenet_{row['tensors']}_gradients_k{row['k']}"
            found[f"{name}_over_loop_called"] = row["eager"]["over_loop"]
            if row["captured"]:
                found[f"{name}_over_loop_captured"] = row["captured"]["over_loop"]
            if row["host_s"] is not None:
                found[f"{name}_host_us"] = row["host_s"] * 1e6
    return found


def events_over_tiles(rows: list[Row]) -> dict[str, float]:
    """Microseconds that streams and events add to a program at its smallest size, and its time
    over that of tiles from 64 MiB on (median over programs, k and dtypes)."""

    def case(row: Row) -> tuple[Any, ...]:
        return tuple(row[x] for x in ("size_bytes", "type", "k", "algorithm"))

    tiles = {case(row): row for row in rows if row["engine"] == "tiles"}
    pairs = [(x, tiles[case(x)]) for x in rows if x["engine"] == "events" and case(x) in tiles]
    small = min((x["size_bytes"] for x, _ in pairs), default=0)
    added = [
        (x["eager"]["time_s"] - y["eager"]["time_s"]) * 1e6
        for x, y in pairs
        if x["size_bytes"] == small
    ]
    ratios = [
        x["eager"]["time_s"] / y["eager"]["time_s"]
        for x, y in pairs
        if x["size_bytes"] >= LARGE_BYTES
    ]
    found = {}
    if added:
        found[f"events_minus_tiles_at_{small}_bytes_us_median"] = statistics.median(added)
    if ratios:
        found["events_over_tiles_64MiB_and_more_median"] = statistics.median(ratios)
    return found


def behind(rows: list[Row]) -> list[str]:
    """Where a competitor was faster than tiles auto, called or captured."""
    found = []
    autos = {(x["size_bytes"], x["type"], x["k"]): x for x in filter(is_auto, rows)}
    for row in rows:
        auto = autos.get((row["size_bytes"], row["type"], row["k"]))
        for how in ("eager", "captured") if auto and row["engine"] not in OURS else ():
            if row[how] and auto[how] and row[how]["time_s"] < auto[how]["time_s"]:
                what = f"{row['engine']} {row['algorithm']}, {how}, {row['type']}"
                found.append(f"{what}, k = {row['k']}, {row['size_bytes']} B")
    return found


def draw(rows: list[Row], about: dict[str, Any], path: Path) -> None:
    """Bytes moved a second over the size, one field for each dtype and k, the limit dotted."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    single = [row for row in rows if row["tensors"] == 1]
    if not single:
        print("# nothing to draw")
        return
    types, ranks = _values(single, "type"), _values(single, "k")
    figure, fields = plt.subplots(
        len(types),
        len(ranks),
        figsize=(4.5 * len(ranks), 4 * len(types)),
        sharey=True,
        squeeze=False,
    )
    for dtype, line in zip(types, fields, strict=True):
        for k, axes in zip(ranks, line, strict=True):
            _draw_field(axes, [row for row in single if (row["type"], row["k"]) == (dtype, k)])
            axes.set(xscale="log", yscale="log", xlabel="bytes a rank", title=f"{dtype}, {k} ranks")
            axes.grid(alpha=0.3)
        line[0].set_ylabel("2 k n / time, GB/s")
    fields[0][0].legend(fontsize=6)
    where = about.get("gpu") if about["engines"] == "on GPU" else about["cpu"]
    how = "captured in a graph" if any(row["captured"] for row in single) else CALLED
    figure.suptitle(f"allreduce on {where}, {how}, torch {about['torch']}", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    print(f"# wrote {path}")


def _values(rows: Iterable[Row], name: str) -> list[Any]:
    return sorted({row[name] for row in rows})


def _draw_field(axes: Any, rows: list[Row]) -> None:
    def line(chosen: Iterable[Row], value: Callable[[Row], float], **style: Any) -> None:
        points = sorted((row["size_bytes"], value(row)) for row in chosen)
        axes.plot(*zip(*points, strict=True), **style)

    names = list(dict.fromkeys((row["engine"], row["algorithm"]) for row in rows))
    if len(names) > MOST_LINES:
        names = [x for x in names if x[0] not in OURS or x[1] in DRAWN]
    some_captured = any(row["captured"] for row in rows)
    for engine, algorithm in names:
        of_line = [x for x in rows if (x["engine"], x["algorithm"]) == (engine, algorithm)]
        mixed = some_captured and not all(row["captured"] for row in of_line)
        line(
            of_line,
            lambda row: best(row)["moved_gb_per_s"],
            label=f"{engine} {algorithm}" + (f", {CALLED}" if mixed else ""),
            linewidth=1.5 if engine in OURS else 1,
            linestyle="-" if engine in OURS else "--",
            marker="o",
            markersize=2,
        )
    # The same for all contenders of a size; of those that were captured where some were not.
    limits = {row["size_bytes"]: row for row in sorted(rows, key=lambda row: bool(row["captured"]))}
    line(
        limits.values(),
        lambda row: best(row)["moved_gb_per_s"] / best(row)["of_limit"],
        label="limit",
        color="black",
        linestyle=":",
    )
