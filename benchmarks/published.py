"""Fits curves to the allreduce times that others have published, and says by how much they are off.

    python benchmarks/published.py     # needs scipy

Reads fastreduce/plan/published_runs.json, whose points each name their source. Writes the curves
that ship beside them (fastreduce/topology/published.json), a picture (results/published.png), and
the tables of docs/calibration.md to the screen.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from axes import save_figure, show_numbers, show_sizes, show_title
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rows import markdown

from fastreduce.plan.calibrate import HeldOut, calibrate
from fastreduce.plan.runs import PUBLISHED_RUNS, Measured, read
from fastreduce.topology.calibration import Calibration
from fastreduce.topology.calibration_files import PUBLISHED, save_calibrations
from fastreduce.units import busbw, percent

PICTURE = Path(__file__).parent / "results" / "published.png"
GOALS = 0.10, 0.30  # mean and worst


def table(held_out: Sequence[HeldOut]) -> str:
    """One line for each machine and way to hold out; bold: misses a goal."""
    rows = [("medium", "machine", "held out", "points", "mean", "worst")]
    for x in held_out:
        found = float(np.mean(x.errors)), max(x.errors)
        shown = [
            f"**{percent(error)}**" if error > goal else percent(error)
            for error, goal in zip(found, GOALS, strict=True)
        ]
        kind = "by machine" if x.held_out == "machines" else x.held_out
        kind += ", untuned" if x.flaw else ""
        rows.append((x.medium, x.machine, kind, str(len(x.errors)), *shown))
    return "\n".join(markdown(rows))


def summary(runs: Sequence[Measured], held_out: Sequence[HeldOut]) -> str:
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
    cells = [("held out", "points", "mean", "worst", f"above {percent(GOALS[1])}")]
    for words, errors in rows.items():
        above = sum(error > GOALS[1] for error in errors)
        figures = percent(float(np.mean(errors)), 1), percent(max(errors)), f"{above} points"
        cells.append((words, str(len(errors)), *figures))
    return "\n".join(markdown(cells))


def _errors(held_out: Iterable[HeldOut], wanted: str = "") -> list[float]:
    return [e for x in held_out if wanted in ("", x.held_out) for e in x.errors]


def between_machines(runs: Sequence[Measured]) -> tuple[list[float], list[float]]:
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


def picture(runs: Sequence[Measured], calibrations: Sequence[Calibration]) -> None:
    """busbw over size, one panel for each medium: points as published, curves as fitted."""
    columns = 3
    rows = -(-len(calibrations) // columns)
    figure = Figure(figsize=(4.2 * columns, 2.7 * rows), layout="constrained")
    for i, found in enumerate(calibrations):
        axes = figure.add_subplot(rows, columns, i + 1)
        own = [x for x in runs if (x.medium, x.engine) == (found.medium, found.engine)]
        _draw(axes, own, found)
        axes.set_title(
            f"{found.engine}: {found.medium}\npoints held out: {found.error.mean:.0%} off", size=9
        )
        show_sizes(axes, (point.nbytes for run in own for point in run.points), most=7)
        show_numbers(axes)
        axes.tick_params(labelsize=7)
        axes.legend(fontsize=6.5, loc="lower right")
    show_title(figure, "busbw in GB/s over bytes on each GPU: points as published, lines as fitted")
    save_figure(figure, PICTURE, dpi=90)


def _draw(axes: Axes, runs: Sequence[Measured], found: Calibration) -> None:
    points = defaultdict(list)  # a machine may have been measured twice
    for run in runs:
        points[run.ranks, f"{run.machine}, {run.ranks} GPUs"] += run.points
    for (ranks, name), own in points.items():
        rates = [busbw(point.nbytes, point.time_s, ranks) / 1e9 for point in own]
        axes.plot([point.nbytes for point in own], rates, ".", ms=4, label=name)
    for ranks in dict.fromkeys(run.ranks for run in runs):
        sizes = [point.nbytes for run in runs if run.ranks == ranks for point in run.points]
        fine = np.geomspace(min(sizes), max(sizes), 200).tolist()
        curve = [busbw(n, found.curve.time_s(n, ranks), ranks) / 1e9 for n in fine]
        axes.plot(fine, curve, color="black", lw=0.8, zorder=1)


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    runs = read(PUBLISHED_RUNS)
    calibrations, held_out = calibrate(runs)
    save_calibrations(calibrations, PUBLISHED)
    picture(runs, calibrations)
    print(summary(runs, held_out))
    print(table(held_out))


if __name__ == "__main__":
    main()
