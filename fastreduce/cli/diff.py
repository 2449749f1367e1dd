"""``fastreduce diff``: where two recorded runs differ first."""

from __future__ import annotations

import argparse


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    diff = commands.add_parser(
        "diff",
        help="compare two recorded runs bit by bit",
        description="Name the first step, bucket and parameter in which two runs differ that were "
        "recorded by fastreduce.DataParallel(..., record=FILE). Exit status: 0 if all is the same, "
        "1 if not, 2 if they cannot be compared.",
    )
    diff.add_argument("run_a", metavar="RUN_A", help="the record of one run")
    diff.add_argument("run_b", metavar="RUN_B", help="the record of the other")
    diff.set_defaults(run=_diff, status_of_errors=2)


def _diff(args: argparse.Namespace) -> int:
    from fastreduce.parallel.record import first_difference

    found = first_difference(args.run_a, args.run_b)
    print("the same in every step" if found is None else found)
    return 0 if found is None else 1
