"""Tables on disk: one file per device and version, so that machines may share a home folder."""

from __future__ import annotations

import functools
import hashlib
import json
import re
import warnings
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any

from fastreduce import _C, folders
from fastreduce.files import parse, write_whole
from fastreduce.kinds import check_kind
from fastreduce.names import shown
from fastreduce.plan.defaults import BETWEEN_GPUS
from fastreduce.plan.machine import device, versions
from fastreduce.plan.table import NEVER_BYTES, Table

FORMAT = "fastreduce table"
VERSION = 1
KEYS = {"format": str, "version": int, "times_s": dict, "copy_engine_bytes": dict} | dict.fromkeys(
    ("device", "fastreduce", "torch", "date"), str
)


def save(table: Table, path: str | PathLike[str] | None = None) -> Path:
    """Write a table as JSON, whole or not at all, and return its path.

    Args:
        table: what `measure` returned.
        path: default: where "auto" looks, so that the next calls use the new table.

    Raises:
        OSError: the file cannot be written.

    >>> import tempfile
    >>> from fastreduce.algorithms import names
    >>> times = {"cpu": {name: {2: {1024: 1e-6}} for name in names()}}
    >>> table = Table(device(), *versions(), "2026-11-21", times)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     load(save(table, f"{folder}/mine.json")) == table
    True
    """
    path = Path(path or default_path(table.device, table.fastreduce, table.torch))
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"format": FORMAT, "version": VERSION, **asdict(table)}
    write_whole(path, json.dumps(content, indent=1) + "\n")
    _tuned.cache_clear()
    _C.forget_schedules()
    return path


def load(path: str | PathLike[str] | None = None) -> Table:
    """Read a table that `save` wrote on this machine with these versions.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not a table, or is of another format, device or version, or a time
            is missing or wrong. The message names the file and what is wrong in it.
    """
    path = Path(path or default_path(device(), *versions()))
    content = path.read_bytes()
    try:
        return _table(parse(content, FORMAT, VERSION))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def tuned() -> Table | None:
    """The table by which "auto" chooses here; None if `fastreduce tune` never ran,
    or this user has no home folder.

    When it is read, the engines get its sizes for the copy engine. A file that is wrong gives one
    warning, and None.

    >>> tuned() is None or tuned().device == device()
    True
    """
    try:
        path = default_path(device(), *versions())
    except FileNotFoundError:  # there is no home folder
        return None
    return _tuned(path)


@functools.lru_cache(maxsize=1)  # one, because the engines have one table's sizes at a time
def _tuned(path: Path) -> Table | None:
    table = _read(path)
    measured = table.copy_engine_bytes if table else {}
    found = (measured.get(place, _C.default_copy_engine_bytes) for place in BETWEEN_GPUS)
    _C.set_copy_engine_bytes(*(NEVER_BYTES if x is None else x for x in found))
    return table


def _read(path: Path) -> Table | None:
    try:
        return load(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        warnings.warn(f"{error}; auto uses the defaults until `fastreduce tune` runs", stacklevel=4)
        return None


def default_path(on: str, fastreduce: str, torch: str) -> Path:
    """Where "auto" looks for the table of this device and these versions.

    >>> default_path(device(), *versions()).parent == folders.data()
    True
    """

    def safe(text: str) -> str:
        return re.sub(r"[^\w.]+", "-", text, flags=re.ASCII)

    # A device's name is cut to 100 characters, and some characters are replaced. The digest of the
    # whole name keeps two devices apart whose shortened names are the same.
    digest = hashlib.sha256(on.encode()).hexdigest()[:8]
    name = f"tuned-{safe(on)[:100]}-{digest}-fastreduce-{safe(fastreduce)}-torch-{safe(torch)}.json"
    return folders.data() / name


def _table(found: dict[str, Any]) -> Table:
    found = {"copy_engine_bytes": {}} | found  # which older files lack
    for key, kind in KEYS.items():
        check_kind(key, found.get(key), kind)
    about = {key: found[key] for key in ("device", "fastreduce", "torch", "date")}
    for key, here in zip(about, (device(), *versions()), strict=False):
        if about[key] != here:
            raise ValueError(f"measured with {key} {about[key]!r}, but this is {here!r}")
    return Table(
        **about, times_s=_times(found["times_s"]), copy_engine_bytes=found["copy_engine_bytes"]
    )


def _times(found: Any) -> dict[str, dict[str, dict[int, dict[int, float]]]]:
    """The times with numbers for ranks and sizes, which JSON stores as strings."""
    return {
        place: {
            algorithm: {
                _number(k, f"{place}, {algorithm}"): {
                    _number(nbytes, f"{place}, {algorithm}, k = {k}"): seconds
                    for nbytes, seconds in _object(by_size, f"{place}, {algorithm}, k = {k}")
                }
                for k, by_size in _object(by_k, f"{place}, {algorithm}")
            }
            for algorithm, by_k in _object(by_algorithm, place)
        }
        for place, by_algorithm in found.items()
    }


def _object(found: Any, where: str) -> Any:
    if not isinstance(found, dict):
        raise ValueError(f"{where}: found {shown(found)}, want an object")
    return found.items()


def _number(found: str, where: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,17}", found):
        raise ValueError(f"{where}: found key {shown(found)}, want a whole number above zero")
    return int(found)
