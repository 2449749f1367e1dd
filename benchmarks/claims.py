"""What README and docs say is predicted, beside what was measured on one GPU.

Imports nothing of fastreduce: the report begins before it is built.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from rows import LARGE_BYTES, MOST_OVER_BEST, Row

PREDICTED = json.loads((Path(__file__).parent / "results" / "predicted.json").read_text())
SHOWN_BYTES = (1 << 10, 1 << 16, 1 << 22, 1 << 28)
NEAR = 1.25  # a prediction within this factor holds
LEAST_OF_LIMIT = 0.9
UNDECIDED = ("-", "not measured: it takes eight GPUs")


def about(machine: Row, part: str, otherwise: Any) -> Any:
    """What a part of the predictions has about this GPU."""
    words = machine.get("gpu", "").split()
    return next((x for name, x in PREDICTED[part].items() if name in words), otherwise)


def claims(machine: Row, results: Row) -> list[Sequence[str]]:
    """Rows of a table: claim, predicted, measured, verdict; the first is its head."""
    rows = [x for x in results.get("kernels", {}).get("rows", []) if x["tensors"] == 1]
    autos = [x for x in rows if x["algorithm"] == "auto"]
    found = [*times(autos, about(machine, "one_gpu", [])), *bounds(autos), *of_eight_gpus()]
    return [("claim", "predicted", "measured", "verdict"), *found]


def times(autos: list[Row], predicted: list[Row]) -> list[Sequence[str]]:
    """The times of benchmarks/results/predicted.json, those that are measured here."""
    case = itemgetter("k", "size_bytes", "from_memory")
    measured = {case(x): x for x in autos if x["type"] == "float32"}
    lines = []
    for row in predicted:
        found = measured.get(case(row))
        for how in ("captured", "called") if found and row["size_bytes"] in SHOWN_BYTES else ():
            if found[how]:
                wanted_s, time_s = row[f"{how}_s"], found[how]["time_s"]
                what = f"allreduce, {row['k']} ranks of {row['size_bytes']:,} bytes, {how}"
                shown = (f"{x * 1e6:,.1f} us" for x in (wanted_s, time_s))
                lines.append((what, *shown, compared(wanted_s, time_s)))
    return lines


def of_eight_gpus() -> list[Sequence[str]]:
    """What README says of eight H100, which one GPU cannot decide."""
    rows = {row["size_bytes"]: row for row in PREDICTED["eight_gpus"]["H100"]}
    small, large = rows[1 << 20], rows[1 << 30]
    return [
        (f"allreduce, 8 H100, {row['size_bytes']:,} bytes on each, captured", predicted, *UNDECIDED)
        for row, predicted in (
            (small, f"{small['captured_s'] * 1e6:.1f} us"),
            (large, f"{large['busbw_gb_per_s']:.0f} GB/s busbw"),
        )
    ]


def compared(wanted_s: float, time_s: float) -> str:
    if wanted_s / NEAR <= time_s <= wanted_s * NEAR:
        return "holds"
    if time_s > wanted_s:
        return f"{time_s / wanted_s:.1f} times slower"
    return f"{wanted_s / time_s:.1f} times faster"


def bounds(autos: list[Row]) -> list[Sequence[str]]:
    """What docs/planning.md says of "auto" on one GPU, and csrc/cuda of loads in flight."""
    lines = []
    ratios = [x["captured"]["over_best"] for x in autos if x["captured"]]
    if ratios := [x for x in ratios if x]:
        what = 'on one GPU the default, leader, is the fastest program ("auto" over best, worst)'
        verdict = "holds" if max(ratios) <= MOST_OVER_BEST else "does not hold"
        lines.append((what, f"at most {MOST_OVER_BEST}", f"{max(ratios):.2f}", verdict))
    large = [x["captured"] for x in autos if x["captured"] and x["size_bytes"] >= LARGE_BYTES]
    if shares := [x["of_limit"] for x in large if x["of_limit"]]:
        what = "8 loads in flight hide the memory's latency (share of the limit, 64 MiB and more)"
        verdict = "holds" if min(shares) >= LEAST_OF_LIMIT else "does not hold"
        lines.append((what, f"at least {LEAST_OF_LIMIT}", f"{min(shares):.2f}", verdict))
    return lines
