"""Cuts a batch into one shard per replica, and joins the replicas' outputs."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


@dataclass(frozen=True)
class Whole:
    """Marks an argument of `DataParallel` that every replica gets whole, and not a shard of.

    ``value`` is a tensor, or tensors in tuples, lists, dicts and dataclasses; each replica gets it
    on its device. Scalars (0-dim tensors) and what is no tensor need no mark.

    >>> import torch, fastreduce
    >>> class Scaled(torch.nn.Linear):
    ...     def forward(self, x, scale):
    ...         return super().forward(x * scale)
    >>> model = fastreduce.DataParallel(Scaled(3, 2), devices=["cpu", "cpu"])
    >>> model(torch.ones(4, 3), fastreduce.Whole(torch.tensor([1.0, 2.0, 3.0]))).shape
    torch.Size([4, 2])
    """

    value: Any


def sizes_of_shards(rows: int, shares: Sequence[float]) -> list[int]:
    """How many of ``rows`` each shard gets: in proportion to ``shares``, together all of them.

    What is left over by rounding down goes to the largest remainders, the first ones if equal.

    >>> sizes_of_shards(10, [1, 1, 1]), sizes_of_shards(10, [2, 1])
    ([4, 3, 3], [7, 3])
    """
    exact = [rows * share / sum(shares) for share in shares]
    sizes = [int(part) for part in exact]
    by_remainder = sorted(range(len(sizes)), key=lambda i: (sizes[i] - exact[i], i))
    for i in by_remainder[: rows - sum(sizes)]:
        sizes[i] += 1
    return sizes


def _never_a_leaf(tree: Any) -> bool:
    """For pytree's ``is_leaf``: has it take apart dataclasses, except `Whole`, and any mapping,
    list or tuple."""
    kind = type(tree)
    if kind in pytree.SUPPORTED_NODES or isinstance(tree, Whole):
        return False
    if dataclasses.is_dataclass(kind):
        _register_dataclass(kind)
    elif isinstance(tree, Mapping):
        _register_mapping(kind)
    elif isinstance(tree, list | tuple) and not _is_namedtuple(kind):
        _register_sequence(kind)
    return False


def _is_namedtuple(kind: type[Any]) -> bool:
    """Pytree knows these, each by its fields."""
    return hasattr(kind, "_fields")


def _made(kind: type[Any], values: Any) -> Any:
    """``kind(values)``, as from nn.DataParallel, or the values where that cannot be made."""
    try:
        return kind(values)
    except TypeError:  # the constructor wants something else
        return values


def _register_sequence(kind: type[Any]) -> None:
    """Has pytree treat a subclass of list or tuple as it does a list."""

    def with_keys(whole: Any) -> tuple[list[tuple[pytree.KeyEntry, Any]], Any]:
        return [(pytree.SequenceKey(i), value) for i, value in enumerate(whole)], None

    pytree.register_pytree_node(
        kind,
        lambda whole: (list(whole), None),
        lambda parts, _: _made(kind, list(parts)),
        flatten_with_keys_fn=with_keys,
    )


def _register_mapping(kind: type[Any]) -> None:
    """Has pytree treat a mapping, such as a subclass of dict, as it does a dict."""

    def with_keys(whole: Any) -> tuple[list[tuple[pytree.KeyEntry, Any]], Any]:
        return [(pytree.MappingKey(key), value) for key, value in whole.items()], list(whole)

    def apart(whole: Any) -> tuple[list[Any], Any]:
        return list(whole.values()), list(whole)

    def together(parts: Iterable[Any], keys: Any) -> Any:
        return _made(kind, dict(zip(keys, parts, strict=True)))

    pytree.register_pytree_node(kind, apart, together, flatten_with_keys_fn=with_keys)


def _register_dataclass(kind: type[Any]) -> None:
    """Has pytree take a dataclass apart and put it together, as torch's register_dataclass does.

    A ``__post_init__`` computes again what follows from the fields, but the fields stay as given.
    Where ``__init__`` wants something else (an InitVar), it is not called, as by copy.copy.
    """
    fields = [field.name for field in dataclasses.fields(kind) if field.init]
    by_init = set(inspect.signature(kind).parameters) == set(fields)

    def with_keys(whole: Any) -> tuple[list[tuple[pytree.KeyEntry, Any]], Any]:
        names = fields if by_init else _attributes(whole)
        return [(pytree.GetAttrKey(name), getattr(whole, name)) for name in names], names

    def apart(whole: Any) -> tuple[list[Any], Any]:
        parts, names = with_keys(whole)
        return [value for _, value in parts], names

    def together(parts: Iterable[Any], names: Any) -> Any:
        values = dict(zip(names, parts, strict=True))
        whole = kind(**values) if by_init else kind.__new__(kind)  # type: ignore[call-overload]
        for name, value in values.items():
            object.__setattr__(whole, name, value)  # also of a frozen one
        return whole

    pytree.register_pytree_node(kind, apart, together, flatten_with_keys_fn=with_keys)


def _attributes(whole: Any) -> list[str]:
    """Those that are set: fields, also in slots, and others."""
    fields = [field.name for field in dataclasses.fields(whole)]
    names = dict.fromkeys([*fields, *getattr(whole, "__dict__", ())])
    return [name for name in names if hasattr(whole, name)]


def leaves_of(tree: Any) -> tuple[list[Any], Any]:
    """The leaves of a tree of tuples, lists, mappings and dataclasses, and how it is built."""
    return pytree.tree_flatten(tree, is_leaf=_never_a_leaf)


def _is_cut(leaf: Any, batch_dim: int) -> bool:
    return isinstance(leaf, Tensor) and (leaf.dim() > batch_dim or leaf.dim() == 1)


def _dim_of(tensor: Tensor, batch_dim: int) -> int:
    """A vector has one value per example, such as a label, whatever the others' ``batch_dim``."""
    return 0 if tensor.dim() == 1 else batch_dim


def rows_of(tree: Any, batch_dim: int) -> int:
    """The number of examples: the length of all tensors that are cut, where they are cut."""
    leaves, _ = leaves_of(tree)
    batched = [leaf for leaf in leaves if _is_cut(leaf, batch_dim)]
    for leaf in batched:
        if leaf.layout is not torch.strided:
            raise ValueError(
                f"DataParallel: found a tensor of layout {leaf.layout}, which torch cannot cut "
                "into shards; pass its to_dense(), or fastreduce.Whole(tensor) for every replica "
                "to get it whole"
            )
    lengths = {leaf.shape[_dim_of(leaf, batch_dim)] for leaf in batched}
    if not lengths:
        kinds = ", ".join(
            f"a tensor of shape {tuple(leaf.shape)}"
            if isinstance(leaf, Tensor)
            else type(leaf).__name__
            for leaf in leaves
        )
        raise ValueError(
            f"DataParallel: found no tensor to cut into shards ({kinds or 'no argument'}), wanted "
            f"at least one with a dimension {batch_dim}; torch.from_numpy makes one of an array"
        )
    if len(lengths) > 1:
        listed = ", ".join(
            f"{leaf.shape[_dim_of(leaf, batch_dim)]} in {''.join(map(str, path)).lstrip('.')}"
            for path, leaf in pytree.tree_flatten_with_path(tree, is_leaf=_never_a_leaf)[0]
            if _is_cut(leaf, batch_dim)
        )
        raise ValueError(
            f"DataParallel: found different numbers of examples along dimension {batch_dim} "
            f"(vectors along their only one): {listed}; wanted as many everywhere. Mark what every "
            "replica shall get whole: fastreduce.Whole(tensor)"
        )
    rows: int = lengths.pop()
    if rows == 0:
        raise ValueError("DataParallel: found no example in the batch, wanted at least one")
    return rows


def cut(
    tree: Any, sizes: Sequence[int], devices: Sequence[torch.device], batch_dim: int
) -> list[Any]:
    """One tree per size, with that many examples, on that device. Tensors are views if they can."""
    leaves, shape = leaves_of(tree)
    _check_repeatable(leaves, len(sizes))

    def on(device: torch.device, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(device, non_blocking=True)
        return pytree.tree_map_only(
            Tensor, lambda x: x.to(device, non_blocking=True), value, _never_a_leaf
        )

    columns = []
    for leaf in leaves:
        # A single shard is the tensor itself: torch lets no forward pass write to parts of a split.
        if len(sizes) > 1 and _is_cut(leaf, batch_dim):
            parts: Sequence[Any] = leaf.split(list(sizes), _dim_of(leaf, batch_dim))
        else:
            parts = [leaf.value if isinstance(leaf, Whole) else leaf] * len(sizes)
        columns.append([on(device, part) for device, part in zip(devices, parts, strict=True)])
    rows = zip(*columns, strict=True) if columns else [()] * len(sizes)
    return [pytree.tree_unflatten(list(row), shape) for row in rows]


def _check_repeatable(leaves: Sequence[Any], shards: int) -> None:
    for leaf in leaves:
        value = leaf.value if isinstance(leaf, Whole) else leaf
        if shards > 1 and isinstance(value, Iterator):
            raise ValueError(
                f"DataParallel: found a {type(value).__name__} as argument, which the first of "
                f"{shards} shards would use up; wanted what can be read again, such as a list"
            )


def join(outputs: Sequence[Any], sizes: Sequence[int], device: torch.device, batch_dim: int) -> Any:
    """The outputs of all shards, which have so many examples each, as one, on ``device``.

    Tensors are joined along ``batch_dim``, vectors along their only dimension; those without that
    dimension, such as one loss per shard, are stacked. What is no tensor must be the same in all.
    """
    flat = [leaves_of(output) for output in outputs]
    if not any(isinstance(leaf, Tensor) for leaf in flat[0][0]):
        raise ValueError(
            f"DataParallel: forward returned {type(outputs[0]).__name__} without a tensor; wanted "
            "a tensor, or tensors in tuples, lists, dicts or dataclasses"
        )
    for shard, (_, shape) in enumerate(flat):
        if shape != flat[0][1]:
            raise ValueError(
                f"DataParallel: the output of shard {shard} is built as {shape}, but that of shard "
                f"0 as {flat[0][1]}; wanted the same of all, or they cannot be joined"
            )
    columns = zip(*(leaves for leaves, _ in flat), strict=True)
    joined = [_joined(same, sizes, device, batch_dim) for same in columns]
    return pytree.tree_unflatten(joined, flat[0][1])


def _equal(one: Any, other: Any) -> bool:
    both_nan = isinstance(one, float) and isinstance(other, float) and one != one and other != other
    try:
        return one is other or both_nan or bool(one == other)
    except ValueError:  # arrays have no truth value
        return False


def _joined(same: Sequence[Any], sizes: Sequence[int], device: torch.device, batch_dim: int) -> Any:
    first = same[0]
    if not isinstance(first, Tensor):
        if not all(_equal(other, first) for other in same):
            raise ValueError(
                f"DataParallel: the shards' outputs hold {', '.join(map(repr, same))}, which are "
                "no tensors and cannot be joined; wanted tensors, or the same value of all"
            )
        return first
    here = [x.to(device, non_blocking=True) for x in same]
    if _is_cut(first, batch_dim):
        _check_where_the_batch_is(here, sizes, _dim_of(first, batch_dim))
        return torch.cat(here, _dim_of(first, batch_dim))
    return torch.stack(here)


def _check_where_the_batch_is(same: Sequence[Tensor], sizes: Sequence[int], dim: int) -> None:
    wanted = [(size,) for size in sizes]
    if [x.shape[:1] for x in same] == wanted != [x.shape[dim : dim + 1] for x in same]:
        raise ValueError(
            f"DataParallel: forward returned a tensor of shape {tuple(same[0].shape)} for a shard "
            f"of {sizes[0]} examples; wanted these in dimension {dim}, as batch_dim says, not 0: "
            f"return x.movedim(0, {dim}), or take batch_dim=0 and transpose the inputs in forward"
        )
