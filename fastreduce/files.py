"""Files: written whole or not at all, by one process at a time, and read only if they are what they
should be."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from fastreduce.names import shown


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Errors of the system in here name ``path``: those of a write, as to a full disk, do not."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file beside ``path`` to write to, which takes its place if nothing is raised in here. A
    device or a pipe stays what it is, and is written to.

    Raises:
        OSError: the file cannot be written; what was there before is there still.
    """
    if path.is_char_device() or path.is_fifo():
        with naming(path):
            yield path
        return
    unfinished = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        with naming(path):  # nobody knows the other one
            yield unfinished
            os.replace(unfinished, path)
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()


def lock(file: IO[Any] | int, *, wait: bool = True) -> None:
    """Lock an open file, or folder, until it is closed or this process ends.

    File systems without locks, such as Lustre's by default, let all have it.

    Raises:
        BlockingIOError: another process has it, and this one does not ``wait``.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        raise
    except OSError:
        pass


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Of all processes that say so; the others wait."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        lock(opened)
        yield
    finally:
        # Closed alone, it would stay locked by a process that another thread has forked meanwhile.
        with contextlib.suppress(OSError):  # of file systems without locks
            fcntl.flock(opened, fcntl.LOCK_UN)
        os.close(opened)


@contextlib.contextmanager
def readable(path: Path) -> Iterator[str]:
    """A name of the file for libraries to which one that is not UTF-8 is an error."""
    with path.open("rb") as file:
        yield f"/proc/self/fd/{file.fileno()}"


def stderr_is_terminal() -> bool:
    """Where a progress bar can be seen. A daemon may have no stderr, which tqdm does not expect."""
    return sys.stderr is not None and sys.stderr.isatty()


def in_words(error: Exception) -> str:
    """The message without the errno of a system error, which tells most readers nothing.

    >>> in_words(FileNotFoundError(2, "No such file or directory", "mine.json"))
    'mine.json: No such file or directory'
    """
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def write_whole(path: Path, text: str) -> None:
    """Write ``text`` as `replacing` does, so that nobody reads half of it."""
    with replacing(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def parse(content: bytes, wanted: str, version: int) -> dict[str, Any]:
    """What a JSON file of ours holds: an object that names its format and its version.

    Raises:
        ValueError: it is not JSON, has a key twice, or is of another format or version.

    >>> parse(b'{"format": "fastreduce table", "version": 1}', "fastreduce topology", 1)
    Traceback (most recent call last):
    ValueError: format is 'fastreduce table', want 'fastreduce topology'; pass another file
    """
    try:
        found = json.loads(content, object_pairs_hook=_each_once)
    except _Twice as error:
        raise ValueError(f"{error}; want each key once in an object, of a {wanted!r}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"this is not JSON, or not all of it: {error}; want a {wanted!r}; write it again"
        ) from None
    if not isinstance(found, dict):
        raise ValueError(
            f'found {shown(found)}, want an object with "format": "{wanted}"; pass another file'
        )
    if found.get("format") != wanted:
        raise ValueError(
            f"format is {shown(found.get('format'))}, want {wanted!r}; pass another file"
        )
    if found.get("version") != version:
        raise ValueError(
            f"version is {shown(found.get('version'))}, want {version}; write it again with this "
            "version of fastreduce"
        )
    return found


class _Twice(ValueError):
    """A key that an object has twice, of which json would drop the first."""


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        twice = next(key for key, count in counts.items() if count > 1)
        raise _Twice(f"an object has {shown(twice)} twice, the last time as {shown(found[twice])}")
    return found
