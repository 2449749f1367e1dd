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


def write_whole(path: Path, text: str) -> None:
    """Write ``text`` beside ``path`` first, so that nobody reads half of it.

    Raises:
        OSError: the file cannot be written; what was there before is there still.
    """
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with naming(path):  # nobody knows the other one
            unfinished.write_text(text, encoding="utf-8")
            os.replace(unfinished, path)
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()
