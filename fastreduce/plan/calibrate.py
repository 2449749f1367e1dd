"""Fits curves to measured times, and says by how much they are off where they were not fitted."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastreduce.plan.runs import Measured
from fastreduce.topology.calibration import Calibration, Curve, Error, Pair

Floats = NDArray[np.float64]

# NCCL has three protocols (LL, LL128, Simple). With two pairs the mean error on points that were
# held out is 9.1 % instead of 7.4, with four 7.3 (721 published points, 2026-11-23).
PAIRS = 3
# Fewer leave nothing to hold out: a curve has six figures, and seven with a hop's latency.
LEAST_SIZES = LEAST_POINTS = 8


class HeldOut(NamedTuple):
    """One machine's share in the error of a calibration."""

    medium: str
    engine: str
    machine: str
    held_out: str
    errors: tuple[float, ...]
    flaw: str


def calibrate(runs: Sequence[Measured]) -> tuple[list[Calibration], list[HeldOut]]:
    """Fit each medium and engine, and hold out each of its machines in turn.

    Where a medium has one machine, every other point is held out, first the even ones, then the
    odd. The curves that are returned are fitted to all points; runs with a flaw count only where
    there are no others. Media and engines with fewer than `LEAST_SIZES` sizes are left out.

    Raises:
        ValueError: no medium has enough sizes.
        ImportError: scipy is missing.
    """
    calibrations, held_out = [], []
    for (medium, engine), group in itertools.groupby(sorted(runs, key=_what), _what):
        members = list(group)
        if len({point.nbytes for run in members for point in run.points}) < LEAST_SIZES:
            continue
        found = list(_held_out(members))
        if not any(x.errors for x in found):
            continue
        held_out += found
        members = [run for run in members if not run.flaw] or members
        found = [x for x in found if not x.flaw] or found
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
    if not calibrations:
        raise ValueError(
            f"no medium and engine was measured at {LEAST_SIZES} sizes or more on one machine with "
            "one number of ranks; want more sizes"
        )
    return calibrations, held_out


def _what(run: Measured) -> tuple[str, str]:
    return run.medium, run.engine


def _held_in_words(found: Sequence[HeldOut]) -> str:
    kinds = {x.held_out for x in found}
    return "machines" if kinds == {"machines"} else " and ".join(sorted(kinds, reverse=True))


def _held_out(runs: Sequence[Measured]) -> Iterator[HeldOut]:
    """Each machine's points in turn: those of sizes that other machines have, fitted to these; the
    rest, of which the others know nothing, every other one of them."""
    for machine in dict.fromkeys(run.machine for run in runs):
        own = [run for run in runs if run.machine == machine]
        others = [run for run in runs if run.machine != machine and not run.flaw]
        medium, engine, flaw = own[0].medium, own[0].engine, own[0].flaw
        known = range(0)
        if sum(len(run.points) for run in others) >= LEAST_POINTS:
            sizes = [point.nbytes for run in others for point in run.points]
            known = range(min(sizes), max(sizes) + 1)
            errors = errors_of(fit(others), (_in(known, run) for run in own))
            if errors:
                yield HeldOut(medium, engine, machine, "machines", tuple(errors), flaw)
        rest = [_in(known, run, wanted=False) for run in own]
        if sum(len(run.points) for run in own) >= LEAST_POINTS and any(x.points for x in rest):
            errors = _every_other([*own, *others], rest)
            yield HeldOut(medium, engine, machine, "every other point", tuple(errors), flaw)


def _every_other(runs: Sequence[Measured], held: Sequence[Measured]) -> list[float]:
    """Errors on ``held``, which are among ``runs``: fitted without the even ones of the sizes of
    each machine and number of ranks, then the odd. All points of a size are left out, or those of a
    second cycle of the same test would tell it."""
    errors: list[float] = []
    sizes: defaultdict[tuple[str, int], set[int]] = defaultdict(set)
    for run in held:
        sizes[_who(run)] |= {point.nbytes for point in run.points}
    for odd in (0, 1):
        left_out = {who: sorted(of)[odd::2] for who, of in sizes.items()}
        kept = [_in(left_out.get(_who(x), []), x, wanted=False) for x in runs]
        tested = [_in(left_out[_who(x)], x) for x in held]
        if any(run.points for run in kept):
            errors += errors_of(fit(kept), tested)
    return errors


def _who(run: Measured) -> tuple[str, int]:
    return run.machine, run.ranks


def _in(sizes: Container[int], run: Measured, wanted: bool = True) -> Measured:
    """The run with the points whose sizes are among these, or are not."""
    return run._replace(points=tuple(x for x in run.points if (x.nbytes in sizes) == wanted))


def errors_of(curve: Curve, runs: Iterable[Measured]) -> list[float]:
    """The share of the measured time by which a curve is off, for each point."""
    return [
        abs(curve.time_s(point.nbytes, run.ranks) / point.time_s - 1)
        for run in runs
        for point in run.points
    ]


def fit(runs: Sequence[Measured]) -> Curve:
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
    several = len(set(ranks)) > 1
    bus, hops = 2 * (ranks - 1) / ranks * sizes, 2 * (ranks - 1) * several
    found = (
        least_squares(
            lambda logs: np.log(_model(logs, bus, hops)[0] / times_s),
            start,
            lambda logs: _model(logs, bus, hops)[1],
            loss="soft_l1",
            f_scale=0.05,
        )
        # A curve has two figures for each pair: no more of them than points.
        for start in _starts(bus, times_s, max(2, min(PAIRS, len(sizes) // 2)))
    )
    call_s, hop_s, rates, ramps = _figures(min(found, key=lambda x: x.cost).x)
    # A pair that is never the fastest was not measured: its figures say nothing.
    chosen = sorted(set(((ramps + bus) / rates).argmin(0)), key=lambda i: float(rates[i, 0]))
    pairs = tuple(Pair(float(ramps[i, 0]), float(rates[i, 0])) for i in chosen)
    return Curve(call_s, hop_s if several else 0.0, pairs)


def _figures(logs: Floats) -> tuple[float, float, Floats, Floats]:
    """Of a call and a hop the seconds; of the pairs the rates and the ramps, the first without."""
    call_s, hop_s, *rest = np.exp(np.clip(logs, -60, 60))
    count = len(rest) // 2 + 1
    rates, ramps = rest[:count], [0.0, *rest[count:]]
    return float(call_s), float(hop_s), np.array(rates)[:, None], np.array(ramps)[:, None]


def _model(logs: Floats, bus: Floats, hops: Floats) -> tuple[Floats, Floats]:
    """Seconds, and by what share each of the logs changes them."""
    call_s, hop_s, rates, ramps = _figures(logs)
    moving_s = (ramps + bus) / rates
    chosen = moving_s.argmin(0) == np.arange(len(rates))[:, None]
    seconds = call_s + hops * hop_s + moving_s.min(0)
    changes = [0 * bus + call_s, hops * hop_s, *(-moving_s * chosen), *(ramps / rates * chosen)[1:]]
    return seconds, np.array(changes).T / seconds[:, None]


def _starts(bus: Floats, times_s: Floats, pairs: int) -> Iterable[Floats]:
    """Where to begin: with the changes between the pieces at several sizes."""
    call_s, rate = float(times_s.min()), float((bus / times_s).max())
    order = np.argsort(bus)
    low, high = math.log(float(bus.min())), math.log(float(bus.max()))
    for shares in itertools.combinations((0.15, 0.3, 0.45, 0.6, 0.75, 0.9), pairs - 1):
        changes = np.exp(low + np.array(shares) * (high - low))
        at_s = np.interp(changes, bus[order], times_s[order])
        at_s = np.maximum(at_s - call_s, 0.1 * at_s)
        between = np.diff(changes) / np.maximum(np.diff(at_s), 1e-7)
        rates = np.minimum([changes[0] / at_s[0], *between, rate], rate)
        ramps = np.maximum(rates[1:] * at_s - changes, 0.1 * changes)
        yield np.log([0.7 * call_s, 0.1 * call_s, *rates, *ramps])
