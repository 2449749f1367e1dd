"""``fastreduce plan``: predict every algorithm on a machine, without running it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from fastreduce.cli import plan_machine, plan_options

if TYPE_CHECKING:
    from fastreduce.plan.candidates import Candidate
    from fastreduce.plan.plan import Plan
    from fastreduce.plan.report import Section
    from fastreduce.plan.sizes import Sizes
    from fastreduce.program import Program
    from fastreduce.topology import Topology

# Where to write, or None, and what writes it.
Files: TypeAlias = list[tuple[Path | None, Callable[[Path], Any]]]


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    plan = commands.add_parser(
        "plan",
        help="predict every algorithm on a machine, on paper",
        description="Predict how long each algorithm takes for an allreduce, which limit binds, "
        "and which is the fastest; or what a training step takes on many GPUs. Nothing is run.",
        add_help=False,
    )
    plan.set_defaults(run=_plan, refuse=plan.error)
    plan_options.add(plan)


def _plan(args: argparse.Namespace) -> int:
    refuse: Callable[[str], NoReturn] = args.refuse
    try:
        plan_options.check(args)
        text, files = _allreduce(args) if args.model is None else _step(args)
    except ValueError as error:
        refuse(str(error))
    print(text)
    written = []
    for path, write in files:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path)
            written.append(path)
    if written:
        print("written:", *written)
    return 0


def _allreduce(args: argparse.Namespace) -> tuple[str, Files]:
    """The plan of --size, and of --sizes if asked for; of --sizes alone, if nothing else is."""
    from fastreduce import draw, explain, simulate
    from fastreduce.plan.candidates import as_measured
    from fastreduce.plan.report import write
    from fastreduce.simulation.busy import Busy
    from fastreduce.simulation.costs import costs_of
    from fastreduce.units import parse_size

    topology = plan_machine.joined(args)
    sizes = None if args.sizes is None else _over_sizes(args, topology)
    if sizes and not any(getattr(args, x) for x in ("size", *plan_options.FILES_OF_ONE_SIZE)):
        return str(sizes), [(args.plot, partial(draw, sizes))]
    nbytes = parse_size("160MB" if args.size is None else args.size)
    plan = explain(nbytes, k=args.ranks, topology=topology, algorithm=args.algorithm)
    shown, program = _with_program(plan, args.algorithm)
    sections: list[Section] = [("Algorithms", plan)]
    files: Files = [(args.draw, partial(draw, program))]
    if topology and (args.trace or args.timeline or args.busy or args.html):
        each = [nbytes] if program.whole_tensors else nbytes
        # On the links as the plan has them: a curve that was measured on the machine changes them.
        machine, costs = as_measured(topology, program.k)
        costs = costs_of(program, costs)
        timeline = simulate(program, machine, each, slices=shown.slices, costs=costs)
        busy = Busy(machine, timeline, shown.algorithm)
        sections += [("How busy the links are", busy), ("When they are busy", timeline)]
        files += [(args.trace, timeline.to_trace), (args.timeline, timeline.to_png)]
        files += [(args.busy, partial(draw, busy))]
    sections += [(f"The program: {shown.algorithm}", program)]
    texts = [str(plan)]
    if sizes:
        sections.insert(1, ("Time over size", sizes))
        files += [(args.plot, partial(draw, sizes))]
        texts.append(str(sizes))
    return "\n\n".join(texts), [*files, (args.html, partial(write, plan.title, sections))]


def _over_sizes(args: argparse.Namespace, topology: Topology | None) -> Sizes:
    from fastreduce.plan.sizes import over_sizes

    found = over_sizes(
        args.sizes, k=args.ranks, topology=topology, algorithm=args.algorithm, progress=True
    )
    _with_program(found.plans[0], args.algorithm)
    return found


def _with_program(plan: Plan, algorithm: str | None) -> tuple[Candidate, Program]:
    """The algorithm that was asked for, or chosen; a ValueError if it was refused."""
    shown = plan.candidate(algorithm or plan.algorithm)
    if shown.program is None:
        raise ValueError(f"{shown.algorithm} has no program: {shown.prediction.limit}")
    return shown, shown.program


def _step(args: argparse.Namespace) -> tuple[str, Files]:
    """A training step of --model."""
    from fastreduce import draw
    from fastreduce.plan.report import write
    from fastreduce.plan.step import MOST_GPUS, what_if

    one = plan_machine.with_less(plan_machine.machine(args.topology or "dgx-h100"), args)
    machines, gpus = args.machines, len(one.devices)
    if 2 * gpus > MOST_GPUS:  # then it is one machine unless --machines says otherwise
        plan_options.check_network(args)
    found = what_if(
        args.model,
        args.step,
        dtype=args.dtype,
        topology=one,
        gbit=plan_machine.GBIT if args.gbit is None else args.gbit,
        nics=args.nics,
        most_gpus=max(MOST_GPUS, gpus) if machines is None else machines * gpus,
    )
    page = partial(write, f"{args.model} on many GPUs", [("A training step", found)])
    return str(found), [(args.plot, partial(draw, found)), (args.html, page)]
