"""The rows of benchmarks/allreduce.py as a table, and their summary."""

from __future__ import annotations

from typing import Any

from figures import OURS, summary
from rows import MOST_OVER_BEST, Row

_CASE = "{:>11} {:>11} {:>8} {:>5} {:>2} {:>6} {:>16}"
_SPEED = "  {:>9} {:>8} {:>8} {:>8} {:>9}"
_END = " {:>7} {:>6}"


def header(on_gpu: bool) -> str:
    """nccl-tests' columns and two ratios; on GPUs again for captured calls."""
    case = _CASE.format("#size", "count", "type", "redop", "k", "engine", "algorithm")
    units = _CASE.format("#(B)", "(elements)", "", "", "", "", "")
    speeds = 2 if on_gpu else 1
    names = _SPEED.format("time", "algbw", "busbw", "of limit", "over best") * speeds
    units += _SPEED.format("(us)", "(GB/s)", "(GB/s)", "", "") * speeds
    lines = [case + names + _END.format("host", "#wrong"), units + _END.format("(us)", "")]
    if on_gpu:
        lines.insert(0, "#" + " " * 67 + f"{'called one by one':^46}  {'captured in a graph':^46}")
    return "\n".join(lines)


def line(row: Row, on_gpu: bool) -> str:
    """One line under `header`; N/A, as in nccl-tests, for what was not run."""
    names = ("size_bytes", "count_elems", "type", "redop", "k", "engine", "algorithm")
    host = "N/A" if row["host_s"] is None else f"{row['host_s'] * 1e6:.2f}"
    speeds = [row["called"], row["captured"]] if on_gpu else [row["called"]]
    shown = "".join(_SPEED.format(*_speed(speed)) for speed in speeds)
    return _CASE.format(*(row[x] for x in names)) + shown + _END.format(host, row["wrong_elems"])


def _speed(speed: dict[str, Any] | None) -> tuple[str, ...]:
    if speed is None:
        return ("N/A",) * 5
    of_limit, over_best = speed["of_limit"], speed["over_best"]
    return (
        f"{speed['time_s'] * 1e6:.2f}",
        f"{speed['algbw_gb_per_s']:.2f}",
        f"{speed['busbw_gb_per_s']:.2f}",
        "in cache" if of_limit is None else f"{of_limit:.2f}",
        "-" if over_best is None else f"{over_best:.2f}",
    )


def describe(failure: Row) -> str:
    who = f"{failure['engine']} {failure['algorithm']}" if failure["engine"] else "the whole case"
    tensors = f" in {failure['tensors']} tensors" if failure["tensors"] > 1 else ""
    what = f"{failure['type']}, k = {failure['k']}, {failure['size_bytes']} B{tensors}"
    return f"{who}, {what}: {failure['error']}"


def about_auto(rows: list[Row]) -> list[str]:
    """Whether auto was ever slower than an algorithm that can be named, and the noise: the
    difference between auto and the algorithm that it stands for, which run the same program."""
    autos = [x for x in rows if x["algorithm"] == "auto" and x["called"]["over_best"]]
    if not autos:
        return []
    worst = max(autos, key=lambda row: row["called"]["over_best"])
    ratio, best = worst["called"]["over_best"], worst["called"]["best"]
    verdict = "OK" if ratio <= MOST_OVER_BEST else f"MORE THAN {MOST_OVER_BEST}"
    of = f"{worst['type']}, {worst['size_bytes']} bytes, k = {worst['k']}, engine {worst['engine']}"
    stood = f"auto stood for {worst['auto_is']}, " if worst["auto_is"] else ""
    lines = [
        f"# Worst ratio of auto to the best that was named : {ratio:.3f} {verdict}, at {of}: "
        f"{stood}the best was {best}"
    ]
    times = {(*_of(row), row["algorithm"]): row["called"]["time_s"] for row in rows}
    same = [(x["called"]["time_s"], times.get((*_of(x), x["auto_is"]))) for x in autos]
    if noise := [auto_s / named_s for auto_s, named_s in same if named_s]:
        lines.append(
            "# Noise: auto to the algorithm that it stood for, the same program : "
            f"{min(noise):.3f} to {max(noise):.3f}"
        )
    return lines


def _of(row: Row) -> tuple[Any, ...]:
    return tuple(row[x] for x in ("size_bytes", "tensors", "type", "k", "engine"))


def conclude(rows: list[Row], failures: list[Row]) -> bool:
    """Print the summary, and return whether anything of fastreduce failed."""
    for name, value in summary(rows).items():
        print(f"# {name}: {value:.2f}" if isinstance(value, float) else f"# {name}: {value}")
    print(*about_auto(rows), sep="\n")
    own = [x for x in failures if x["engine"] in (*OURS, None)]
    print(f"# failed: {len(own)} of fastreduce's, {len(failures) - len(own)} of the others")
    wrong = sum(row["wrong_elems"] for row in rows if row["engine"] in OURS)
    others = sum(row["wrong_elems"] for row in rows if row["engine"] not in OURS)
    if others:
        print(f"# Out of bounds values of those compared with: {others}")
    print(f"# Out of bounds values : {wrong} {'OK' if wrong == 0 else 'FAILED'}")
    return bool(own or wrong)
