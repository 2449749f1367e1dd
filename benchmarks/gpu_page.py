"""The page about a GPU, REPORT.md, from what benchmarks/gpu_report.py has found."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import claims
from axes import binary_size
from rows import Row, markdown


def page(report: Row) -> str:
    results, steps = report["results"], report["steps"]
    about = report["machine"]
    known = [
        f"{name} {about[name]}" for name in ("driver", "cuda", "torch", "python") if name in about
    ]
    parts = [
        f"# fastreduce on {about.get('gpu', 'an unknown GPU')}",
        ", ".join([about.get("date", ""), *known]),
        "Times are medians in microseconds, of calls captured in a CUDA graph; in brackets of "
        "calls one by one from Python.",
        _section("What became of each step", _steps(steps)),
        _section("Predicted and measured", claims.claims(about, results)),
        *_allreduce(about, results),
        _section("torch.distributed, two processes on this GPU, float32", _processes(results)),
        _section("Training LeNet, two replicas on this GPU", _training(results)),
        _section("One kernel under ncu, 64 MB on each of 2 ranks", _quoted(results.get("ncu", []))),
        _section("What failed", _failures(steps, results)),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _section(title: str, content: Sequence[Sequence[str]] | str) -> str:
    """A heading and a table, whose first row is its head; nothing if there is no more in it."""
    if isinstance(content, str):
        return f"## {title}\n\n{content}" if content else ""
    if len(content) < 2:
        return ""
    return "\n".join([f"## {title}", "", *markdown(content)])


def _steps(steps: Row) -> list[Sequence[str]]:
    rows = [(name, x["status"], f"{x['seconds']:.0f} s") for name, x in steps.items()]
    total = f"{sum(x['seconds'] for x in steps.values()):.0f} s"
    return [("step", "status", "time"), *rows, ("all", "", total)]


def _allreduce(about: Row, results: Row) -> Iterable[str]:
    rows = {
        name: results.get(name, {}).get("rows", [])
        for name in ("kernels", "peers", "lists", "events")
    }
    sheet = claims.about(about, "data_sheet_bytes_per_s", None)
    kernels = [x for x in rows["kernels"] if x["tensors"] == 1]
    title = "Allreduce: time, share of the limit, share of the data sheet's bandwidth"
    yield _section(title, _kernels(kernels, sheet))
    ratio = "time over that of fastreduce (above 1: fastreduce is faster)"
    yield _section(f"Others: {ratio}", _ratios(rows["peers"], ("tiles", "auto")))
    yield _section(
        f"Gradients of a model in one call: {ratio}", _ratios(rows["lists"], ("tiles", "auto"))
    )
    title = "Engine for several GPUs, on one, a stream for each rank: time over that of one launch"
    yield _section(
        f"{title} (says nothing of NVLink)", _ratios(rows["events"], ("tiles", "leader"))
    )


def _kernels(rows: list[Row], sheet: float | None) -> list[Sequence[str]]:
    autos = [x for x in rows if x["algorithm"] == "auto"]
    ks = sorted({x["k"] for x in autos})
    found = {(x["type"], x["size_bytes"], x["k"]): x for x in autos}
    cases = dict.fromkeys((x["type"], x["size_bytes"]) for x in autos)

    def cell(row: Row | None) -> str:
        if row is None:
            return "-"
        best = row["captured"] or row["called"]
        if best["of_limit"] is None:
            return f"{times(row)}: in cache"
        of_sheet = f", {best['moved_gb_per_s'] * 1e9 / sheet:.2f}" if sheet else ""
        return f"{times(row)}: {best['of_limit']:.2f}{of_sheet}"

    lines = [
        (dtype, binary_size(nbytes), *(cell(found.get((dtype, nbytes, k))) for k in ks))
        for dtype, nbytes in sorted(cases)
    ]
    return [("type", "bytes per rank", *(f"{k} ranks" for k in ks)), *lines]


def _ratios(rows: list[Row], ours: tuple[str, str]) -> list[Sequence[str]]:
    """One line for each case: the time of ours, and that of the others divided by it."""
    cases: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in rows:
        of_model = f"{row['model']}, {row['tensors']} tensors"
        what = of_model if row["model"] else binary_size(row["size_bytes"])
        name = f"{row['engine']} {row['algorithm']}"
        cases.setdefault((what, row["k"]), {})[name] = row
    own = " ".join(ours)
    others = [x for x in dict.fromkeys(f"{x['engine']} {x['algorithm']}" for x in rows) if x != own]

    def over(row: Row | None, base: Row) -> str:
        if row is None:
            return "-"
        found = {
            how: f"{row[how]['time_s'] / base[how]['time_s']:.2f}"
            for how in ("captured", "called")
            if row[how] and base[how]
        }
        return f"{found.get('captured', '-')} ({found.get('called', '-')})"

    lines = [
        (what, str(k), times(of[own]), *(over(of.get(name), of[own]) for name in others))
        for (what, k), of in cases.items()
        if own in of
    ]
    return [("data per rank", "ranks", own, *others), *lines]


def _processes(results: Row) -> list[Sequence[str]]:
    found = results.get("nccl", {"rows": []})
    lines = [
        (found["backend"], binary_size(x["size_bytes"]), f"({x['called_s'] * 1e6:.1f})")
        for x in found["rows"]
    ]
    return [("backend", "bytes per rank", "2 ranks"), *lines]


def _training(results: Row) -> list[Sequence[str]]:
    names = {"train": "each step one graph", "train_eager": "without graphs"}
    lines = []
    for name, what in names.items():
        about, *epochs = results.get(name, [{}])
        if epochs:
            epoch_s = statistics.median(x["epoch_s"] for x in epochs[1:] or epochs)
            data = f"{about['data']['train_images']} images, batch {about['config']['batch_size']}"
            accuracy = f"{epochs[-1]['test_accuracy']:.3f}"
            lines.append((what, data, f"{epoch_s:.2f}", f"{accuracy} after {len(epochs)} epochs"))
    return [("how", "data", "seconds per epoch", "test accuracy"), *lines]


def _failures(steps: Row, results: Row) -> str:
    """Names of failed tests, else a step's last lines."""
    found = []
    for name, step in steps.items():
        if step["status"].startswith("failed"):
            named = [x for x in results.get(name, []) if str(x).startswith(("FAILED", "ERROR"))]
            found.append(f"{name}: {step['status']}\n{_quoted(named or step['tail'][-5:])}")
    for name in ("kernels", "peers", "lists", "events"):
        failures = results.get(name, {}).get("failures", [])
        found += [f"{name}: {x['engine']} {x['algorithm']}: {x['error']}" for x in failures]
    return "\n\n".join(found)


def _quoted(lines: Iterable[str]) -> str:
    text = "\n".join(f"    {line.strip()[:160]}" for line in lines)
    return text and f"\n{text}"


def times(row: Row) -> str:
    captured = f"{row['captured']['time_s'] * 1e6:.2f} " if row["captured"] else ""
    return f"{captured}({row['called']['time_s'] * 1e6:.1f})"
