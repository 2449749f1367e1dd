"""The commands ``fastreduce train``, ``plan``, ``tune`` and ``doctor``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fastreduce.cli import plan, train
from fastreduce.cli.status import FAILED, INTERRUPTED

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that ``argv`` (default: the process's) names, and return its exit status.

    0 is success, 1 an error on the way, 130 an end by Ctrl-C. Arguments that make no sense raise
    SystemExit(2), after a line that says which and why, as argparse does.

    >>> main(["train", "--data", "/no/such/folder"])
    1
    """
    args = _parser().parse_args(argv)
    try:
        status: int = args.run(args)
        return status
    except KeyboardInterrupt:
        print("fastreduce: interrupted", file=sys.stderr)
        return INTERRUPTED
    except (OSError, RuntimeError, ValueError) as error:
        print(f"fastreduce: error: {error}", file=sys.stderr)
        return FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("fastreduce", description="Allreduce for PyTorch.")
    commands = parser.add_subparsers(required=True, metavar="command")
    doctor = commands.add_parser("doctor", help="print versions, devices, and what is missing")
    doctor.set_defaults(run=_doctor)
    plan.add(commands)
    _add_tune(commands)
    train.add(commands)
    return parser


def _add_tune(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    tune = commands.add_parser(
        "tune", help="measure the algorithms here, in under a minute: auto then takes the fastest"
    )
    tune.set_defaults(run=_tune)
    tune.add_argument(
        "--out", metavar="FILE", type=Path, help="JSON (default: where auto looks for it)"
    )


def _doctor(_: argparse.Namespace) -> int:
    from fastreduce.doctor import report

    print(report())
    return 0


def _tune(args: argparse.Namespace) -> int:
    from fastreduce.plan.table_files import save
    from fastreduce.plan.tune import measure

    table = measure()
    print(table)
    print("written:", save(table, args.out))
    return 0
