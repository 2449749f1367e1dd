"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Errors of the system in here name ``path``: those of a write, as to a full disk, do not."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file beside ``path`` to write to, which takes its place if nothing is raised in here.

    Raises:
        OSError: the file cannot be written; what was there before is there still.
    """
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with naming(path):  # nobody knows the other one
            yield unfinished
            os.replace(unfinished, path)
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()


def write_whole(path: Path, text: str) -> None:
    """Write ``text`` as `replacing` does, so that nobody reads half of it."""
    with replacing(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")
