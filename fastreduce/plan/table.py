"""Measured times, and the choices made from them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from fastreduce.algorithms import built_in, registry
from fastreduce.names import shown
from fastreduce.plan.defaults import BETWEEN_GPUS, DEFAULTS, default

# Seconds by place, algorithm, number of ranks and bytes of one rank's tensors.
Times: TypeAlias = Mapping[str, Mapping[str, Mapping[int, Mapping[int, float]]]]

# A choice, not a measurement. Smaller differences change from one measurement to the next; the
# documented default then stays, so that "auto" does not change with every measurement.
TIE = 1.05
# A size that no copy has.
NEVER_BYTES = (1 << 63) - 1


@dataclass(frozen=True, repr=False)
class Table:
    """How long each algorithm takes on this machine, over a full grid of ranks and sizes.

    Args:
        device: what was measured: CPU, threads, GPUs.
        fastreduce, torch: the versions, of torch major and minor.
        date: the day, such as 2026-11-21.
        times_s: seconds by place ("cpu", "gpu", "nvlink" or "pcie"), algorithm, number of ranks
            and bytes per rank.
        copy_engine_bytes: by place of two GPUs, from which size on a copy between them is left to
            the copy engine; None for never. The default holds where nothing was measured.

    Raises:
        ValueError: a time is missing or is not seconds above zero, or a size is not one; the
            message says where.

    >>> from fastreduce.algorithms import names
    >>> times = {name: {4: {1024: 3e-6, 4096: 4e-6}} for name in names()}
    >>> times["sharded"] = {4: {1024: 3e-6, 4096: 2e-6}}
    >>> table = Table("a CPU", "0.1.0", "2.13", "2026-11-21", {"cpu": times})
    >>> table
    Table('a CPU', measured on 2026-11-21: cpu)
    >>> table.best("cpu", 4, 1024), table.best("cpu", 4, 1 << 20), table.best("gpu", 4, 1024)
    ('leader', 'sharded', None)
    """

    device: str
    fastreduce: str
    torch: str
    date: str
    times_s: Times
    copy_engine_bytes: Mapping[str, int | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.times_s:
            raise ValueError("no place was measured")
        for place, by_algorithm in self.times_s.items():
            _check(place, by_algorithm)
        for place, nbytes in self.copy_engine_bytes.items():
            _check_copies(place, nbytes)

    def best(self, place: str, k: int, nbytes: int) -> str | None:
        """The fastest algorithm at the nearest measured size and number of ranks.

        The documented default is preferred if it is at most 5 % slower. Except over PCIe, only
        algorithms with the bits of `leader` are considered, because "auto" promises those bits;
        between GPUs only those that can split a single tensor. None if the place was not measured.
        """
        if place not in self.times_s:
            return None
        times = {
            name: _nearest_s(self.times_s[place][name], k, nbytes)
            for name in built_in()
            if _may_serve(place, name, k)
        }
        fastest = min(times, key=times.__getitem__)
        usual = default(place, nbytes)
        return usual if times.get(usual, math.inf) <= TIE * times[fastest] else fastest

    def time_s(self, place: str, algorithm: str, k: int, nbytes: int) -> float | None:
        """Seconds that a call takes, interpolated between measured sizes on log scales.

        Below the smallest size it takes that size's time; beyond the largest it keeps that size's
        bandwidth. For k the nearest measured number is taken. None if nothing was measured, and for
        one rank, which has nothing to do.

        >>> from fastreduce.algorithms import names
        >>> times = {name: {4: {1024: 3e-6, 4096: 12e-6}} for name in names()}
        >>> table = Table("a CPU", "0.1.0", "2.13", "2026-11-21", {"cpu": times})
        >>> [f"{table.time_s('cpu', 'ring', 4, size) * 1e6:.1f} us" for size in (1, 2048, 8192)]
        ['3.0 us', '6.0 us', '24.0 us']
        """
        import numpy as np  # here, so that `fastreduce doctor` can say that it is missing

        by_k = self.times_s.get(place, {}).get(algorithm)
        if by_k is None or k < 2:
            return None
        sizes, times = zip(*sorted(by_k[_nearest(k, by_k)].items()), strict=True)
        at = max(nbytes, 1)
        between = np.exp2(np.interp(math.log2(at), np.log2(sizes), np.log2(times)))
        return float(between * max(1.0, at / sizes[-1]))

    def measured_ranks(self, place: str, k: int) -> int | None:
        """For ``k`` ranks, the number of ranks whose times `time_s` takes; None for no times."""
        found = next(iter(self.times_s.get(place, {}).values()), None)
        return _nearest(k, found) if found and k > 1 else None

    def __str__(self) -> str:
        columns = "{:>11}  {:<16} {:>11} {:>8}  {:<16} {:>6}".format
        lines = [f"{self.device}; fastreduce {self.fastreduce}, torch {self.torch}, {self.date}"]
        for place, by_algorithm in self.times_s.items():
            by_k = next(iter(by_algorithm.values()))
            for k in sorted(by_k):
                lines += ["", f"{place}, k = {k}"]
                lines += [columns("size", "best", "time", "algbw", "default", "ratio")]
                lines += [columns("(B)", "", "(us)", "(GB/s)", "", "")]
                lines += [columns(*self._cells(place, k, nbytes)) for nbytes in sorted(by_k[k])]
        for place, from_bytes in self.copy_engine_bytes.items():
            by = "never" if from_bytes is None else f"from {from_bytes} bytes on"
            lines += ["", f"{place}, copies between two GPUs by the copy engine: {by}"]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Table({self.device!r}, measured on {self.date}: {', '.join(self.times_s)})"

    def _cells(self, place: str, k: int, nbytes: int) -> tuple[str, ...]:
        best, usual = str(self.best(place, k, nbytes)), default(place, nbytes)
        best_s, usual_s = (self.times_s[place][name][k][nbytes] for name in (best, usual))
        algbw = f"{nbytes / best_s / 1e9:.2f}"
        return str(nbytes), best, f"{best_s * 1e6:.2f}", algbw, usual, f"{usual_s / best_s:.2f}"


def _may_serve(place: str, algorithm: str, k: int) -> bool:
    program = registry[algorithm](k)
    return (place == "pcie" or program.in_rank_order()) and not (
        place in BETWEEN_GPUS and program.whole_tensors
    )


def _nearest_s(by_k: Mapping[int, Mapping[int, float]], k: int, nbytes: int) -> float:
    by_size = by_k[_nearest(k, by_k)]
    return by_size[_nearest(nbytes, by_size)]


def _nearest(wanted: int, measured: Iterable[int]) -> int:
    return min(sorted(measured), key=lambda found: abs(math.log2(found / max(wanted, 1))))


def _check(place: str, by_algorithm: Mapping[str, Mapping[int, Mapping[int, float]]]) -> None:
    if place not in DEFAULTS:
        raise ValueError(f"place {place!r} is not known, want {', '.join(DEFAULTS)}")
    for algorithm in by_algorithm:
        if algorithm not in registry:
            raise ValueError(f"{place}: algorithm {algorithm!r} is not known")
    ks = {k for by_k in by_algorithm.values() for k in by_k}
    sizes = {n for by_k in by_algorithm.values() for by_size in by_k.values() for n in by_size}
    if not ks or not sizes or min(*ks, *sizes) < 1:
        raise ValueError(
            f"{place}: ranks {sorted(ks)}, sizes {sorted(sizes)}: want some, from 1 on"
        )
    wanted = sorted({*built_in(), *by_algorithm})
    for algorithm, k, nbytes in itertools.product(wanted, sorted(ks), sorted(sizes)):
        where = f"{place}, {algorithm}, k = {k}, {nbytes} bytes"
        found = by_algorithm.get(algorithm, {}).get(k, {}).get(nbytes)
        if found is None:
            raise ValueError(f"{where}: no time, want one for every algorithm, k and size")
        if not isinstance(found, float) or not 0 < found < math.inf:
            raise ValueError(f"{where}: found {shown(found)}, want seconds above zero")


def _check_copies(place: str, nbytes: int | None) -> None:
    where = f"copy_engine_bytes, {place}"
    if place not in BETWEEN_GPUS:
        raise ValueError(f"{where}: not a place of two GPUs, want {' or '.join(BETWEEN_GPUS)}")
    if nbytes is not None and (type(nbytes) is not int or not 0 < nbytes < NEVER_BYTES):
        raise ValueError(
            f"{where}: found {shown(nbytes)}, want bytes above zero, or null for never"
        )
