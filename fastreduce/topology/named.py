"""Finds a topology by its name."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from fastreduce.names import listed
from fastreduce.topology.detect import detect
from fastreduce.topology.files import load
from fastreduce.topology.graph import Topology
from fastreduce.topology.presets import names, preset


def as_topology(found: Topology | str | PathLike[str]) -> Topology:
    """The topology itself, or the one of that name.

    A name is a preset's (`names`), "detect" for this machine's, or the path of a file that `save`
    wrote, in this order.

    Raises:
        TypeError: neither a topology nor a name.
        ValueError: the name is neither a preset's nor a file's, or the file is wrong.
        RuntimeError: "detect" without a driver or a GPU.

    >>> as_topology("dgx1")
    Topology('dgx1-v100': 8 GPUs, 14 nodes, 58 links)
    """
    if isinstance(found, Topology):
        return found
    if not isinstance(found, str | PathLike):
        raise TypeError(
            f"topology is {found!r}; want a Topology, a preset's name such as 'dgx1', 'detect', or "
            "a file's path"
        )
    if found in names():
        return preset(str(found))
    if found == "detect":
        return detect()
    path = Path(found)
    if path.is_file() or path.is_fifo():  # as a shell passes <(the output of a command)
        return load(path)
    raise ValueError(
        f"unknown topology {str(found)!r}: no such file, and no such preset; known are "
        f"{listed([*names(), 'detect'], found)}"
    )
