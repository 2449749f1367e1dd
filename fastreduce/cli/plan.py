"""``fastreduce plan``: predict every algorithm on a machine, without running it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from fastreduce.cli.paths import to_write

if TYPE_CHECKING:
    from fastreduce.topology import Topology

MOST_RANKS = 1024


class _Help(argparse._HelpAction):
    """Adds the presets to the help, and only there: they need networkx, which is slow to import."""

    def __call__(self, parser: argparse.ArgumentParser, *arguments: Any, **rest: Any) -> None:
        from fastreduce.topology import names

        parser.epilog = f"presets: {', '.join(names())}"
        super().__call__(parser, *arguments, **rest)


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    plan = commands.add_parser(
        "plan",
        help="predict every algorithm on a machine, on paper",
        description="Predict how long each algorithm takes for an allreduce, which limit binds, "
        "and which is the fastest. Nothing is run.",
        add_help=False,
    )
    plan.set_defaults(run=_plan, refuse=plan.error)
    plan.add_argument("-h", "--help", action=_Help, help="show this help and the presets, and exit")
    plan.add_argument(
        "--topology",
        metavar="NAME|FILE",
        help="a preset's name, a JSON file, or 'detect' (default: ranks in one memory, the CPU's)",
    )
    plan.add_argument(
        "--machines",
        type=int,
        default=1,
        help="how many machines of that preset a network joins (default: 1)",
    )
    plan.add_argument(
        "--gbit", type=float, help="rate of a network card in Gbit/s, each way (default: 400)"
    )
    plan.add_argument("--nics", type=int, help="network cards per machine (default: 1)")
    plan.add_argument(
        "--size", default="160MB", help="bytes per rank, such as 64MiB (default: 160MB)"
    )
    plan.add_argument(
        "--ranks", type=_ranks, help="default: one per GPU of the topology; 2 without one"
    )
    plan.add_argument(
        "--algorithm",
        metavar="NAME|file:PATH",
        help="to draw and trace, also a saved program (default: the one that is chosen)",
    )
    plan.add_argument(
        "--draw",
        metavar="SVG|PNG",
        type=to_write(".svg", ".png"),
        help="draw who sends which shard to whom",
    )
    plan.add_argument(
        "--trace", metavar="JSON", type=to_write(".json"), help="write a trace for ui.perfetto.dev"
    )
    plan.add_argument(
        "--timeline",
        metavar="PNG",
        type=to_write(".png"),
        help="draw when each device and link works",
    )


def _ranks(text: str) -> int:
    # A ring's instructions grow with the square of the ranks, and so does the time of a plan.
    if not text.isdecimal() or not 1 <= int(text) <= MOST_RANKS:
        raise argparse.ArgumentTypeError(f"found {text}, want a number from 1 to {MOST_RANKS}")
    return int(text)


def _plan(args: argparse.Namespace) -> int:
    from fastreduce import draw, explain, simulate
    from fastreduce.units import parse_size

    refuse: Callable[[str], NoReturn] = args.refuse
    if (args.trace or args.timeline) and not args.topology:
        refuse("--trace and --timeline show links: they need a --topology")
    if args.machines != 1 and not args.topology:
        refuse("--machines says how many machines of a preset there are: it needs a --topology")
    if args.machines == 1 and (args.nics is not None or args.gbit is not None):
        refuse("--nics and --gbit describe the network between machines: they need --machines")
    try:
        nbytes, topology = parse_size(args.size), topology_of(args)
        plan = explain(nbytes, k=args.ranks, topology=topology, algorithm=args.algorithm)
        shown = plan.candidate(args.algorithm or plan.algorithm)
        if shown.program is None:
            raise ValueError(f"{shown.algorithm} has no program: {shown.prediction.limit}")
    except ValueError as error:
        refuse(str(error))
    print(plan)
    written = [path for path in (args.draw, args.trace, args.timeline) if path]
    for path in written:
        path.parent.mkdir(parents=True, exist_ok=True)
    if args.draw:
        draw(shown.program, args.draw)
    if topology and (args.trace or args.timeline):
        sizes = [nbytes] if shown.program.whole_tensors else nbytes
        timeline = simulate(shown.program, topology, sizes, slices=shown.slices)
        if args.trace:
            timeline.to_trace(args.trace)
        if args.timeline:
            timeline.to_png(args.timeline)
    if written:
        print("written:", *written)
    return 0


def topology_of(args: argparse.Namespace) -> Topology | None:
    """What ``--topology``, ``--machines``, ``--gbit`` and ``--nics`` say."""
    from fastreduce.topology import as_topology, cluster

    if args.topology is None:
        return None
    if Path(args.topology).is_dir():
        raise ValueError(
            f"--topology {args.topology!r} is a folder, want a preset's name, a file, or 'detect'"
        )
    if args.machines != 1:
        gbit = 400.0 if args.gbit is None else args.gbit
        nics = 1 if args.nics is None else args.nics
        return cluster(args.topology, args.machines, gbit, nics=nics)
    return as_topology(args.topology)
