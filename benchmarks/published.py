"""Fits curves to the allreduce times that others have published, and says by how much they are off.

    python benchmarks/published.py     # needs scipy

Reads results/published.json, whose points each name their source. Writes the curves that ship with
the package (fastreduce/plan/published.json), a picture (results/published.png), and the table
of docs/calibration.md to the screen.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from fastreduce.plan.calibrate import HeldOut, calibrate
from fastreduce.plan.calibration import Calibration
from fastreduce.plan.calibration_files import PUBLISHED, save_calibrations
from fastreduce.plan.runs import Run, read
from fastreduce.units import busbw

CORPUS = Path(__file__).parent / "results" / "published.json"
PICTURE = CORPUS.with_suffix(".png")
GOALS = 0.10, 0.30  # mean and worst
LABELS = {
    1 << 10: "1 KiB",
    1 << 15: "32 KiB",
    1 << 20: "1 MiB",
    1 << 25: "32 MiB",
    1 << 30: "1 GiB",
}


def table(held_out: Sequence[HeldOut]) -> str:
    """One line for each machine and way to hold out; bold: misses a goal."""
    rows = ["| medium | machine | held out | points | mean | worst |", "|---|---|---|---|---|---|"]
    for x in held_out:
        found = float(np.mean(x.errors)), max(x.errors)
        shown = [
            f"**{error:.0%}**" if error > goal else f"{error:.0%}"
            for error, goal in zip(found, GOALS, strict=True)
        ]
        kind = "by machine" if x.held_out == "machines" else x.held_out
        cells = x.medium, x.machine, kind, str(len(x.errors)), *shown
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows).replace("%", " %")


def summary(held_out: Sequence[HeldOut]) -> str:
    """The mean and the worst of all, and of each way to hold out."""
    lines = []
    for words, wanted in (
        ("all", None),
        ("by machine", "machines"),
        ("every other point", "every other point"),
    ):
        errors = np.array([e for x in held_out if wanted in (None, x.held_out) for e in x.errors])
        lines.append(
            f"{words}: {len(errors)} points, mean {errors.mean():.1%}, worst {errors.max():.0%}, "
            f"above 30 %: {(errors > GOALS[1]).sum()}"
        )
    return "\n".join(lines)


def picture(runs: Sequence[Run], calibrations: Sequence[Calibration]) -> None:
    """busbw over size, one panel for each medium: points as published, curves as fitted."""
    columns = 4
    rows = -(-len(calibrations) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(4.2 * columns, 2.9 * rows))
    for ax, found in zip(axes.flat, calibrations, strict=False):
        for run in runs:
            if (run.medium, run.engine) == (found.medium, found.engine):
                _draw(ax, run, found)
        ax.set(xscale="log", yscale="log")
        ax.set_title(f"{found.engine}: {found.medium}\nheld out: {found.error.mean:.0%}", size=8)
        ax.legend(fontsize=5.5, loc="lower right")
        ax.grid(alpha=0.3)
        ticks = [tick for tick in LABELS if found.sizes_bytes[0] <= tick]
        ax.set_xticks(ticks, [LABELS[tick] for tick in ticks], size=7)
        ax.tick_params(axis="y", labelsize=7)
        ax.minorticks_off()
    for ax in axes.flat[len(calibrations) :]:
        ax.remove()
    figure.suptitle("busbw in GB/s over bytes on each GPU: points as published, lines as fitted")
    figure.tight_layout(rect=(0, 0, 1, 0.985))
    figure.savefig(PICTURE, dpi=75)


def _draw(ax: plt.Axes, run: Run, found: Calibration) -> None:
    sizes = np.array([point.nbytes for point in run.points])
    shown = [busbw(point.nbytes, point.time_s, run.ranks) / 1e9 for point in run.points]
    (dots,) = ax.plot(sizes, shown, ".", ms=4, label=f"{run.machine}, {run.ranks} GPUs")
    low, high = np.log(min(sizes)), np.log(max(sizes))
    fine = np.exp(np.linspace(low, high, 200))
    times_s = [found.curve.time_s(float(nbytes), run.ranks) for nbytes in fine]
    curve = [busbw(n, s, run.ranks) / 1e9 for n, s in zip(fine.tolist(), times_s, strict=True)]
    ax.plot(fine, curve, "-", lw=0.8, color=dots.get_color())


def main() -> None:
    runs = read(CORPUS)
    calibrations, held_out = calibrate(runs)
    save_calibrations(calibrations, PUBLISHED)
    picture(runs, calibrations)
    print(table(held_out))
    print(summary(held_out))


if __name__ == "__main__":
    main()
