"""Checkpoints: files from which a training run goes on, with the same bits.

A checkpoint is one safetensors file. What is no tensor stands as JSON in its metadata, beside a
SHA-256 of everything. It gets its name when it is whole and on disk; whoever is stopped while
writing leaves the checkpoints before.

Source of the file format: https://github.com/huggingface/safetensors, "Format".
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from fastreduce.bits import bytes_of
from fastreduce.files import lock, readable
from fastreduce.names import shown

from .state import (
    flatten,
    misfit,
    on_all_ranks,
    restorer,
    shapes_of,
    state_of,
    unflatten,
)

FORMAT = "fastreduce checkpoint"
VERSION = "1"
KEPT = 3
NAME = re.compile(r"step-(\d+)\.safetensors")

logger = logging.getLogger(__name__)


class CheckpointError(ValueError):
    """A checkpoint cannot be used; the message names it, what was found and what was wanted."""


class DamagedCheckpoint(CheckpointError):
    """Not what was written: cut short or changed."""


@dataclass(frozen=True)
class Checkpoint:
    """What a file holds: the number of steps taken, and the state of each part, by name.

    ``shapes`` are those of the parameters of each optimizer, which are checked when it is restored.
    """

    path: Path
    step: int
    state: Mapping[str, Any]
    shapes: Mapping[str, Any]

    def restore(self, parts: Mapping[str, Any]) -> None:
        """Put the state into ``parts``, as `load` does."""
        on_all_ranks(parts, lambda: self._check(parts))
        for name, part in parts.items():
            if put := restorer(part):
                put(self.state[name])

    def _check(self, parts: Mapping[str, Any]) -> None:
        """Raise CheckpointError if the state does not fit ``parts``."""
        if self.state.keys() != parts.keys():
            raise CheckpointError(
                f"{self.path}: found {', '.join(self.state)}, wanted {', '.join(parts)}"
            )
        for name, part in parts.items():
            if not restorer(part):
                continue
            if words := misfit(part, self.state[name], self.shapes.get(name)):
                raise CheckpointError(f"{self.path}: {name}: {words}; nothing was restored")


def save(
    folder: str | os.PathLike[str], parts: Mapping[str, Any], *, step: int, keep: int = KEPT
) -> Path:
    """Write a checkpoint, and remove all others but the last ``keep - 1``.

    Args:
        folder: where checkpoints are; it is made if need be.
        parts: by name, what to keep: modules (also `fastreduce.DataParallel`), optimizers,
            schedulers and whatever else has ``state_dict`` and ``load_state_dict``;
            `torch.Generator` objects; and tensors, numbers, strings, lists, tuples and dicts.
        step: how many steps have been taken. A checkpoint of that number is replaced.

    Returns its path. Raises TypeError for a part that can be kept in none of these ways, ValueError
    for more than 100 MB of what is no tensor, and OSError if it cannot be written; all checkpoints
    before are still there then.

    >>> import tempfile, torch
    >>> net = torch.nn.Linear(2, 1)
    >>> parts = {"model": net, "optimizer": torch.optim.SGD(net.parameters(), lr=0.1), "epoch": 3}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = save(folder, parts, step=100)
    ...     found = load(folder, parts)
    >>> path.name, found.step, found.state["epoch"]
    ('step-000000100.safetensors', 100, 3)
    """
    if type(step) is not int or type(keep) is not int or step < 0 or keep < 1:
        raise ValueError(
            f"save: found step {shown(step)} and keep {shown(keep)}, wanted whole numbers, at "
            "least 0 and 1"
        )
    _check_named("save", parts)
    tensors: dict[str, Tensor] = {}
    state = {name: flatten(state_of(part), name, tensors) for name, part in parts.items()}
    shapes = {name: found for name, part in parts.items() if (found := shapes_of(part))}
    text = json.dumps({"step": step, "state": state, "shapes": shapes})
    about = {"format": FORMAT, "version": VERSION, "state": text, "sha256": _sha256(text, tensors)}
    path = Path(folder) / f"step-{step:09}.safetensors"
    try:
        content = safetensors.torch.save(tensors, about)
    except safetensors.SafetensorError as error:
        raise ValueError(
            f"{path}: could not be made ({error}), wanted less than 100 MB of what is no tensor; "
            "keep long lists of numbers as tensors"
        ) from error
    _write(path, content)
    # This one stays, whatever a folder has of later steps: damaged ones, or those of another run.
    others = [x for x in _found_in(path.parent) if x != path and not x.is_dir()]
    for old in others[keep - 1 :]:
        old.unlink()
    return path


def load(path: str | os.PathLike[str], parts: Mapping[str, Any]) -> Checkpoint:
    """Read the last checkpoint and put it into ``parts``, named as when it was saved.

    ``path`` is the folder, or one file. Whatever has ``load_state_dict``, and `torch.Generator`
    objects, get back their state; the rest is found in ``state`` of what is returned. A damaged
    file is skipped, with a warning that names it, for the one before.

    Raises FileNotFoundError if there is no checkpoint, and CheckpointError if all are damaged, or
    if the last does not fit ``parts`` or is of another version. Nothing is restored then. Where a
    part is a `fastreduce.KVStore` of several ranks, all of them call this, and what is wrong on one
    is raised on all.
    """
    _check_named("load", parts)
    found = on_all_ranks(parts, lambda: read(path))
    found.restore(parts)
    return found


def _check_named(call: str, parts: Any) -> None:
    wrong = [x for x in parts if not isinstance(x, str)] if isinstance(parts, Mapping) else None
    if wrong != []:
        found = f"the name {wrong[0]!r}" if wrong else type(parts).__name__
        raise TypeError(
            f"{call}: found {found}, wanted a dict of parts by names that are strings, such as "
            '{"model": model, "optimizer": optimizer}'
        )


def read(path: str | os.PathLike[str]) -> Checkpoint:
    """Return the last checkpoint in a folder that is whole, or the one of a file; see `load`."""
    return next(whole(path))


def whole(path: str | os.PathLike[str]) -> Iterator[Checkpoint]:
    """All that `read` might return, the last first; raises as it does, if there is none."""
    path = Path(path)
    candidates = _found_in(path) if path.is_dir() else [path] * path.is_file()
    if not candidates:
        raise FileNotFoundError(f"{path}: found no checkpoint, wanted step-*.safetensors there")
    damaged = []
    for candidate in candidates:
        try:
            yield _read(candidate)
        except DamagedCheckpoint as error:
            damaged.append(str(error))
            logger.warning("%s", error)
    if len(damaged) == len(candidates):
        raise CheckpointError("; ".join(damaged))


def _found_in(folder: Path) -> list[Path]:
    """The last one first."""
    found = [(int(match[1]), x) for x in folder.iterdir() if (match := NAME.fullmatch(x.name))]
    return [path for _, path in sorted(found, reverse=True)]


def _read(path: Path) -> Checkpoint:
    if not path.is_file():  # a folder, or a link to nothing or to itself
        raise DamagedCheckpoint(f"{path}: damaged (no file is there), wanted a whole file")
    if path.is_symlink() and path.resolve().parent != path.parent.resolve():
        raise CheckpointError(
            f"{path}: found a link to {path.resolve()}, wanted a file of this folder"
        )
    try:
        with readable(path) as name, safetensors.safe_open(name, "pt") as file:
            about = file.metadata() or {}
            # Copies, because they lie in the file at any address, and BLAS has other bits for a dot
            # product of what is aligned otherwise (LBFGS; torch 2.13 with MKL).
            tensors = {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118
    except safetensors.SafetensorError as error:
        raise DamagedCheckpoint(f"{path}: damaged ({error}), wanted a whole file") from None
    except OSError as error:  # safetensors seldom says of which file
        raise OSError(f"{path}: could not be read ({error})") from error
    if about.get("format") != FORMAT:
        raise CheckpointError(f"{path}: found a file of another kind, wanted a checkpoint")
    if about.get("version") != VERSION:
        raise CheckpointError(
            f"{path}: found version {about.get('version')}, wanted version {VERSION}; use the "
            "fastreduce that wrote it"
        )
    text = about.get("state", "")
    if about.get("sha256") != _sha256(text, tensors):
        raise DamagedCheckpoint(f"{path}: damaged (its SHA-256 is another), wanted a whole file")
    content = json.loads(text)
    state = {name: unflatten(value, tensors) for name, value in content["state"].items()}
    shapes = content.get("shapes", {})  # the first files had none
    return Checkpoint(path, content["step"], state, shapes)


def _sha256(text: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(bytes_of(tensor).numpy().data)
    return digest.hexdigest()


def _write(path: Path, content: bytes) -> None:
    """A file of this name is always whole, also after a crash of the machine."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _unfinished(path) as unfinished:
        with unfinished.open("wb") as file:
            lock(file)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            os.replace(unfinished, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the name, too
        finally:
            os.close(folder)


@contextlib.contextmanager
def _unfinished(path: Path) -> Iterator[Path]:
    _remove_abandoned(path.parent)
    unfinished = path.with_suffix(f".{secrets.token_hex(4)}.unfinished")
    try:
        yield unfinished
    except OSError as error:
        reason = error.strerror or error
        raise OSError(f"{path}: could not be written ({reason}); earlier ones are kept") from error
    finally:  # also after Ctrl-C
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)


def _remove_abandoned(folder: Path) -> None:
    """Files of processes that were killed: a process that lives has locked its own."""
    for left in folder.glob("step-*.unfinished"):
        # It may be a folder, which is nothing of ours, or be gone by now. Where the file system has
        # no locks, nobody knows who lives, and all of them stay.
        with contextlib.suppress(OSError), left.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left.unlink()
