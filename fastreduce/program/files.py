"""Programs as JSON files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from fastreduce.files import parse, write_whole
from fastreduce.instruction import Instruction
from fastreduce.kinds import check_kind
from fastreduce.names import shown
from fastreduce.program.program import Program

FORMAT = "fastreduce program"
VERSION = 1
# The keys of a file, with their types; "sliced" may be null.
KEYS: dict[str, type] = {
    "format": str,
    "version": int,
    "k": int,
    "shards": int,
    "whole_tensors": bool,
    "sliced": int,
    "instructions": list,
}


# Whole numbers may be NumPy's.
_dumped = partial(json.dumps, default=int)


def save(program: Program, path: str | PathLike[str]) -> None:
    _prove(program)
    head = {
        "format": FORMAT,
        "version": VERSION,
        "k": program.k,
        "shards": program.shards,
        "whole_tensors": program.whole_tensors,
        "sliced": program.sliced,
    }
    # One instruction per line: rank, shard, sources, destinations.
    lines = ",\n".join(_dumped(instruction) for instruction in program.instructions)
    text = f'{_dumped(head)[:-1]},\n"instructions": [\n{lines}\n]}}\n'
    write_whole(Path(path), text)


def load(path: str | PathLike[str]) -> Program:
    content = Path(path).read_bytes()
    try:
        program = _program(parse(content, FORMAT, VERSION))
        _prove(program)
        return program
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


class _Stamp(NamedTuple):
    """Of a file: which one it is, when it was changed, in nanoseconds, and its bytes.

    The change time is set by the system alone. The modification time is not: whatever copies a
    file may set it to that of another.
    """

    device: int
    inode: int
    changed_ns: int
    nbytes: int


_cache: dict[str, tuple[_Stamp, Program]] = {}


def cached(path: str, when_changed: Callable[[], None]) -> Program:
    """The program in a file, read again only after the file has changed.

    ``when_changed`` is called where the file held another program the last time.
    """
    status = os.stat(path)
    stamp = _Stamp(status.st_dev, status.st_ino, status.st_ctime_ns, status.st_size)
    known = _cache.get(path)
    if known and known[0] == stamp:
        return known[1]
    program = load(path)
    _cache[path] = stamp, program
    if known:
        when_changed()
    return program


def _prove(program: Program) -> None:
    try:
        program.verify()
    except ValueError as error:
        raise ValueError(f"the program is no allreduce: {error}") from None


def _program(found: dict[str, Any]) -> Program:
    if wrong := set(found) ^ set(KEYS):
        what = "with" if min(wrong) in found else "without"
        raise ValueError(f"the file is {what} {shown(min(wrong))}; want {', '.join(KEYS)}")
    for key, kind in KEYS.items():
        if key != "sliced" or found[key] is not None:
            check_kind(key, found[key], kind)
    steps = [_instruction(index, step) for index, step in enumerate(found["instructions"])]
    return Program(
        found["k"],
        found["shards"],
        steps,
        whole_tensors=found["whole_tensors"],
        sliced=found["sliced"],
    )


def _instruction(index: int, step: Any) -> Instruction:
    if isinstance(step, list) and len(step) == 4:
        rank, shard, srcs, dsts = step
        if _are_numbers([rank, shard]) and _are_numbers(srcs) and _are_numbers(dsts):
            return Instruction(rank, shard, tuple(srcs), tuple(dsts))
    raise ValueError(
        f"instruction {index} is {shown(step)}, want [rank, shard, [sources], [destinations]] in "
        "whole numbers"
    )


def _are_numbers(found: Any) -> TypeGuard[list[int]]:
    return isinstance(found, list) and all(type(number) is int for number in found)
