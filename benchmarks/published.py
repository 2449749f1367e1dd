"""Fits curves to the allreduce times that others have published, and says by how much they are off.

    python benchmarks/published.py     # needs scipy

Reads results/published.json, whose points each name their source. Writes the curves that ship with
the package (fastreduce/plan/published.json), a picture (results/published.png), and the tables
of docs/calibration.md to the screen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
        kind += ", untuned" if x.flaw else ""
        cells = x.medium, x.machine, kind, str(len(x.errors)), *shown
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows).replace("%", " %")


def summary(runs: Sequence[Run], held_out: Sequence[HeldOut]) -> str:
    """Lines of a table: the mean and the worst of all, of each way to hold out, and without curves.

    Runs that their own sources call untuned have a line to themselves.
    """
    sound = [x for x in held_out if not x.flaw]
    mean, nearest = between_machines([run for run in runs if not run.flaw])
    rows = {
        "all": _errors(sound),
        "by machine": _errors(sound, "machines"),
        "every other point": _errors(sound, "every other point"),
        "untuned, not among these": _errors(x for x in held_out if x.flaw),
        "no curve: mean of the other machines": mean,
        "no curve: nearest of the other machines": nearest,
    }
    lines = ["| held out | points | mean | worst | above 30 % |", "|---|---|---|---|---|"]
    for words, errors in rows.items():
        figures = f"{np.mean(errors):.1%} | {max(errors):.0%}".replace("%", " %")
        above = sum(error > GOALS[1] for error in errors)
        lines.append(f"| {words} | {len(errors)} | {figures} | {above} points |")
    return "\n".join(lines)


def _errors(held_out: Iterable[HeldOut], wanted: str = "") -> list[float]:
    return [e for x in held_out if wanted in ("", x.held_out) for e in x.errors]


def between_machines(runs: Sequence[Run]) -> tuple[list[float], list[float]]:
    """By how much machines of one medium differ at the same size and number of ranks.

    For each point the error of the others' geometric mean, and of the nearest of them: what a curve
    could reach that was told all of the others' times, and which of them to take.
    """
    mean, nearest = [], []
    for run in runs:
        like = (run.medium, run.engine, run.ranks)
        others = [
            dict(x.points)
            for x in runs
            if x.machine != run.machine and (x.medium, x.engine, x.ranks) == like
        ]
        for nbytes, time_s in run.points:
            if found := [x[nbytes] / time_s for x in others if nbytes in x]:
                mean.append(abs(float(np.exp(np.mean(np.log(found)))) - 1))
                nearest.append(min(abs(x - 1) for x in found))
    return mean, nearest


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
    print(summary(runs, held_out))
    print(table(held_out))


if __name__ == "__main__":
    main()
