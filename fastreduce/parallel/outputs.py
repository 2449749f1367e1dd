"""Joins the outputs of all shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fastreduce.parallel.batch import dim_of, is_cut
from fastreduce.parallel.trees import leaves_of, named_leaves


def join(outputs: Sequence[Any], sizes: Sequence[int], device: torch.device, batch_dim: int) -> Any:
    """The outputs of all shards, which have so many examples each, as one, on ``device``.

    Tensors are joined along ``batch_dim``, vectors along their only dimension; those without that
    dimension, such as one loss per shard, are stacked. What is no tensor must be the same in all.
    """
    flat = [leaves_of(output) for output in outputs]
    if not any(isinstance(leaf, Tensor) for leaf in flat[0][0]):
        raise ValueError(
            f"DataParallel: forward returned {type(outputs[0]).__name__} without a tensor; wanted "
            "a tensor, or tensors in tuples, lists, dicts or dataclasses, or model.backward, which "
            "joins nothing; model.module, the bare module, returns anything"
        )
    _check_lists(outputs, sizes, batch_dim)
    for shard, (_, shape) in enumerate(flat):
        # Where forward itself makes the class, as of a namedtuple, each shard has another class.
        if shape != flat[0][1] and repr(shape) != repr(flat[0][1]):
            raise ValueError(
                f"DataParallel: shard {shard} returned {_in_words(outputs[shard])}, but shard 0 "
                f"{_in_words(outputs[0])}; wanted the same of all, or they cannot be joined. It "
                "may depend on the examples, or on what was changed deep inside of an attribute of "
                "the module since it was wrapped, which the other replicas do not follow"
            )
    columns = list(zip(*(leaves for leaves, _ in flat), strict=True))
    for number, same in enumerate(columns):
        if problem := _problem(same, sizes, batch_dim):
            place, _ = named_leaves(outputs[0])[number]
            where = f" in its output{place}" if place else ""
            raise ValueError(f"DataParallel: forward returned{where} {problem}")
    joined = [_joined(same, device, batch_dim) for same in columns]
    return pytree.tree_unflatten(joined, flat[0][1])


def _in_words(output: Any) -> str:
    """Such as "list with [0], [1]"."""
    places = [place for place, _ in named_leaves(output)]
    return f"{type(output).__name__} with {', '.join(places) or 'nothing'}"


def _check_lists(outputs: Sequence[Any], sizes: Sequence[int], batch_dim: int) -> None:
    """Raise ValueError for lists with an entry per example: others hold tensors of all examples."""
    for output, size in zip(outputs, sizes, strict=True):
        if not (isinstance(output, list) and len(output) == size):
            return
    for shard, (output, size) in enumerate(zip(outputs, sizes, strict=True)):
        for place, leaf in named_leaves(output):
            if is_cut(leaf, batch_dim) and leaf.shape[dim_of(leaf, batch_dim)] != size:
                raise ValueError(
                    f"DataParallel: forward returned a list of {size} for the {size} examples of "
                    f"shard {shard}, and its output{place} has shape {tuple(leaf.shape)}. Lists "
                    "with an entry per example are not joined: return tensors of all examples (a "
                    "tuple of them is joined whatever their lengths), or call model.module"
                )


def _problem(same: Sequence[Any], sizes: Sequence[int], batch_dim: int) -> str | None:
    """Why these, one of each shard, cannot be joined."""
    first = same[0]
    if len({isinstance(x, Tensor) for x in same}) > 1:
        return (
            f"{', '.join(type(x).__name__ for x in same)}, which cannot be joined; wanted tensors "
            "of all shards, the same value of all, or model.backward, which joins nothing"
        )
    if not isinstance(first, Tensor):
        if all(_equal(other, first) for other in same):
            return None
        found = ", ".join(map(repr, same))
        advice = "; call the model with use_cache=False" if "Cache" in type(first).__name__ else ""
        return (
            f"{found}, which are no tensors and cannot be joined; wanted tensors, the same value "
            f"of all, or model.backward, which joins nothing{advice}"
        )
    if any(x.is_nested for x in same):
        return (
            "a nested tensor, which torch cannot join; wanted its to_padded_tensor(0.0), with a "
            "size for its output_size that does not depend on which examples a shard has"
        )
    shapes = [tuple(x.shape) for x in same]
    if not is_cut(first, batch_dim):
        return None if len(set(shapes)) == 1 else _differing(shapes, "stacked")
    dim = dim_of(first, batch_dim)
    if (other := _other_dim(shapes, sizes, dim)) is not None:
        return (
            f"a tensor of shape {shapes[0]} for a shard of {sizes[0]} examples; wanted these in "
            f"dimension {dim}, as batch_dim says, not {other}: return x.movedim({other}, {dim}), "
            f"or take batch_dim={other} and transpose the inputs in forward"
        )
    if (steps := _steps_in_front(shapes, sizes, dim)) is not None:
        return (
            f"a tensor of shape {shapes[0]} for a shard of {sizes[0]} examples; wanted these in "
            f"dimension {dim}, as batch_dim says, but dimension 0 has {steps} times as many: have "
            f"forward return {(steps, sizes[0], *shapes[0][1:])}, and flatten that of the batch"
        )
    if len({(*shape[:dim], *shape[dim + 1 :]) for shape in shapes}) > 1:
        return _differing(shapes, f"joined along dimension {dim}")
    return None


def _other_dim(shapes: Sequence[tuple[int, ...]], sizes: Sequence[int], dim: int) -> int | None:
    """The dimension that has the examples, if that is surely another one than ``dim``.

    Shards of one size leave some doubt: dimension 0 may have (examples * steps), and one that has
    as many classes as there are examples may follow.
    """
    if len(sizes) == 1 or len({*map(len, shapes)}) > 1:
        return None
    by_dim = list(zip(*shapes, strict=True))
    lengths, wanted = by_dim[dim], tuple(sizes)
    doubtful = dim == 0 and len({*sizes}) == 1
    if lengths == wanted or (doubtful and (len({*lengths}) > 1 or lengths[0] % sizes[0] == 0)):
        return None
    return by_dim.index(wanted) if wanted in by_dim else None


def _steps_in_front(
    shapes: Sequence[tuple[int, ...]], sizes: Sequence[int], dim: int
) -> int | None:
    """How many steps, if dimension 0 surely has (steps * examples), which no cat can join."""
    steps = shapes[0][0] // sizes[0]
    flat = all(shape[0] == steps * size for shape, size in zip(shapes, sizes, strict=True))
    others = any(shape[dim] % size for shape, size in zip(shapes, sizes, strict=True))
    return steps if len(sizes) > 1 and dim > 0 and steps > 1 and flat and others else None


def _differing(shapes: Sequence[tuple[int, ...]], how: str) -> str:
    return (
        f"tensors of shapes {', '.join(map(str, shapes))}, which cannot be {how}; wanted shapes "
        "that do not depend on which examples a shard has, or model.backward, which joins nothing"
    )


def _equal(one: Any, other: Any) -> bool:
    both_nan = isinstance(one, float) and isinstance(other, float) and one != one and other != other
    try:
        return one is other or both_nan or bool(one == other)
    except (ValueError, RuntimeError):  # arrays and tensors with more than one truth value
        return False


def _joined(same: Sequence[Any], device: torch.device, batch_dim: int) -> Any:
    first = same[0]
    if not isinstance(first, Tensor):
        return first
    here = [x.to(device, non_blocking=True) for x in same]
    if is_cut(first, batch_dim):
        return torch.cat(here, dim_of(first, batch_dim))
    return torch.stack(here)
