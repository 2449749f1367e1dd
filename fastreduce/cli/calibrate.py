"""``fastreduce calibrate``: fits curves to measured times, so that plans can say their error."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fastreduce.cli.paths import check_not_read, to_write
from fastreduce.units import size

if TYPE_CHECKING:
    from fastreduce.plan.runs import Measured
    from fastreduce.topology.calibration import Calibration


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    calibrate = commands.add_parser(
        "calibrate",
        help="fit curves to measured times: plans then say by how much they may be off",
        description="Fit curves to the output of nccl-tests, tables of `fastreduce tune`, or JSON "
        "of our benchmarks, and say by how much they are off on points that were held out.",
    )
    calibrate.set_defaults(run=_calibrate, refuse=calibrate.error)
    calibrate.add_argument("files", nargs="+", metavar="FILE", help="measured times of allreduce")
    calibrate.add_argument(
        "--medium",
        metavar="WORDS",
        help="what was measured, such as '8 H100 on NVSwitch', where a file does not say it; files "
        "with the same words are fitted together (default: the file's name)",
    )
    calibrate.add_argument(
        "--topology",
        metavar="NAME|FILE",
        help="write this topology with the curves added; needs --out",
    )
    calibrate.add_argument(
        "-o",
        "--out",
        metavar="FILE",
        type=to_write(".json"),
        help="the curves as JSON (default: add them to the file that plans for this machine read)",
    )


def _calibrate(args: argparse.Namespace) -> int:
    from fastreduce.topology.calibration_files import adding

    if args.topology is not None and not args.out:
        args.refuse("--topology writes a topology's file: it needs --out")
    check_not_read([args.out], args.files)
    with nullcontext() if args.out else adding():
        _fit(args)
    return 0


def _fit(args: argparse.Namespace) -> None:
    from fastreduce.plan.calibrate import calibrate
    from fastreduce.plan.runs import read
    from fastreduce.topology import as_topology, save
    from fastreduce.topology.calibration_files import save_calibrations, stored

    topology = None if args.topology is None else as_topology(args.topology)
    known = topology.calibrations if topology else () if args.out else stored()
    runs = [run for path in args.files for run in read(Path(path), args.medium)]
    found, _ = calibrate(runs)
    print("\n".join([_table(found), *_what_is_missing(found, runs)]))
    new = {(x.medium, x.engine) for x in found}
    every = [*(x for x in known if (x.medium, x.engine) not in new), *found]
    if topology is None:
        print("written:", save_calibrations(every, args.out))
    else:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        save(replace(topology, calibrations=tuple(every)), args.out)
        print("written:", args.out)
    if not args.out:
        print(
            f"Plans for this machine's GPUs (--topology detect) read it: {len(found)} new or "
            f"replaced, {len(every) - len(found)} kept. For another machine give --topology and -o."
        )


def _what_is_missing(found: Sequence[Calibration], runs: Iterable[Measured]) -> Iterator[str]:
    """A line for each curve that is not in the table, and for each without a rate."""
    from fastreduce.plan.calibrate import LEAST_SIZES

    fitted = {(x.medium, x.engine) for x in found}
    for medium, engine in dict.fromkeys((run.medium, run.engine) for run in runs):
        if (medium, engine) not in fitted:
            yield (
                f"left out: {medium}, {engine}: fewer than {LEAST_SIZES} sizes on one machine with "
                "one number of ranks"
            )
    for x in found:
        if not x.tells_rate:
            least, most = (size(nbytes) for nbytes in x.sizes_bytes)
            yield (
                f"no rate: {x.medium}, {x.engine}: from {least} to {most} bytes make up less than "
                "half of the time; measure larger sizes too"
            )


def _table(found: Iterable[Calibration]) -> str:
    """A line for each curve; errors are of points that it was not fitted to."""
    found = list(found)
    medium = max(len(x) for x in ("medium", *(x.medium for x in found)))
    engine = max(len(x) for x in ("engine", *(x.engine for x in found)))
    line = f"{{:<{medium}}}  {{:<{engine}}}  {{:>5}} {{:>10}} {{:>11}} {{:>6}} {{:>6}}  {{}}".format
    lines = [line("medium", "engine", "ranks", "call (us)", "rate (GB/s)", "mean", "worst", "held")]
    for x in found:
        ranks = "-".join(dict.fromkeys(str(k) for k in x.ranks))
        rate = f"{x.curve.pairs[-1].bytes_per_s / 1e9:.2f}" if x.tells_rate else "-"
        figures = f"{x.curve.call_s * 1e6:.1f}", rate
        error = f"{x.error.mean:.0%}", f"{x.error.worst:.0%}"
        lines.append(line(x.medium, x.engine, ranks, *figures, *error, x.error.held_out))
    return "\n".join(lines)
