"""Every algorithm's time over a range of sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fastreduce.arguments import check_flags
from fastreduce.drawing import Drawable
from fastreduce.files import stderr_is_terminal
from fastreduce.plan.explain import explain
from fastreduce.plan.html_table import html_table
from fastreduce.plan.plan import Plan
from fastreduce.plan.runs import Measured, published
from fastreduce.topology import as_topology
from fastreduce.topology.calibration import Calibration
from fastreduce.units import duration, nbytes_of, parse_size, ranks_title, size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fastreduce.algorithms.registration import Algorithm
    from fastreduce.plan.explain import Named
    from fastreduce.program import Program

FACTOR = 4  # from one size to the next


@dataclass(frozen=True, repr=False)
class Sizes(Drawable):
    """A `Plan` for each size, the smallest first. Prints as a table; `fastreduce.draw` draws it.

    ``others`` are curves of other engines for as many ranks, ``published`` points of them, as
    others have measured them.
    """

    title: str
    plans: tuple[Plan, ...]
    others: tuple[Calibration, ...] = ()
    published: tuple[Measured, ...] = ()

    @property
    def k(self) -> int:
        """The number of ranks."""
        return self.plans[0].k

    @property
    def timed(self) -> str:
        """Whether the times are predicted or measured."""
        curves = any(x.error is not None for plan in self.plans for x in plan.candidates)
        return self.plans[0].timed + (", but for measured curves" if curves else "")

    @property
    def algorithms(self) -> list[str]:
        """Those whose time is known, the fastest at the largest size first."""
        named = [x.algorithm for x in self.plans[-1].candidates]
        return [name for name in named if not all(map(math.isnan, self.times_s(name)))]

    def times_s(self, algorithm: str) -> list[float]:
        """The seconds of an algorithm for each size; NaN where it was refused or is unknown."""
        return [plan.candidate(algorithm).prediction.time_s for plan in self.plans]

    def rows(self) -> Iterator[list[str]]:
        """Headings, then a row for each size, with what was chosen at its end."""
        algorithms = self.algorithms
        yield ["size", *algorithms, "choice"]
        for plan in self.plans:
            times_s = [plan.candidate(name).prediction.time_s for name in algorithms]
            cells = ["-" if math.isnan(time_s) else duration(time_s) for time_s in times_s]
            yield [size(plan.nbytes), *cells, plan.algorithm]

    def __str__(self) -> str:
        rows = list(self.rows())
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for *cells, choice in rows:
            lines.append("  ".join([*map(str.rjust, cells, widths), choice]))
        return "\n".join([f"{self.title}: {self.timed}", *lines])

    def __repr__(self) -> str:
        return f"Sizes({self.title!r}, {len(self.plans)} sizes)"

    def _repr_html_(self) -> str:
        headings, *rows = self.rows()
        return html_table([f"{self.title}: {self.timed}"], headings, rows)

    def _figure(self) -> Figure:
        from fastreduce.plan.pictures import sizes_figure

        return sizes_figure(self)


def over_sizes(
    sizes: str | Sequence[int | str],
    *,
    k: int | None = None,
    topology: Named | None = None,
    algorithm: str | Program | Algorithm | None = None,
    progress: bool = False,
) -> Sizes:
    """Plan an allreduce for each of many sizes, as `fastreduce.explain` does for one.

    Args:
        sizes: bytes of each rank's data, such as 4096 or "160MB"; or a range such as "1KB:8GB":
            from the first, four times as much each time, to the last.
        k: number of ranks, as `fastreduce.explain` takes it.
        topology: the machine, as `fastreduce.explain` takes it.
        algorithm: list this one too, given as `fastreduce.explain` takes it.
        progress: show on a terminal how far it is.

    Raises:
        TypeError: ``topology`` is not a topology.
        ValueError: no range, no size, or what `fastreduce.explain` refuses.

    >>> found = over_sizes("1MB:16MB", topology="book-pcie4")
    >>> print(found.title), [plan.algorithm for plan in found.plans]
    1 MB to 16 MB on each of 4 ranks, book-pcie4
    (None, ['sharded', 'sharded', 'sharded'])
    """
    from tqdm import tqdm

    check_flags("over_sizes", progress=progress)
    between = sizes_of(sizes) if isinstance(sizes, str) else sorted({*map(nbytes_of, sizes)})
    if not between:
        raise ValueError("found no size, want at least one")
    silent = not (progress and stderr_is_terminal())
    shown = tqdm(between, desc="sizes", unit="size", leave=False, disable=silent)
    machine = None if topology is None else as_topology(topology)
    plans = tuple(explain(nbytes, k=k, topology=machine, algorithm=algorithm) for nbytes in shown)
    of = f"{size(between[0])} to {size(between[-1])}"
    found = Sizes(ranks_title(of, plans[0].k, plans[0].where), plans)
    curves = machine.calibrations if machine else ()
    others = tuple(x for x in curves if not x.is_ours and x.has_ranks(found.k))
    points = (run for x in others for run in published(x.medium, x.engine, found.k))
    return replace(found, others=others, published=tuple(points))


def sizes_of(text: str) -> list[int]:
    """The sizes of a range in words.

    >>> sizes_of("1KiB:20KiB")
    [1024, 4096, 16384, 20480]
    """
    first, colon, last = text.partition(":")
    if not colon:
        raise ValueError(f"{text!r} is no range of sizes; want two with a colon, such as 1KB:8GB")
    low, high = parse_size(first), parse_size(last)
    if not 1 <= low <= high:
        raise ValueError(f"{text!r}: want a first size of at least 1 byte, and a last one no less")
    found = [low]
    while found[-1] * FACTOR < high:
        found.append(found[-1] * FACTOR)
    return sorted({*found, high})
