"""Measured curves: how long an allreduce takes on a medium with an engine, and their errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from fastreduce.kinds import check_kind, is_whole
from fastreduce.names import shown
from fastreduce.units import bus_bytes

# The engine whose curves are this library's own: "fastreduce" and an algorithm's name.
OURS = "fastreduce"

# Bytes must make up half of the largest size's time, or an error in the call is taken for a rate.
LEAST_SHARE = 0.5


class Pair(NamedTuple):
    """An offset and a rate: before bytes move at the rate, it takes as long as these would."""

    ramp_bytes: float
    bytes_per_s: float


class Curve(NamedTuple):
    """Seconds of an allreduce over its size, in pieces of which the fastest counts.

    A call takes ``call_s``, and ``hop_s`` for each of the 2(k-1) steps of a ring. Then the bytes of
    a bus (2(k-1)/k of a rank's) go as one of ``pairs`` has it. Their rates grow, and so do their
    ramps: the first is as a protocol for small messages, the last has the full rate.

    >>> curve = Curve(10e-6, 0.0, (Pair(0.0, 5e9), Pair(16e6, 400e9)))
    >>> round(curve.time_s(1024, 8) * 1e6, 1), round(curve.time_s(1 << 30, 8) * 1e3, 2)
    (10.4, 4.75)
    """

    call_s: float
    hop_s: float
    pairs: tuple[Pair, ...]

    def time_s(self, nbytes: float, k: int) -> float:
        """Seconds for ``nbytes`` on each of ``k`` ranks."""
        bytes_ = bus_bytes(nbytes, k)
        moving_s = min((pair.ramp_bytes + bytes_) / pair.bytes_per_s for pair in self.pairs)
        return self.call_s + 2 * (k - 1) * self.hop_s + moving_s


class Error(NamedTuple):
    """By what share of the measured time a curve is off, on points that it was not fitted to.

    ``held_out`` says which points these were: "machines" or "every other point".
    """

    mean: float
    worst: float
    points: int
    held_out: str


@dataclass(frozen=True)
class Calibration:
    """A curve, what it was fitted to, and its error.

    ``medium`` and ``engine`` are in words; ``ranks`` and ``sizes_bytes`` are the least and the most
    that were measured, ``sources`` the files or pages that the measurements are from.
    """

    medium: str
    engine: str
    ranks: tuple[int, int]
    sizes_bytes: tuple[int, int]
    curve: Curve
    error: Error
    sources: tuple[str, ...]

    @property
    def is_ours(self) -> bool:
        """Whether it is of this library's engine."""
        return self.engine.startswith(OURS)

    def has_ranks(self, k: int) -> bool:
        """Whether this number of ranks lies within what was measured."""
        return self.ranks[0] <= k <= self.ranks[1]

    @property
    def tells_rate(self) -> bool:
        """Whether its sizes are large enough, and far enough from each other, to tell the rate."""
        k, largest = self.ranks[1], self.sizes_bytes[1]
        more_bytes = bus_bytes(largest - self.sizes_bytes[0], k)
        moving_s = more_bytes / self.curve.pairs[-1].bytes_per_s
        return moving_s >= LEAST_SHARE * self.curve.time_s(largest, k)

    def covers(self, nbytes: int, k: int) -> bool:
        """Whether this size and number of ranks lie within what was measured.

        Between numbers of ranks there is nothing to go by without a latency of a hop.
        """
        return self.has_ranks(k) and self.sizes_bytes[0] <= nbytes <= self.sizes_bytes[1]


def to_json(calibrations: Sequence[Calibration]) -> list[dict[str, Any]]:
    """As JSON has them: the fields by name, and rates in bytes per second."""
    return [
        asdict(x)
        | {"curve": _curve_to_json(x.curve), "error": x.error._asdict()}
        | {"ranks": list(x.ranks), "sizes_bytes": list(x.sizes_bytes), "sources": list(x.sources)}
        for x in calibrations
    ]


def _curve_to_json(curve: Curve) -> dict[str, Any]:
    return curve._asdict() | {"pairs": [pair._asdict() for pair in curve.pairs]}


def from_json(where: str, found: Any) -> tuple[Calibration, ...]:
    """The calibrations that `to_json` gave; a ValueError says what is wrong, and where."""
    if not isinstance(found, list):
        raise ValueError(f"{where}: found {shown(found)}, want a list of objects")
    return tuple(_calibration(f"{where}: calibration {i}", x) for i, x in enumerate(found))


def _calibration(where: str, found: Any) -> Calibration:
    kinds = {"medium": str, "engine": str, "ranks": list, "sizes_bytes": list, "curve": dict}
    kinds |= {"error": dict, "sources": list}
    _check_keys(where, found, kinds)
    error = found["error"]
    numbers = {"mean": float, "worst": float, "points": int, "held_out": str}
    _check_keys(f"{where}: error", error, numbers)
    for key in ("mean", "worst", "points"):
        if not 0 <= error[key] <= 1e30:
            raise ValueError(f"{where}: error: {key} is {error[key]!r}, want a number, 0 or more")
    for key in ("ranks", "sizes_bytes"):
        pair = found[key]
        if len(pair) != 2 or not all(map(is_whole, pair)) or not 0 < pair[0] <= pair[1]:
            raise ValueError(
                f"{where}: {key} is {shown(pair)}, want the least and the most, above zero"
            )
    return Calibration(
        found["medium"],
        found["engine"],
        tuple(found["ranks"]),
        tuple(found["sizes_bytes"]),
        _curve(f"{where}: curve", found["curve"]),
        Error(**error),
        tuple(str(source) for source in found["sources"]),
    )


def _curve(where: str, found: Any) -> Curve:
    _check_keys(where, found, {"call_s": float, "hop_s": float, "pairs": list})
    if not found["pairs"]:
        raise ValueError(f"{where}: pairs is [], want at least one pair of an offset and a rate")
    for pair in (found, *found["pairs"]):
        if pair is not found:
            _check_keys(f"{where}: pairs", pair, dict.fromkeys(Pair._fields, float))
        for key, value in pair.items():
            least = 1e-30 if key == "bytes_per_s" else 0
            if key != "pairs" and not least <= value <= 1e30:
                raise ValueError(f"{where}: {key} is {value!r}, want a number above zero")
    return Curve(found["call_s"], found["hop_s"], tuple(Pair(**x) for x in found["pairs"]))


def _check_keys(where: str, found: Any, kinds: Mapping[str, type]) -> None:
    if not isinstance(found, dict):
        raise ValueError(f"{where} is {shown(found)}, want an object with {', '.join(kinds)}")
    if set(found) != set(kinds):
        wrong = sorted(set(found) ^ set(kinds))[0]
        state = "not known" if wrong in found else "missing"
        raise ValueError(f"{where}: {shown(wrong)} is {state}; want {', '.join(kinds)}")
    for key, kind in kinds.items():
        check_kind(f"{where}: {key}", found[key], kind)
