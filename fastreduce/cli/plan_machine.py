"""The machine that ``fastreduce plan`` is asked about."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fastreduce.cli.plan_options import MOST_RANKS

if TYPE_CHECKING:
    from fastreduce.topology import Topology

# Of each network card, where --gbit names no other: as in the DGX H100 (NVIDIA's data sheet).
GBIT = 400.0


def machine(name: str) -> Topology:
    from fastreduce.topology import as_topology

    if not name:
        raise ValueError("topology is '', want a preset's name, a file, or 'detect'")
    if Path(name).is_dir():
        raise ValueError(
            f"topology {name!r} is a folder, want a preset's name, a file, or 'detect'"
        )
    return as_topology(name)


def joined(args: argparse.Namespace) -> Topology | None:
    """The machine or machines of --topology, with the links that are left."""
    from fastreduce.topology import cluster

    if args.topology is None:
        return None
    found = machine(args.topology)
    if args.machines not in (None, 1):
        gpus = args.machines * len(found.devices)
        if gpus > MOST_RANKS:
            raise ValueError(
                f"--machines is {args.machines}, which makes {gpus:,} GPUs, want at most "
                f"{MOST_RANKS:,}; plan --model goes beyond"
            )
        gbit = GBIT if args.gbit is None else args.gbit
        found = cluster(found, args.machines, gbit, nics=1 if args.nics is None else args.nics)
    return with_less(found, args)


def with_less(found: Topology, args: argparse.Namespace) -> Topology:
    """Without the links of --kill, and with a share of the rate of those of --slow.

    Raises:
        ValueError: an unknown link, no share, or GPUs that no longer reach each other.
    """
    for text in args.slow or ():
        name, sign, share = text.rpartition("=")
        try:
            factor = float(share)
        except ValueError:
            factor = 0.0
        if not sign or not 0 < factor <= 1:
            raise ValueError(
                f"--slow {text}: want a link and a share of its rate, above 0 and at most 1, such "
                "as gpu0-gpu1=0.5"
            )
        found = found.scaled(_link("--slow", name, found), factor)
    for text in args.kill or ():
        found = found.without(_link("--kill", text, found))
    return found


def _link(flag: str, text: str, found: Topology) -> tuple[str, str]:
    """The ends of a link. Names may have dashes of their own, so the known ones are preferred."""
    parts = text.split("-")
    pairs = [
        ("-".join(parts[:cut]).strip(), "-".join(parts[cut:]).strip())
        for cut in range(1, len(parts))
    ]
    pairs = [pair for pair in pairs if all(pair)]
    if not pairs:
        raise ValueError(
            f"{flag} {text or repr(text)}: want two nodes with a dash, such as gpu0-gpu1"
        )
    return next((pair for pair in pairs if set(pair) <= set(found.graph)), pairs[0])
