"""Topologies as JSON files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import networkx as nx

from fastreduce.files import parse, write_whole
from fastreduce.kinds import check_kind
from fastreduce.names import shown
from fastreduce.topology.calibration import from_json, to_json
from fastreduce.topology.graph import Topology

FORMAT = "fastreduce topology"
VERSION = 1
# The keys of a file, and those of a link besides its figures, with their types.
KEYS = {"format": str, "version": int, "name": str, "source": str, "nodes": list, "links": list}
CALIBRATIONS = "calibrations"  # may be left out
ENDS = {"src": str, "dst": str}


def save(topology: Topology, path: str | PathLike[str]) -> None:
    """Write a topology as JSON: rates in bytes per second, latencies in seconds, null for unknown.

    The file is written whole or not at all: it may be the one that the topology was read from.

    Raises:
        TypeError: what is no `Topology`, such as the name of one.
        OSError: the file cannot be written.

    >>> import tempfile
    >>> from fastreduce.topology import preset
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(preset("dgx-a100"), f"{folder}/mine.json")
    ...     load(f"{folder}/mine.json")
    Topology('dgx-a100': 8 GPUs, 15 nodes, 42 links)
    """
    if not isinstance(topology, Topology):
        raise TypeError(
            f"topology is {topology!r}; want a Topology, as preset(name) and load(path) give one"
        )
    graph = topology.graph
    content: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "name": topology.name,
        "source": topology.source,
        "nodes": [{"name": node, **found} for node, found in graph.nodes.items()],
        "links": [{"src": src, "dst": dst, **found} for (src, dst), found in graph.edges.items()],
    }
    if topology.calibrations:
        content[CALIBRATIONS] = to_json(topology.calibrations)
    write_whole(Path(path), json.dumps(content, indent=1) + "\n")


def load(path: str | PathLike[str]) -> Topology:
    """Read a topology that `save` wrote, or one written by hand in the same form.

    Nodes and links keep the file's order, which is also the order of the ranks.

    Raises:
        OSError: the file cannot be read.
        ValueError: something in the file is wrong: which node or link and key, what was found, and
            what was wanted.
    """
    content = Path(path).read_bytes()
    try:
        return _topology(parse(content, FORMAT, VERSION))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _topology(found: dict[str, Any]) -> Topology:
    _check("the file", found, KEYS)
    known = (*KEYS, CALIBRATIONS)
    extra = [key for key in found if key not in known]
    if extra:
        raise ValueError(
            f"the file has {shown(extra[0])}, which is not known; want {', '.join(known)}"
        )
    graph = nx.DiGraph()
    for index, node in enumerate(found["nodes"]):
        _check(f"node {index}", node, {"name": str})
        if node["name"] in graph:
            raise ValueError(f"node {node['name']!r} is there twice, want each name once")
        graph.add_nodes_from([(node["name"], {key: node[key] for key in node if key != "name"})])
    for index, link in enumerate(found["links"]):
        _check(f"link {index}", link, ENDS)
        src, dst = link["src"], link["dst"]
        for end in (src, dst):
            if end not in graph:
                raise ValueError(f"link {src!r} -> {dst!r}: there is no node {end!r}")
        if graph.has_edge(src, dst):
            raise ValueError(f"link {src!r} -> {dst!r} is there twice, want each direction once")
        graph.add_edges_from([(src, dst, {key: link[key] for key in link if key not in ENDS})])
    calibrations = from_json(CALIBRATIONS, found.get(CALIBRATIONS, []))
    return Topology(found["name"], found["source"], graph, calibrations)


def _check(where: str, found: Any, keys: Mapping[str, type]) -> None:
    if not isinstance(found, dict):
        raise ValueError(f"{where} is {shown(found)}, want an object with {', '.join(keys)}")
    for key, kind in keys.items():
        if key not in found:
            raise ValueError(f"{where} is without {key!r}; want {', '.join(keys)}")
        check_kind(f"{where}: {key}", found[key], kind)
