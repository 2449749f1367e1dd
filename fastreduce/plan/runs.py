"""Runs: measured times of allreduce over its size, and the files that they are read from."""

from __future__ import annotations

import codecs
import functools
import json
from collections import defaultdict
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from fastreduce.kinds import check_kind, is_number, is_whole
from fastreduce.names import shown
from fastreduce.plan import nccl_tests, table_files
from fastreduce.topology.calibration import OURS
from fastreduce.units import bus_bytes

# Seconds, or GB/s. Beyond is a mistake, and whole numbers of JSON may be too large for a float.
MOST = 1e30
# What others have published, each run with its source.
PUBLISHED_RUNS = Path(__file__).parent / "published_runs.json"


class Point(NamedTuple):
    """Bytes on each rank, and seconds."""

    nbytes: int
    time_s: float


class Measured(NamedTuple):
    """What one machine took with one engine and number of ranks, by size.

    Machines with the same ``medium`` and ``engine`` are fitted together. A run with a ``flaw`` is
    one that its own source calls broken or untuned: nothing else is told from it.
    """

    machine: str
    medium: str
    engine: str
    ranks: int
    points: tuple[Point, ...]
    source: str
    flaw: str = ""


@functools.cache
def published(medium: str, engine: str, ranks: int) -> tuple[Measured, ...]:
    """What others have published of a medium, without runs that have a flaw.

    >>> [run.machine for run in published("8 V100 on NVLink", "NCCL", 8)]
    ['8 V100, one process', 'Oracle BM.GPU3.8']
    """
    found = (x for x in read(PUBLISHED_RUNS) if not x.flaw)
    return tuple(x for x in found if (x.medium, x.engine, x.ranks) == (medium, engine, ranks))


def read(path: str | PathLike[str], medium: str | None = None) -> list[Measured]:
    """The runs in a file: nccl-tests' output, a table of `fastreduce tune`, rows of our benchmarks,
    or published runs (`PUBLISHED_RUNS`).

    Args:
        medium: in words, for files that do not say it. Default: the file's name.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds no times, or a line or row is wrong: which, and what was found.
    """
    path = Path(path)
    content = path.read_bytes()
    is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    # As PowerShell writes what is redirected; other files may begin with a mark too.
    text = content.decode("utf-16" if is_utf16 else "utf-8-sig", errors="replace")
    medium = medium or path.stem
    try:
        if not text.strip():
            raise ValueError("the file is empty, want times of allreduce")
        if text.lstrip().startswith(("{", "[")) and not nccl_tests.is_tagged(text):
            runs = list(_json(text, path, medium))
        else:
            # By its path: outputs of several machines may have one name, in folders of their own.
            runs = [
                Measured(str(path), medium, "NCCL", k, _sorted(found), str(path))
                for k, found in nccl_tests.times_s(text).items()
            ]
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if not runs:
        raise ValueError(f"{path}: no times of allreduce in it")
    return runs


def _json(text: str, path: Path, medium: str) -> Iterator[Measured]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"this is not JSON: {error}") from None
    kind = found.get("format") if isinstance(found, dict) else None
    if kind == "fastreduce published":
        yield from _published(found)
    elif kind == table_files.FORMAT:
        yield from _table(found, path)
    elif isinstance(found, dict) and isinstance(found.get("rows"), list):
        yield from _rows(found, path, medium)
    else:
        raise ValueError(
            "this JSON is neither a table of `fastreduce tune`, nor rows of a benchmark, nor "
            "published runs"
        )


def _table(found: Any, path: Path) -> Iterator[Measured]:
    device = _get("the table", found, "device", str)
    for place, by_algorithm in _get("the table", found, "times_s", dict).items():
        for name in _object(place, by_algorithm):
            for k, by_size in _get(place, by_algorithm, name, dict).items():
                where = f"{place}, {name}, {k} ranks"
                times = _object(where, by_size).items()
                points = [(_whole(where, n), _seconds(where, s)) for n, s in times]
                ranks = _ranks(where, _whole(where, k))
                yield Measured(device, place, f"{OURS} {name}", ranks, _sorted(points), str(path))


def _published(found: Any) -> Iterator[Measured]:
    for number, run in enumerate(_get("the file", found, "runs", list)):
        where = f"run {number}"
        names = [_get(where, run, key, str) for key in ("machine", "medium", "engine", "source")]
        machine, medium, engine, source = names
        where += f" ({machine})"
        k = _ranks(where, _get(where, run, "ranks", int))
        points = []
        for point in _get(where, run, "points", list):
            if not isinstance(point, list) or len(point) != 3:
                raise ValueError(
                    f"{where}: found {shown(point)}, want bytes, seconds or null, and busbw"
                )
            nbytes, time_s, busbw = point
            _positive(where, "the size", nbytes)
            if not is_number(busbw) or not 0 < busbw <= MOST:
                raise ValueError(
                    f"{where}: busbw is {shown(busbw)} at {nbytes} bytes, want it above 0"
                )
            time_s = bus_bytes(nbytes, k) / busbw / 1e9 if time_s is None else time_s
            points.append(Point(nbytes, _seconds(where, time_s)))
        flaw = str(run.get("flaw", ""))
        yield Measured(machine, medium, engine, k, tuple(dict.fromkeys(points)), source, flaw)


def _rows(found: Any, path: Path, medium: str) -> Iterator[Measured]:
    """Rows of float32 sums in one tensor, by medium, contender and number of ranks."""
    grouped: defaultdict[tuple[str, str, int], list[tuple[int, float]]] = defaultdict(list)
    machine = found.get("machine")
    machine = machine if isinstance(machine, dict) else {}
    memory = "gpu" if machine.get("gpu") else "cpu"
    for number, row in enumerate(found["rows"]):
        where = f"row {number}"
        if not isinstance(row, dict):
            raise ValueError(f"{where} is {shown(row)}, want an object with k, nbytes and time_s")
        called = row.get("called") or row
        nbytes = row.get("size_bytes", row.get("nbytes"))
        other = any(row.get(key, usual) != usual for key, usual in _USUAL.items())
        other |= "k" not in row or nbytes is None
        if other or not isinstance(called, dict) or "time_s" not in called:
            continue
        if wrong := row.get("wrong_elems"):
            raise ValueError(
                f"{where}: {wrong} results are wrong (wrong_elems), want times of a machine that "
                "works"
            )
        k = _ranks(where, _get(where, row, "k", int))
        on = _place(row, memory, medium)
        if on:
            engine = str(row.get("engine", ""))
            name = f"{_ENGINES.get(engine, engine)} {row.get('algorithm', '')}".strip()
            point = _positive(where, "the size", nbytes), _seconds(where, called["time_s"])
            grouped[on, str(row.get("contender") or name), k].append(point)
    device = str(machine.get("gpu") or machine.get("cpu") or path)
    for (on, name, k), points in grouped.items():
        yield Measured(device, on, name, k, _sorted(points), str(path))


# What a row is of where it does not say.
_USUAL = {"collective": "all_reduce", "tensors": 1, "type": "float32", "redop": "sum"}

# The contenders of benchmarks/allreduce.py that are ours. A plan predicts what "gpus" runs, as a
# call does; "flags" run the same programs in other times, and "events" those of one GPU.
_ENGINES = {"tiles": OURS, "events": f"{OURS} events", "flags": f"{OURS} flags"}
_ENGINES |= {"gpus": OURS, "gpus-flags": f"{OURS} flags"}


def _place(row: dict[str, Any], memory: str, medium: str) -> str | None:
    """What moved a row's bytes. Ranks in one memory say nothing of links, whatever the engine, and
    several ranks on each of several GPUs nothing of either."""
    engine = row.get("engine")
    devices = row.get("devices", 0 if str(engine).startswith("gpus") else 1)
    if engine is None or devices == row["k"]:
        return medium
    return memory if devices == 1 else None


def _get(where: str, found: Any, key: str, kind: type) -> Any:
    if not isinstance(found, dict) or key not in found:
        raise ValueError(f"{where} is without {key!r}")
    check_kind(f"{where}: {key}", found[key], kind)
    return found[key]


def _object(where: str, found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise ValueError(f"{where}: found {shown(found)}, want an object")
    return found


def _whole(where: str, key: str) -> int:
    """A key of JSON, which is always in words."""
    return _positive(where, "a key", int(key) if key.isdecimal() else key)


def _positive(where: str, what: str, found: Any) -> int:
    if not is_whole(found) or not 0 < found < 2**63:
        raise ValueError(
            f"{where}: {what} is {shown(found)}, want a whole number above zero, below 2**63"
        )
    return int(found)


def _ranks(where: str, found: int) -> int:
    if not 2 <= found < 2**31:
        raise ValueError(f"{where}: the number of ranks is {found}, want 2 or more")
    return found


def _seconds(where: str, found: Any) -> float:
    if not is_number(found) or not 0 < found <= MOST:
        raise ValueError(f"{where}: the time is {shown(found)}, want seconds above zero")
    return float(found)


def _sorted(points: list[tuple[int, float]]) -> tuple[Point, ...]:
    """What a file holds twice counts once: else it could be held out and fitted to."""
    return tuple(Point(*point) for point in sorted(set(points)))
