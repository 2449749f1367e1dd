"""Files that a command is asked to write, checked before it begins to work."""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path


def to_write(*suffixes: str) -> Callable[[str], Path]:
    """The ``type`` of an argparse argument: a file that can be written, with one of the suffixes.

    >>> to_write(".svg")("ring.svg")
    PosixPath('ring.svg')
    """

    def checked(text: str) -> Path:
        if Path(text).suffix.lower() not in suffixes:
            wanted = " or ".join(suffixes)
            raise argparse.ArgumentTypeError(f"found {text!r}, want a name that ends in {wanted}")
        if reason := why_not_writable(Path(text)):
            raise argparse.ArgumentTypeError(reason)
        return Path(text)

    return checked


def folder(text: str) -> Path:
    """The ``type`` of an argparse argument: a folder's name. Without one it would be the current.

    >>> folder("runs")
    PosixPath('runs')
    """
    if not text:
        raise argparse.ArgumentTypeError("found an empty name, want a folder")
    return Path(text)


def why_not_writable(path: Path) -> str | None:
    """What keeps a file from being written, or None. Folders that are missing can be made.

    >>> why_not_writable(Path("/"))
    '/ is a folder, want a file'
    """
    try:
        # From Python 3.14 on, exists() says no more than False of a name that is too long.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            path.stat()
        if path.is_dir():
            return f"{path} is a folder, want a file"
        if path.exists() and not path.is_file():
            return f"{path} is a device or a pipe, want a file"
        folder = next(x for x in path.absolute().parents if x.exists())
        if not folder.is_dir():
            return f"{folder} is a file, want a folder to write {path.name} into"
        # Permissions alone do not tell: a file system may be read-only, or the user root.
        try:
            with tempfile.TemporaryFile(dir=folder):
                return None
        except OSError as error:
            return f"{folder} takes no new file ({error.strerror}), want one that does"
    except OSError as error:  # of the path itself, such as a name that is too long
        return f"{path} cannot be written: {error.strerror}"


def check_not_read(written: Iterable[Path | None], read: Iterable[str | None]) -> None:
    """
    Raises:
        ValueError: a file would be written over one that the command reads.
    """
    known = [name for name in read if name is not None and os.path.exists(name)]
    for path in written:
        if path is None or not os.path.exists(path):
            continue
        if any(os.path.samefile(path, name) for name in known):
            raise ValueError(f"{path} is what is read, want another name to write to")
