"""The figures that summarize the rows of benchmarks/allreduce.py."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from rows import LARGE_BYTES, Row

OURS = ("tiles", "events", "flags", "gpus", "gpus-flags")


def best(row: Row) -> dict[str, Any]:
    """The captured call, without the caller's own time, if it was measured; else the plain call."""
    return row["captured"] or row["called"]


def summary(rows: list[Row]) -> dict[str, Any]:
    """Figures of tiles auto unless the name says otherwise; captured in a graph if possible."""
    single = [row for row in rows if row["tensors"] == 1]
    autos = [row for row in single if is_auto(row)]
    found = {}
    for dtype, k in sorted({(row["type"], row["k"]) for row in autos}):
        found |= of_dtype(dtype, k, [x for x in autos if (x["type"], x["k"]) == (dtype, k)])
    found |= of_float32([row for row in autos if row["type"] == "float32"])
    found |= beside_float32(autos)
    found |= of_models(rows)
    found |= events_over_tiles(single)
    found["not_ahead_of"] = behind(single)
    return found


def is_auto(row: Row) -> bool:
    return (row["engine"], row["algorithm"]) == ("tiles", "auto")


def of_dtype(dtype: str, k: int, autos: list[Row]) -> dict[str, float]:
    """The time at the smallest size, and the least ratios at the largest sizes."""
    smallest = min(autos, key=lambda row: row["size_bytes"])
    name = f"{dtype}_k{k}"
    found = {f"{name}_{smallest['size_bytes']}_bytes_us": best(smallest)["time_s"] * 1e6}
    large = [best(row) for row in autos if row["size_bytes"] >= LARGE_BYTES]
    for ratio in ("of_limit", "over_loop"):
        if values := [x[ratio] for x in large if x[ratio]]:
            found[f"{name}_64MiB_and_more_{ratio}_least"] = min(values)
    return found


def of_float32(autos: list[Row]) -> dict[str, float]:
    """Over all numbers of ranks: the share of the limit, and the ratio to the loop."""
    found = {}
    sizes: dict[str, Callable[[int], bool]] = {
        "16M_elems_and_more": lambda elems: elems >= 1 << 24,
        "1M_elems": lambda elems: elems == 1 << 20,
    }
    for name, holds in sizes.items():
        limits = [best(row)["of_limit"] for row in autos if holds(row["count_elems"])]
        if limits := [x for x in limits if x]:
            found[f"of_limit_at_{name}_median"] = statistics.median(limits)
    if loops := [x for x in (best(row)["over_loop"] for row in autos) if x]:
        found["over_loop_least"] = min(loops)
        found["over_loop_geometric_mean"] = statistics.geometric_mean(loops)
    return found


def beside_float32(autos: list[Row]) -> dict[str, float]:
    """The bytes per second of 16-bit floats divided by float32's, for equal numbers of bytes."""
    times_s = {(x["size_bytes"], x["k"], x["type"]): best(x)["time_s"] for x in autos}
    found = {}
    for dtype in ("bfloat16", "float16"):
        shares = [
            times_s[size, k, "float32"] / time_s
            for (size, k, of), time_s in times_s.items()
            if of == dtype and (size, k, "float32") in times_s
        ]
        if shares:
            found[f"{dtype}_bytes_per_s_of_float32_median"] = statistics.median(shares)
            found[f"{dtype}_bytes_per_s_of_float32_least"] = min(shares)
    return found


def of_models(rows: list[Row]) -> dict[str, float]:
    found = {}
    for row in rows:
        if row["tensors"] > 1 and is_auto(row):
            name = f"{row['model'].lower()}_{row['tensors']}_gradients_k{row['k']}"
            for how in ("called", "captured"):
                if row[how]:
                    found[f"{name}_{how}_us"] = row[how]["time_s"] * 1e6
                if row[how] and row[how]["over_loop"]:
                    found[f"{name}_over_loop_{how}"] = row[how]["over_loop"]
            if row["host_s"] is not None:
                found[f"{name}_host_us"] = row["host_s"] * 1e6
    return found


def events_over_tiles(rows: list[Row]) -> dict[str, float]:
    """Microseconds that events takes longer than tiles at the smallest size, and the ratio of their
    times from 64 MiB on (medians over programs, k and dtypes)."""

    def case(row: Row) -> tuple[Any, ...]:
        return tuple(row[x] for x in ("size_bytes", "type", "k", "algorithm"))

    tiles = {case(row): row for row in rows if row["engine"] == "tiles"}
    pairs = [(x, tiles[case(x)]) for x in rows if x["engine"] == "events" and case(x) in tiles]
    small = min((x["size_bytes"] for x, _ in pairs), default=0)
    added = [
        (x["called"]["time_s"] - y["called"]["time_s"]) * 1e6
        for x, y in pairs
        if x["size_bytes"] == small
    ]
    ratios = [
        x["called"]["time_s"] / y["called"]["time_s"]
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
    """Where something that is not fastreduce was faster than tiles auto, called or captured, on as
    many devices."""

    def case(row: Row) -> tuple[Any, ...]:
        return row["size_bytes"], row["type"], row["k"], row.get("devices", 1)

    found = []
    autos = {case(row): row for row in filter(is_auto, rows)}
    for row in rows:
        auto = autos.get(case(row))
        for how in ("called", "captured") if auto and row["engine"] not in OURS else ():
            if row[how] and auto[how] and row[how]["time_s"] < auto[how]["time_s"]:
                what = f"{row['engine']} {row['algorithm']}, {how}, {row['type']}"
                found.append(f"{what}, k = {row['k']}, {row['size_bytes']} B")
    return found
