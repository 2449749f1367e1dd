"""Fits curves to measured times, and says by how much they are off where they were not fitted."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastreduce.plan.calibration import Calibration, Curve, Error
from fastreduce.plan.runs import Run

# Fewer points leave nothing to hold out: a curve has four figures, and five with a hop's latency.
LEAST_POINTS = 8


class HeldOut(NamedTuple):
    """One machine's share in the error of a calibration."""

    medium: str
    engine: str
    machine: str
    held_out: str
    errors: tuple[float, ...]


def calibrate(runs: Sequence[Run]) -> tuple[list[Calibration], list[HeldOut]]:
    """Fit each medium and engine, and hold out each of its machines in turn.

    Where a medium has one machine, every other point is held out, first the even ones, then the
    odd. The curves that are returned are fitted to all points.

    Raises:
        ValueError: no medium has enough points.
        ImportError: scipy is missing.
    """
    calibrations, held_out = [], []
    for (medium, engine), group in itertools.groupby(sorted(runs, key=_what), _what):
        members = list(group)
        if sum(len(run.points) for run in members) < LEAST_POINTS:
            continue
        found = list(_held_out(members))
        errors = [error for x in found for error in x.errors]
        sizes = [point.nbytes for run in members for point in run.points]
        ranks = [run.ranks for run in members]
        calibrations.append(
            Calibration(
                medium,
                engine,
                (min(ranks), max(ranks)),
                (min(sizes), max(sizes)),
                fit(members),
                Error(float(np.mean(errors)), max(errors), len(errors), _held_in_words(found)),
                tuple(dict.fromkeys(run.source for run in members)),
            )
        )
        held_out += found
    if not calibrations:
        raise ValueError(
            f"no medium and engine with at least {LEAST_POINTS} points; want more sizes"
        )
    return calibrations, held_out


def _what(run: Run) -> tuple[str, str]:
    return run.medium, run.engine


def _held_in_words(found: Sequence[HeldOut]) -> str:
    kinds = {x.held_out for x in found}
    return "machines" if kinds == {"machines"} else " and ".join(sorted(kinds, reverse=True))


def _held_out(runs: Sequence[Run]) -> Iterator[HeldOut]:
    """Each machine's points in turn: those of sizes that other machines have, fitted to these; the
    rest, of which the others know nothing, every other one of them."""
    medium, engine = runs[0].medium, runs[0].engine
    for machine in dict.fromkeys(run.machine for run in runs):
        own = [run for run in runs if run.machine == machine]
        others = [run for run in runs if run.machine != machine]
        known = range(0)
        if sum(len(run.points) for run in others) >= LEAST_POINTS:
            sizes = [point.nbytes for run in others for point in run.points]
            known = range(min(sizes), max(sizes) + 1)
            errors = errors_of(fit(others), (_in(known, run) for run in own))
            if errors:
                yield HeldOut(medium, engine, machine, "machines", tuple(errors))
        rest = [_in(known, run, wanted=False) for run in own]
        if sum(len(run.points) for run in own) >= LEAST_POINTS and any(x.points for x in rest):
            errors = _every_other(runs, rest)
            yield HeldOut(medium, engine, machine, "every other point", tuple(errors))


def _every_other(runs: Sequence[Run], held: Sequence[Run]) -> list[float]:
    """Errors on ``held``, which are among ``runs``: fitted without the even ones, then the odd."""
    errors = []
    for odd in (0, 1):
        left_out = {(run.machine, run.ranks, point) for run in held for point in run.points[odd::2]}
        kept = [
            run._replace(
                points=tuple(x for x in run.points if (run.machine, run.ranks, x) not in left_out)
            )
            for run in runs
        ]
        tested = [run._replace(points=run.points[odd::2]) for run in held]
        errors += errors_of(fit(kept), tested)
    return errors


def _in(sizes: range, run: Run, wanted: bool = True) -> Run:
    """The run with the points whose sizes are among these, or are not."""
    return run._replace(points=tuple(x for x in run.points if (x.nbytes in sizes) == wanted))


def errors_of(curve: Curve, runs: Iterable[Run]) -> list[float]:
    """The share of the measured time by which a curve is off, for each point."""
    return [
        abs(curve.time_s(point.nbytes, run.ranks) / point.time_s - 1)
        for run in runs
        for point in run.points
    ]


def fit(runs: Sequence[Run]) -> Curve:
    """The curve with the least relative error; a hop's latency only where numbers of ranks differ.

    Raises:
        ImportError: scipy is missing.
    """
    try:
        from scipy.optimize import least_squares
    except ImportError:
        raise ImportError(
            "fitting needs scipy, which is not installed: pip install scipy"
        ) from None
    ranks = np.array([run.ranks for run in runs for _ in run.points], dtype=np.float64)
    sizes = np.array([point.nbytes for run in runs for point in run.points], dtype=np.float64)
    times_s = np.array([point.time_s for run in runs for point in run.points])
    bus, hops = 2 * (ranks - 1) / ranks * sizes, 2 * (ranks - 1)
    with_hops = len(set(ranks)) > 1

    def residuals(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        call_s, small, rate, ramp, *hop_s = np.exp(logs)
        offset_s = call_s + (hops * hop_s[0] if hop_s else 0.0)
        model_s = offset_s + np.minimum(bus / small, (ramp + bus) / rate)
        return np.asarray(np.log(model_s / times_s))

    best = min(
        (
            least_squares(residuals, start, loss="soft_l1", f_scale=0.05)
            for start in _starts(bus, times_s, with_hops)
        ),
        key=lambda found: found.cost,
    )
    call_s, small, rate, ramp, *hop_s = (float(x) for x in np.exp(best.x))
    return Curve(call_s, hop_s[0] if hop_s else 0.0, small, rate, ramp)


def _starts(
    bus: NDArray[np.float64], times_s: NDArray[np.float64], with_hops: bool
) -> Iterable[NDArray[np.float64]]:
    """Where to begin: with the change between the pieces at several sizes."""
    call_s, rate = float(times_s.min()), float((bus / times_s).max())
    low, high = math.log(float(bus.min())), math.log(float(bus.max()))
    for share in (0.15, 0.3, 0.45, 0.6, 0.75, 0.9):
        change = math.exp(low + share * (high - low))
        at = float(np.interp(change, np.sort(bus), times_s[np.argsort(bus)]))
        small = change / max(at - call_s, 0.1 * at)
        ramp = max(rate * (at - call_s) - change, 0.1 * change)
        start = [0.7 * call_s, small, rate, ramp, *([0.1 * call_s] if with_hops else [])]
        yield np.log(start)
