"""Calibrations on disk: those that a user made, and NCCL's and RCCL's as others published them."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path

from fastreduce import folders
from fastreduce.files import alone_in, parse, write_whole
from fastreduce.topology.calibration import Calibration, from_json, to_json

FORMAT = "fastreduce calibrations"
VERSION = 1
# Written by benchmarks/published.py from fastreduce/plan/published_runs.json.
PUBLISHED = Path(__file__).parent / "published.json"

# The published medium of each known machine. A cluster's name is followed by its network.
_MEDIA = {
    "dgx-h100": "8 Hopper on NVSwitch",
    "dgx-h200": "8 Hopper on NVSwitch",
    "dgx-a100": "8 A100 on NVSwitch",
    "dgx1-v100": "8 V100 on NVLink",
    "pcie4-x8": "8 RTX 4090 through host memory",
    "2 x dgx-a100, 4 x 100 Gbit/s": "2 x 8 A100, 4 x 100 Gbit/s EFA",
} | {
    f"{machines} x {machine}, 8 x 400 Gbit/s": f"{machines} x 8 Hopper, 8 x 400 Gbit/s"
    for machines in (2, 4, 8)
    for machine in ("dgx-h100", "dgx-h200")
}


def save_calibrations(
    calibrations: Sequence[Calibration], path: str | PathLike[str] | None = None
) -> Path:
    """Write calibrations as JSON, whole or not at all, and return the path.

    ``path`` is by default where `stored` looks for those of this machine.

    Raises:
        OSError: the file cannot be written.
    """
    path = Path(path or default_path())
    content = {"format": FORMAT, "version": VERSION, "calibrations": to_json(calibrations)}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(content, indent=1) + "\n")
    return path


def load_calibrations(path: str | PathLike[str]) -> tuple[Calibration, ...]:
    """Read what `save_calibrations` wrote.

    Raises:
        OSError: the file cannot be read.
        ValueError: something in it is wrong: where, what was found, and what was wanted.
    """
    content = Path(path).read_bytes()
    try:
        found = parse(content, FORMAT, VERSION)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return from_json(str(path), found.get("calibrations"))


def default_path() -> Path:
    """Where `stored` looks."""
    return folders.data() / "calibrations.json"


@contextlib.contextmanager
def adding() -> Iterator[None]:
    """No other process adds to what is `stored` in here: else one's curves would be lost.

    Raises:
        OSError: there is no such folder, and it cannot be made.
    """
    folder = default_path().parent
    folder.mkdir(parents=True, exist_ok=True)
    with alone_in(folder):
        yield


def stored() -> tuple[Calibration, ...]:
    """What `fastreduce calibrate` has written on this machine, or nothing.

    Raises:
        OSError, ValueError: as `load_calibrations` does.
    """
    path = default_path()
    return load_calibrations(path) if path.is_file() else ()


def published(machine: str) -> tuple[Calibration, ...]:
    """What others have published of a known machine; nothing where none has.

    >>> [x.engine for x in published("dgx-a100")], published("dgx2-v100")
    (['NCCL'], ())
    """
    medium = _MEDIA.get(machine)
    return tuple(x for x in _all_published() if x.medium == medium) if medium else ()


@functools.cache
def _all_published() -> tuple[Calibration, ...]:
    return load_calibrations(PUBLISHED)
