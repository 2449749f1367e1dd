"""What `fastreduce.explain` returns: a choice that can be printed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fastreduce.names import listed
from fastreduce.plan.bounds import Bound
from fastreduce.plan.candidates import Candidate
from fastreduce.plan.html_table import html_table
from fastreduce.units import ranks_title, size


@dataclass(frozen=True, repr=False)
class Plan:
    """The candidates, fastest first, the algorithm chosen, and why. Prints as a table.

    Each of ``k`` ranks has ``nbytes``; ``where`` they are is in words.
    ``bound`` is what no program without the host can beat on the topology, where one is known.
    ``notes`` say how far the times can be trusted, and what others have measured. Times are
    ``timed``: "predicted", or "measured" by `fastreduce tune`.
    """

    nbytes: int
    k: int
    where: str
    candidates: tuple[Candidate, ...]
    algorithm: str
    why: str
    bound: Bound | None = None
    notes: tuple[str, ...] = ()
    timed: str = "predicted"

    @property
    def title(self) -> str:
        """How much, on how many ranks, and where."""
        return ranks_title(size(self.nbytes), self.k, self.where)

    @property
    def chosen(self) -> Candidate:
        """The candidate of the algorithm that was chosen."""
        return self.candidate(self.algorithm)

    def candidate(self, algorithm: str) -> Candidate:
        """The candidate of this name; a ValueError lists the known names."""
        for x in self.candidates:
            if x.algorithm == algorithm:
                return x
        known = listed(sorted(x.algorithm for x in self.candidates), algorithm)
        raise ValueError(f"unknown algorithm {algorithm!r}; known are {known}")

    def __str__(self) -> str:
        rows = [self._headings(), *self._rows()]
        name, time = (max(len(cells[column]) for cells in rows) for column in (0, 4))
        row = f"{{:<{max(name, 18)}}} {{:>9}} {{:>7}} {{:>6}} {{:>{max(time, 11)}}} {{:>12}}  {{}}"
        lines = [self.title, *(row.format(*cells) for cells in rows)]
        return "\n".join([*lines, *self._below()])

    def _headings(self) -> tuple[str, ...]:
        return "algorithm", "launches", "shards", "slices", self.timed, "busbw (GB/s)", "limit"

    def _rows(self) -> Iterator[tuple[str, ...]]:
        for x in self.candidates:
            mark = "* " if x.algorithm == self.algorithm else "  "
            yield mark + x.algorithm, *x.cells(self.nbytes)

    def __repr__(self) -> str:
        count = len(self.candidates)
        return f"Plan({self.title!r}, choice {self.algorithm!r} of {count} algorithms)"

    def _below(self) -> list[str]:
        return [f"choice: {self.algorithm}, {self.why}", *self._at_best(), *self.notes]

    def _at_best(self) -> list[str]:
        """What no program can beat, and how far the choice is from it."""
        if self.bound is None or not self.bound.time_s:
            return []
        gap = self.chosen.prediction.time_s / self.bound.time_s - 1
        return [f"without the host no program can beat {self.bound}; the choice is {gap:+.1%}"]

    def _repr_html_(self) -> str:
        return html_table([self.title], self._headings(), self._rows(), self._below())
