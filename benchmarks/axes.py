"""Axes, legends and titles that the pictures of several benchmarks share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CHARACTERS_PER_INCH = 14  # at 9 points


def binary_size(nbytes: int) -> str:
    """In KiB of 1,024 bytes, as nccl-tests counts; `fastreduce.units.size` has KB of 1,000.

    >>> [binary_size(x) for x in (512, 1 << 10, 3 << 19, 1 << 33)]
    ['512 B', '1 KiB', '1.5 MiB', '8 GiB']
    """
    units: tuple[tuple[int, str], ...] = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
    return next((f"{nbytes / one:g} {unit}" for one, unit in units if nbytes >= one), f"{nbytes} B")


def show_sizes(axes: Axes, nbytes: Iterable[int], most: int) -> None:
    """A tick at each of these sizes, and names at ``most`` of them or fewer, evenly chosen."""
    found = sorted(set(nbytes))
    named = found[:: -(-len(found) // most) or 1]
    axes.set_xscale("log", base=2)
    axes.set_xticks(named, [binary_size(x) for x in named], size=8)
    unnamed = [x for x in found if x not in named]
    axes.set_xticks(unnamed, [""] * len(unnamed), minor=True)
    axes.grid(alpha=0.3)


def show_times(axes: Axes) -> None:
    """Seconds, which may be microseconds for small sizes; to be called when all is drawn."""
    from matplotlib.ticker import LogLocator, NullFormatter

    from fastreduce.units import duration  # here: gpu_report begins before fastreduce is built

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    few = high < 1000 * low
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,)))
    axes.yaxis.set_major_formatter(lambda seconds, _: duration(seconds))
    axes.yaxis.set_minor_formatter(NullFormatter())


def show_numbers(axes: Axes) -> None:
    """1, 2, 5, 10, 20 and so on."""
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())


def one_legend(figure: Figure, ncols: int = 4) -> None:
    """Below all fields, with each name that one of them has."""
    legend = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        legend |= dict(zip(labels, handles, strict=True))
    style: dict[str, Any] = {"loc": "outside lower center", "ncols": ncols, "fontsize": 8}
    figure.legend(legend.values(), legend.keys(), **style)


def show_title(figure: Figure, text: str) -> None:
    """Over all fields, in lines that are no wider than the figure."""
    room = int(CHARACTERS_PER_INCH * figure.get_figwidth())
    figure.suptitle("\n".join(fill(line, room) for line in text.splitlines()), fontsize=9)


def save_figure(figure: Figure, path: Path, dpi: int = 120) -> None:
    figure.savefig(path, dpi=dpi)
    print(f"# wrote {path}")


def where(about: Mapping[str, Any], *, on_gpu: bool = False, each: str = "") -> str:
    """On what, with what and when it was measured; the threads are those of ``each``.

    >>> about = {"cpu": "i9", "cores": 8, "threads": 1, "torch": "2.9", "date": "2026-11-23"}
    >>> where(about, each=" for each process")
    'i9, 8 cores, 1 thread for each process, torch 2.9, 2026-11-23'
    >>> where(about | {"gpu": "H100"}, on_gpu=True)
    'H100, torch 2.9, 2026-11-23'
    """
    with_what = f"torch {about['torch']}, {about['date']}"
    if on_gpu:
        return f"{about['gpu']}, {with_what}"
    threads = f"{about['threads']} thread{'s' * (about['threads'] > 1)}{each}"
    return f"{about['cpu']}, {about['cores']} cores, {threads}, {with_what}"
