"""``fastreduce tune``: measures the algorithms on this machine."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fastreduce.cli.paths import to_write, why_not_writable
from fastreduce.cli.status import FAILED


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    tune = commands.add_parser(
        "tune",
        help="measure the algorithms here, in under a minute: auto then takes the fastest",
        description="Measure every algorithm on this machine, in under a minute. From then on, "
        '"auto" takes the fastest.',
    )
    tune.set_defaults(run=_tune)
    tune.add_argument(
        "--out",
        metavar="FILE",
        type=to_write(".json"),
        help="the table as JSON (default: where auto looks for it)",
    )
    tune.add_argument(
        "--force", action="store_true", help="keep times that the machine's other work disturbed"
    )


def _tune(args: argparse.Namespace) -> int:
    from fastreduce.plan.noise import NoisyMeasurement
    from fastreduce.plan.table_files import save
    from fastreduce.plan.tune import measure

    path = args.out or _default_path()
    try:
        table = measure()
    except NoisyMeasurement as noisy:
        table = noisy.table
        print(table)
        if not args.force:
            print(f"fastreduce: error: {noisy}; --force keeps them", file=sys.stderr)
            return FAILED
        print(f"fastreduce: warning: {noisy}", file=sys.stderr)
    else:
        print(table)
    print("written:", save(table, path))
    return 0


def _default_path() -> Path:
    """Where "auto" looks; an OSError if nothing can be written there."""
    from fastreduce.plan.machine import device, versions
    from fastreduce.plan.table_files import default_path

    path = default_path(device(), *versions())
    if reason := why_not_writable(path):
        raise OSError(f"{reason}; name another file with --out")
    return path
