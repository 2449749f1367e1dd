"""``fastreduce doctor``: what is installed, what it runs on, and what is missing."""

from __future__ import annotations

import argparse


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="print versions, devices, and what is missing",
        description="Print versions, devices, and what is missing here and what that costs.",
    )
    doctor.set_defaults(run=_doctor)


def _doctor(_: argparse.Namespace) -> int:
    from fastreduce.doctor import report

    print(report())
    return 0
