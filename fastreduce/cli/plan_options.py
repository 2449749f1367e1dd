"""What ``fastreduce plan`` can be asked, and what of it makes no sense together."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from textwrap import fill
from typing import Any

from fastreduce.cli.paths import check_not_read, to_write

# A ring's instructions grow with the square of the ranks, and so does the time of a plan.
MOST_RANKS = 1024
MOST_NICS = 1024  # of a machine; more are most likely a mistake
MOST_MACHINES = 1 << 20
SLOWEST_GBIT, FASTEST_GBIT = 0.001, 1e6  # beyond all networks, so most likely a mistake

# Each describes the plan of one allreduce; a training step has many.
FILES_OF_ONE_SIZE = ("draw", "trace", "timeline", "busy", "html")
OF_ONE_SIZE = ("size", "sizes", "ranks", "algorithm", "draw", "trace", "timeline", "busy")
OF_LINKS = ("trace", "timeline", "busy", "kill", "slow")


class _Help(argparse._HelpAction):
    """Adds the presets to the help, and only there: they need networkx, which is slow to import."""

    def __call__(self, parser: argparse.ArgumentParser, *arguments: Any, **keywords: Any) -> None:
        from fastreduce.plan import models
        from fastreduce.topology import names

        known = {"models": models.names(), "presets": names()}
        lines = [parser.description or "", *(f"{x}: {', '.join(known[x])}" for x in known)]
        # argparse would cut names at their hyphens.
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.description, *rest = (fill(line, break_on_hyphens=False) for line in lines)
        parser.epilog = "\n".join(rest)
        super().__call__(parser, *arguments, **keywords)


def add(plan: argparse.ArgumentParser) -> None:
    plan.add_argument("-h", "--help", action=_Help, help="show this help and the presets, and exit")
    _add_machine(plan.add_argument_group("the machine"))
    _add_allreduce(plan.add_argument_group("one allreduce"))
    _add_step(plan.add_argument_group("a training step"))
    _add_files(plan.add_argument_group("what to write"))


def _add_machine(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--topology",
        metavar="NAME|FILE",
        help="a preset's name, a JSON file, or 'detect' (default: ranks in one memory, the CPU's; "
        "with --model dgx-h100)",
    )
    add_changes(group, with_model=True)


def add_changes(group: argparse._ActionsContainer, *, with_model: bool) -> None:
    """What ``plan_machine.joined`` makes of the named machine."""
    group.add_argument(
        "--machines",
        type=_up_to(MOST_MACHINES),
        help="how many of these machines a network joins (default: 1"
        + f"; with --model as many as {MOST_RANKS:,} GPUs need" * with_model
        + ")",
    )
    group.add_argument(
        "--gbit", type=_gbit, help="rate of a network card in Gbit/s, each way (default: 400)"
    )
    group.add_argument(
        "--nics",
        type=_up_to(MOST_NICS),
        help="network cards per machine (default: 1"
        + "; with --model one for each GPU" * with_model
        + ")",
    )
    group.add_argument(
        "--kill",
        metavar="LINK",
        action="append",
        help="without this link, such as gpu0-gpu1, in both directions; may be repeated"
        + " (with --model, in each of the machines)" * with_model,
    )
    group.add_argument(
        "--slow",
        metavar="LINK=SHARE",
        action="append",
        help="with this share of a link's rate, such as gpu0-gpu1=0.5, in both directions; may be "
        "repeated",
    )


def _add_allreduce(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--size",
        help="bytes per rank, such as 64MiB (default: 160MB; with --sizes alone none)",
    )
    group.add_argument("--sizes", metavar="FROM:TO", help="a table of many sizes, such as 1KB:8GB")
    group.add_argument(
        "--ranks",
        type=_up_to(MOST_RANKS),
        help="default: one per GPU of the topology; 2 without one",
    )
    group.add_argument(
        "--algorithm",
        metavar="NAME|file:PATH",
        help="to draw and trace, also a saved program (default: the one that is chosen)",
    )


def _add_step(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--model",
        metavar="NAME|FILE",
        help="plan a training step of this model, from one GPU to many: a known model's name, a "
        ".safetensors file, a state_dict written by torch.save, or a JSON list of shapes",
    )
    group.add_argument(
        "--step", metavar="TIME", help="what forward and backward take on one GPU, such as 350ms"
    )
    group.add_argument("--dtype", help="of the gradients, such as bf16 (default: the parameters')")


def _add_files(group: argparse._ArgumentGroup) -> None:
    drawn = (".svg", ".png")
    pictures = {
        "--draw": "draw who sends which shard to whom",
        "--busy": "draw the topology with the busy share of each link",
        "--plot": "draw time over size (with --sizes), or efficiency over GPUs (with --model)",
    }
    for flag, says in pictures.items():
        group.add_argument(flag, metavar="SVG|PNG", type=to_write(*drawn), help=says)
    group.add_argument(
        "--trace", metavar="JSON", type=to_write(".json"), help="write a trace for ui.perfetto.dev"
    )
    group.add_argument(
        "--timeline",
        metavar="PNG",
        type=to_write(".png"),
        help="draw when each device and link works",
    )
    group.add_argument(
        "--html",
        metavar="HTML",
        type=to_write(".html"),
        help="write one page with the tables and pictures",
    )


def _up_to(most: int) -> Callable[[str], int]:
    def checked(text: str) -> int:
        if not text.isdecimal() or not 1 <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"found {text!r}, want a number from 1 to {most}")
        return int(text)

    return checked


def _gbit(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not SLOWEST_GBIT <= rate <= FASTEST_GBIT:
        raise argparse.ArgumentTypeError(
            f"found {text!r}, want Gbit/s, {SLOWEST_GBIT} to {FASTEST_GBIT}, such as 400"
        )
    return rate


def check(args: argparse.Namespace) -> None:
    """
    Raises:
        ValueError: options that make no sense together.
    """

    def given(*names: str) -> list[str]:
        return [f"--{name}" for name in names if getattr(args, name) is not None]

    written: dict[Path, str] = {}
    for flag in given("draw", "busy", "plot", "trace", "timeline", "html"):
        file = getattr(args, flag.removeprefix("--")).absolute()
        if file in written:
            raise ValueError(f"{written[file]} and {flag} would both write {file.name}, want two")
        written[file] = flag
    path = (args.algorithm or "").removeprefix("file:")
    check_not_read(written, [args.topology, path, args.model])
    if path != args.algorithm and path and not Path(path).is_file():
        raise ValueError(f"--algorithm {args.algorithm}: no such file, want a saved program's")
    if args.model is not None:
        if unfit := given(*OF_ONE_SIZE):
            raise ValueError(f"{unfit[0]} is about one allreduce, --model about a training step")
        if args.step is None:
            raise ValueError("--model needs a --step: the time of a step on one GPU, such as 350ms")
        if args.machines == 1:
            check_network(args)
        return
    if unfit := given("step", "dtype"):
        raise ValueError(f"{unfit[0]} is about a training step: it needs a --model")
    if args.plot is not None and args.sizes is None:
        raise ValueError("--plot shows many sizes or numbers of GPUs: it needs --sizes or --model")
    if args.topology is None:
        if unfit := given(*OF_LINKS):
            raise ValueError(f"{unfit[0]} is about links of a machine: it needs a --topology")
        if args.machines not in (None, 1):
            raise ValueError("--machines says how many machines there are: it needs a --topology")
    check_network(args)


def check_network(args: argparse.Namespace) -> None:
    """
    Raises:
        ValueError: a network that joins nothing.
    """
    if args.machines in (None, 1) and (args.nics, args.gbit) != (None, None):
        raise ValueError(
            "--nics and --gbit describe the network between machines: they need --machines, 2 or "
            "more"
        )
