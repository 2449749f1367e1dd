"""What the replicas of one process push: tensors that become one for each key."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

import fastreduce
from fastreduce.kvstore.entry import Key
from fastreduce.kvstore.updates import changeable, fold_of, unrounded


def same_length(call: str, values: Mapping[Key, Sequence[Any]]) -> int:
    counts = {key: len(x) for key, x in values.items()}
    if len(set(counts.values())) > 1:
        raise ValueError(f"{call}: found numbers of replicas {counts}, wanted one number")
    return next(iter(counts.values()))


@changeable()
def merged(values: Mapping[Key, Sequence[Tensor]], op: str) -> dict[Key, Tensor]:
    """The reduction over the replicas, in memory of its own."""
    columns = zip(*values.values(), strict=True)
    first, *others = ([unrounded(x.detach(), op) for x in column] for column in columns)
    found = [x.clone(memory_format=torch.contiguous_format) for x in first]
    if others:
        fastreduce.reduce([found, *_apart(others)], op=fold_of(op))
    return dict(zip(values, found, strict=True))


def _apart(replicas: Iterable[Sequence[Tensor]]) -> Iterator[list[Tensor]]:
    """The same values, no two of which share memory, with each other or within themselves."""
    taken: defaultdict[int, list[range]] = defaultdict(list)  # addresses, by storage
    for values in replicas:
        yield [_apart_from(taken[x.untyped_storage().data_ptr()], x) for x in values]


def _apart_from(taken: list[range], value: Tensor) -> Tensor:
    own = range(value.data_ptr(), value.data_ptr() + value.nbytes)
    shares = any(own.start < other.stop and other.start < own.stop for other in taken)
    if shares or not value.is_contiguous():
        return value.clone(memory_format=torch.contiguous_format)
    taken.append(own)
    return value
