"""``fastreduce synthesize``: search for the fastest program on a machine, on paper."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from fastreduce.cli import plan_machine
from fastreduce.cli.paths import check_not_read, to_write
from fastreduce.cli.plan_options import add_changes, check_network
from fastreduce.files import stderr_is_terminal

if TYPE_CHECKING:
    from fastreduce.program import Program


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    synthesize = commands.add_parser(
        "synthesize",
        help="search for the fastest program on a machine, on paper",
        description="Search for the fastest allreduce on a machine, by simulation, and prove it. "
        'allreduce(tensors, algorithm="file:mine.json") then runs it.',
    )
    synthesize.set_defaults(run=_synthesize, refuse=synthesize.error)
    synthesize.add_argument(
        "topology", metavar="NAME|FILE", help="a preset's name, a JSON file, or 'detect'"
    )
    add_changes(synthesize, with_model=False)
    synthesize.add_argument(
        "--size", required=True, help="bytes per rank, such as 64MiB: another size, another program"
    )
    synthesize.add_argument(
        "-o",
        "--out",
        metavar="JSON|XML",
        type=to_write(".json", ".xml"),
        help="write the program, or export it: NAME.xml for MSCCL, NAME.mscclpp.json for MSCCL++",
    )
    synthesize.add_argument(
        "--seconds",
        type=_seconds,
        default=math.inf,
        help="end the search after so long; it may then find another program the next time",
    )


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not found > 0:
        raise argparse.ArgumentTypeError(f"found {text}, want seconds above zero")
    return found


def _synthesize(args: argparse.Namespace) -> int:
    from fastreduce.program.export import WRITERS
    from fastreduce.synthesis import synthesize

    try:
        check_network(args)
        check_not_read([args.out], [args.topology])
        topology = plan_machine.joined(args)
        assert topology is not None, "the argument is required"
        found = synthesize(
            topology,
            args.size,
            seconds=args.seconds,
            progress=stderr_is_terminal(),
        )
    except ValueError as error:
        args.refuse(str(error))
    print(found)
    if args.out:
        path: Path = args.out
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.name.lower().endswith(tuple(WRITERS)):
            _export(found.program, path)
        else:
            found.program.save(path)
        print("written:", path)
    return 0


def _export(program: Program, path: Path) -> None:
    try:
        program.export(path)
    except ValueError as error:
        # Only the program itself tells whether it fits, and the search may have taken minutes.
        kept = path.with_name(f"{path.name}.json")
        program.save(kept)
        raise ValueError(f"{error}; this program was saved to {kept} instead") from None
