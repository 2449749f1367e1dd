"""A picture of a topology in which each link has a colour that says how busy it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastreduce.simulation.busy import Busy
from fastreduce.topology.picture import figure_with, links_in, readable
from fastreduce.units import duration

if TYPE_CHECKING:
    from matplotlib.figure import Figure

IDLE = "#d0d0d0"
BUSY_COLORS = "YlOrRd"  # from yellow to dark red
LIGHTEST = 0.25  # of these colours: light yellow cannot be seen on white


def busy_figure(busy: Busy) -> Figure:
    """Each link in a colour that says how busy it is."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap

    scale = colormaps[BUSY_COLORS]
    shades = ListedColormap([scale(LIGHTEST + (1 - LIGHTEST) * x / 255) for x in range(256)])
    shares = {link: round(share, 2) for link, share in busy.timeline.busy_share.items()}
    colors = {link: shades(share) if share else IDLE for link, share in shares.items()}
    shown, words = readable(busy.topology, colors)
    links = sorted(links_in(shown.graph, colors), key=lambda x: shares[x.src, x.dst])
    took = f"{busy.algorithm}, predicted: {duration(busy.timeline.time_s)}"
    lines = busy.timeline.title, f"{took} (the wider a link, the faster; grey: idle)"
    figure = figure_with(shown, links, "\n".join([*lines, *words]))
    bar = figure.colorbar(
        ScalarMappable(cmap=shades),
        ax=figure.axes,
        location="bottom",
        shrink=0.5,
        aspect=40,
        pad=0.02,
        label="share of the time in use",
    )
    bar.ax.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    return figure
