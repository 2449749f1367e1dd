"""A record of the parameters' bits at every step, and where two records differ first."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fastreduce.bits import bytes_of
from fastreduce.parallel.buckets import buckets_of
from fastreduce.parallel.draws import capturing
from fastreduce.parallel.watch import Watch


class Recorder:
    """Writes a line of JSON for each state of the parameters that a forward pass has met, and for
    the last one that an optimizer has left.

    The first line names the parameters of each bucket; the others hold one hash per bucket and one
    per parameter. A later line of the same step replaces an earlier one: the parameters were
    changed between the optimizer's step and the forward pass. Hashing, in every forward pass, takes
    about a second per GB (predicted), and waits for GPUs.
    """

    def __init__(self, path: str | Path, net: nn.Module):
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"DataParallel: found record={path!r}, wanted the path of a new file")
        self.path, self._net = Path(path).absolute(), net  # programs may change their folder
        names, params = zip(*net.named_parameters(), strict=True)
        # In this order, which all runs share; gradients may come in another.
        buckets = buckets_of(params, list(reversed(range(len(params)))))
        self._buckets = [[names[number] for number in bucket] for bucket in buckets]
        self._watch = Watch(after_step=self._write_state)
        self._step, self._next = 0, 0
        self._last: list[list[str]] = []
        try:
            self.path.touch(exist_ok=False)  # fails here, and not after the first step
        except OSError as error:
            raise ValueError(
                f"DataParallel: record={str(path)!r} cannot be made: {error.strerror}; wanted a "
                "new file in a folder that is there"
            ) from error
        self._write({"buckets": self._buckets})

    def see(self) -> None:
        """Record the parameters that a forward pass meets; what comes later is of the next step."""
        if self._params() is None:
            raise ValueError(
                f"record: the module has other parameters than when {self.path} was begun; wrap it "
                "again, with another file"
            )
        self._write_state()
        self._step = self._next

    def _params(self) -> dict[str, nn.Parameter] | None:
        """By name; None if they are others than those of the first line."""
        params = dict(self._net.named_parameters())
        names = {name for bucket in self._buckets for name in bucket}
        return params if params.keys() == names else None

    def _write_state(self) -> None:
        """Record the parameters, if they have changed since the last time."""
        if capturing():
            return  # the optimizer's step is only captured, and has changed nothing yet
        params = self._params()
        if params is None:
            return  # this step may be another wrapper's; else the next forward pass refuses them
        hashes = [[hash_of(params[name]) for name in bucket] for bucket in self._buckets]
        # A write through parameter.data shows only in the bits; a step that changes no bit shows
        # only in the versions.
        if not self._watch.changed(list(params.values())) and hashes == self._last:
            return
        self._last = hashes
        together = [hashlib.blake2b("".join(x).encode(), digest_size=8).hexdigest() for x in hashes]
        self._write({"step": self._step, "buckets": together, "parameters": hashes})
        self._next = self._step + 1

    def _write(self, line: dict[str, Any]) -> None:
        with self.path.open("r+") as file:  # "r+": a file that was removed is not made again
            file.seek(0, os.SEEK_END)
            file.write(json.dumps(line) + "\n")


def hash_of(tensor: Tensor) -> str:
    """16 hexadecimal digits that depend on every bit.

    >>> import torch
    >>> hash_of(torch.zeros(2)) == hash_of(torch.tensor([0.0, -0.0]))
    False
    """
    return hashlib.blake2b(bytes_of(tensor.cpu()).numpy().data, digest_size=8).hexdigest()


def first_difference(one: str | Path, other: str | Path) -> str | None:
    """Where two records differ first, in words; None if they are the same.

    Raises ValueError for a file that is not a record, and for records of different models.
    """
    (names, first), (others, second) = _read(one), _read(other)
    if names != others:
        raise ValueError(
            f"{one} and {other} are records of different parameters: {_unlike(names, others)}; "
            "want two runs of one model"
        )
    for step, (a, b) in enumerate(zip(first, second, strict=False)):
        if a["buckets"] == b["buckets"]:
            continue
        groups = zip(names, a["parameters"], b["parameters"], strict=True)
        unlike = [
            (bucket, name)
            for bucket, group in enumerate(groups)
            for name, x, y in zip(*group, strict=True)
            if x != y
        ]
        if unlike:
            bucket, name = unlike[0]
            return (
                f"before step {step} (the first is 0), bucket {bucket}, parameter {name}: the "
                f"first of {len(unlike)} that differ there, of {sum(map(len, names))}"
            )
    if len(first) != len(second):
        same = min(len(first), len(second))
        return (
            f"{one} has {len(first)} states of the parameters and {other} {len(second)}; the first "
            f"{same} are the same"
        )
    return None


def _unlike(names: list[list[str]], others: list[list[str]]) -> str:
    mine, theirs = (sorted(x for bucket in y for x in bucket) for y in (names, others))
    only = [*(x for x in mine if x not in theirs), *(x for x in theirs if x not in mine)]
    return f"{only[0]} is in one only" if only else "the same names in other buckets"


def _read(path: str | Path) -> tuple[list[list[str]], list[dict[str, Any]]]:
    try:
        header, *lines = [json.loads(line) for line in Path(path).read_text().splitlines()]
        names = [[str(name) for name in bucket] for bucket in header["buckets"]]
        states = {
            x["step"]: {"buckets": x["buckets"], "parameters": x["parameters"]} for x in lines
        }
        sizes = [len(bucket) for bucket in names]
        for state in states.values():
            found = [len(bucket) for bucket in state["parameters"]]
            if len(state["buckets"]) != len(sizes) or found != sizes:
                raise ValueError("other numbers of buckets or parameters")
        return names, list(states.values())
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise ValueError(
            f"{path} is not a record; want a file that DataParallel(..., record=FILE) has written"
        ) from error
