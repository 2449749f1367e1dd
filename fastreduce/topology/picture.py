"""A picture of a topology: GPUs in a row, switches between GPUs above, routes to CPUs below."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import networkx as nx

from fastreduce.colors import INK
from fastreduce.drawing import wrapped
from fastreduce.topology.alike import one_of_each

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fastreduce.topology.graph import Topology

Places: TypeAlias = dict[str, tuple[float, float]]

FILLS = {"gpu": "#b5d98a", "cpu": "#9cc4ee", "switch": "#eeeeee", "nic": "#f5c98a"}
COLORS = {"nvlink": "#4f8a00", "pcie": "#888888", "network": "#d9534f"}
OTHER_COLOR = "#8e5bb5"  # between CPUs
MOST_DEVICES = 16  # more would make the picture wider than a screen
ROWS_APART = 1.5  # where neighbours in a row are 1 apart
BEND = 0.4  # of an arc's length: how far its control point is off the straight line
ASIDE = 0.05  # how far each direction is off the middle where the two are drawn by themselves


class _Link(NamedTuple):
    """Both directions of a link if they are equal, else one of them."""

    src: str
    dst: str
    medium: str
    bytes_per_s: float | None
    one_way: bool
    color: Any

    def label(self) -> str:
        rate = self.bytes_per_s
        known = "rate unknown" if rate is None else f"{rate / 1e9:.4g} GB/s"
        return f"{self.medium}, {known}" + ", one way" * self.one_way


def topology_figure(topology: Topology) -> Figure:
    """Each link in the colour of its medium."""
    media = nx.get_edge_attributes(topology.graph, "medium")
    colors = {link: COLORS.get(medium, OTHER_COLOR) for link, medium in media.items()}
    shown, words = readable(topology, colors)
    links = links_in(shown.graph, colors)
    figure = figure_with(shown, links, "\n".join([repr(topology), *words]))
    _add_legend(figure, links)
    return figure


def readable(
    topology: Topology, colors: Mapping[tuple[str, str], Any]
) -> tuple[Topology, list[str]]:
    """Of the machines of a large cluster that are alike one, and words that say so."""
    if len(topology.devices) <= MOST_DEVICES:
        return topology, []
    shown, kinds = one_of_each(topology, colors)
    alike = [names for names in kinds if len(names) > 1]
    return shown, [f"{names[0]} stands for {len(names)}: {', '.join(names)}" for names in alike]


def figure_with(topology: Topology, links: Sequence[_Link], title: str) -> Figure:
    """The nodes and these links, the last on top."""
    from matplotlib.figure import Figure

    places = _places(topology)
    xs, ys = ([place[axis] for place in places.values()] for axis in (0, 1))
    bends = {link: _bend(link, places) for link in links}
    # An arc bends half as far off the straight line as its control point.
    high = max([0.0, *bends.values()]) / 2
    lowest = [-bend for link, bend in bends.items() if places[link.src][1] == min(ys)]
    low = max([0.0, *lowest]) / 2
    width, height = max(xs) - min(xs) + 1, max(ys) - min(ys) + 1 + high + low
    figure = Figure(figsize=(max(6.0, 0.9 * width), 1.2 + 0.9 * height), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlim(min(xs) - 0.5, max(xs) + 0.5)
    axes.set_ylim(min(ys) - 0.5 - low, max(ys) + 0.5 + high)
    axes.set_axis_off()
    axes.set_title(wrapped(title, figure.get_figwidth(), 9), fontsize=9, loc="left")
    for link, bend in bends.items():
        _draw_link(axes, link, places, bend, _line_width(link, links))
    for node, (x, y) in places.items():
        inside = FILLS[topology.graph.nodes[node]["kind"]]
        box = {"boxstyle": "round,pad=0.4", "facecolor": inside, "edgecolor": INK, "linewidth": 0.6}
        axes.text(x, y, node, fontsize=8, color=INK, ha="center", va="center", bbox=box, zorder=3)
    return figure


def _places(topology: Topology) -> Places:
    """Each node is below (or above) the middle of its neighbours in the rows nearer to the GPUs.
    GPUs of one CPU, and of one switch, stand side by side."""
    around = topology.graph.to_undirected()
    rows = _rows(topology, around)
    number = {node: n for n, node in enumerate(topology.graph)}

    def family(gpu: str) -> list[int]:
        """Sort key of a GPU: its CPU, then its switch, then itself."""
        below = [next((n for n in around[gpu] if rows[n] < 0), gpu)]
        while after := [n for n in around[below[-1]] if rows[n] < rows[below[-1]]]:
            below.append(min(after, key=lambda n: (around.nodes[n]["kind"] != "cpu", number[n])))
        cpu = next((n for n in below if around.nodes[n]["kind"] == "cpu"), below[-1])
        return [number[cpu], number[below[0]], number[gpu]]

    places: Places = {}
    for place, gpu in enumerate(sorted(topology.devices, key=family)):
        places[gpu] = (float(place), 0.0)
    for row in sorted(set(rows.values()) - {0}, key=abs):
        wanted = {
            node: mean([places[n][0] for n in around[node] if n in places] or [0.0])
            for node in topology.graph
            if rows[node] == row
        }
        for node, x in _spread(wanted).items():
            places[node] = (x, row * ROWS_APART)
    return places


def _rows(topology: Topology, around: nx.Graph) -> dict[str, int]:
    """GPUs are row 0. The row of another node is its number of links from the nearest GPU: below,
    or above if it is connected to a CPU only through GPUs, such as an NVSwitch."""
    gpus = set(topology.devices)
    distance = nx.multi_source_dijkstra_path_length(around, gpus, weight=None)
    rows = {gpu: 0 for gpu in gpus}
    for part in nx.connected_components(around.subgraph(n for n in around if n not in gpus)):
        has_cpu = any(around.nodes[node]["kind"] == "cpu" for node in part)
        rows |= {node: (-1 if has_cpu else 1) * int(distance.get(node, 1)) for node in part}
    return rows


def _spread(wanted: Mapping[str, float]) -> dict[str, float]:
    """Positions at least 1 apart, as near as that allows to where the nodes want to be."""
    groups: list[tuple[list[str], float]] = []  # nodes that stand side by side, and their middle
    for node in sorted(wanted, key=lambda node: wanted[node]):
        members, middle = [node], wanted[node]
        while groups and middle - groups[-1][1] < (len(members) + len(groups[-1][0])) / 2:
            members = groups.pop()[0] + members
            middle = mean(wanted[member] for member in members)
        groups.append((members, middle))
    return {
        member: middle + place - (len(members) - 1) / 2
        for members, middle in groups
        for place, member in enumerate(members)
    }


def links_in(graph: nx.DiGraph, colors: Mapping[tuple[str, str], Any]) -> list[_Link]:
    """The links in their colours, both directions as one where nothing tells them apart."""
    found: dict[tuple[str, str], _Link] = {}
    for (src, dst), here in graph.edges.items():
        color = colors[src, dst]
        both_ways = graph.edges.get((dst, src)) == here and colors[dst, src] == color
        if not (both_ways and (dst, src) in found):
            figures = here["medium"], here["bytes_per_s"]
            found[src, dst] = _Link(src, dst, *figures, not both_ways, color)
    return list(found.values())


def _bend(link: _Link, places: Places) -> float:
    """How far above the straight line an arc's control point is: 0 unless a node is in the way."""
    (x, y), (to_x, to_y) = places[link.src], places[link.dst]
    left, right = sorted((x, to_x))
    between = any(left < other < right and row == y for other, row in places.values())
    return BEND * (right - left) * (1 if y == 0 else -1) if y == to_y and between else 0.0


def _line_width(link: _Link, links: Sequence[_Link]) -> float:
    """In points, 1 to 4: the faster, the wider."""
    widest = max((x.bytes_per_s or 0.0 for x in links), default=0.0)
    return 1.0 + 3.0 * ((link.bytes_per_s or 0.0) / widest) ** 0.5 if widest else 1.0


def _draw_link(axes: Axes, link: _Link, places: Places, bend: float, line_width: float) -> None:
    from matplotlib.patches import FancyArrowPatch

    (x, y), (to_x, to_y) = places[link.src], places[link.dst]
    rad = -bend / (to_x - x) if bend else 0.0
    if link.one_way:  # to the right of its way, so that it does not lie on the way back
        aside = ASIDE / math.hypot(to_x - x, to_y - y)
        right, down = (to_y - y) * aside, (x - to_x) * aside
        x, y, to_x, to_y = x + right, y + down, to_x + right, to_y + down
    axes.add_patch(
        FancyArrowPatch(
            (x, y),
            (to_x, to_y),
            arrowstyle="-|>" if link.one_way else "-",
            mutation_scale=12,
            shrinkA=10 if link.one_way else 0,
            shrinkB=14 if link.one_way else 0,
            connectionstyle=f"arc3,rad={rad}",
            color=link.color,
            linewidth=line_width,
            linestyle="-" if link.bytes_per_s else "--",
            zorder=1,
        )
    )


def _add_legend(figure: Figure, links: Sequence[_Link]) -> None:
    from matplotlib.lines import Line2D

    kinds = {link.label(): link for link in links}
    lines = [
        Line2D(
            [],
            [],
            color=link.color,
            linewidth=_line_width(link, links),
            linestyle="-" if link.bytes_per_s else "--",
            label=label,
        )
        for label, link in sorted(kinds.items())
    ]
    if lines:
        figure.legend(
            handles=lines,
            title="rates of each direction",
            loc="outside lower left",
            alignment="left",
            fontsize=8,
            title_fontsize=8,
            ncols=3,
            frameon=False,
        )
