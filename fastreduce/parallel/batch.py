"""Cuts a batch into one shard per replica."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Proxy
from torch.utils import _pytree as pytree

from fastreduce.parallel.trees import Whole, is_leaf, leaves_of, named_leaves

# How many tensors of each length an error names: a batch of images may come with hundreds of boxes.
PLACES_SHOWN = 3


def sizes_of_shards(rows: int, shares: Sequence[float]) -> list[int]:
    """How many of ``rows`` each shard gets: in proportion to ``shares``, together all of them.

    What is left over by rounding down goes to the largest remainders, the first ones if equal; but
    first of all to the first shard if it is empty: its buffers and attributes are those that stay.

    >>> sizes_of_shards(10, [1, 1, 1]), sizes_of_shards(10, [2, 1])
    ([4, 3, 3], [7, 3])
    """
    exact = [rows * share / sum(shares) for share in shares]
    sizes = [int(part) for part in exact]
    by_remainder = sorted(
        range(len(sizes)), key=lambda i: (i > 0 or sizes[0] > 0, sizes[i] - exact[i], i)
    )
    for i in by_remainder[: rows - sum(sizes)]:
        sizes[i] += 1
    return sizes


def is_cut(leaf: Any, batch_dim: int) -> bool:
    return isinstance(leaf, Tensor) and (leaf.dim() > batch_dim or leaf.dim() == 1)


def dim_of(tensor: Tensor, batch_dim: int) -> int:
    """A vector has one value per example, such as a label, whatever the others' ``batch_dim``."""
    return 0 if tensor.dim() == 1 else batch_dim


def rows_of(tree: Any, batch_dim: int) -> int:
    """The number of examples: the length of all tensors that are cut, where they are cut."""
    leaves, _ = leaves_of(tree)
    batched = [leaf for leaf in leaves if is_cut(leaf, batch_dim)]
    for leaf in batched:
        if leaf.layout is not torch.strided or leaf.is_nested:
            nested = "nested " if leaf.is_nested else ""
            raise ValueError(
                f"DataParallel: found a {nested}tensor of layout {leaf.layout}, which torch cannot "
                "cut into shards; pass its to_dense(), its to_padded_tensor(0.0) if it is nested, "
                "or fastreduce.Whole(tensor) for every replica to get it whole"
            )
    lengths = {leaf.shape[dim_of(leaf, batch_dim)] for leaf in batched}
    if not lengths:
        if any(isinstance(leaf, Proxy) for leaf in leaves):
            raise ValueError(
                "DataParallel: torch.fx cannot trace how a batch is cut; wanted the bare module: "
                "torch.fx.symbolic_trace(model.module)"
            )
        kinds = ", ".join(
            f"a tensor of shape {tuple(leaf.shape)}"
            if isinstance(leaf, Tensor)
            else type(leaf).__name__
            for leaf in leaves
        )
        raise ValueError(
            f"DataParallel: found no tensor to cut into shards ({kinds or 'no argument'}), wanted "
            f"at least one with a dimension {batch_dim}, or such in tuples, lists, dicts or "
            "dataclasses; torch.from_numpy makes one of an array. From a list of other objects, "
            "such as graphs, forward can pick its shard's examples by the numbers of a "
            "torch.arange that is passed with it"
        )
    if len(lengths) > 1:
        advice = _of_lists(tree, lengths, batch_dim)
        raise ValueError(_differing(named_leaves(tree), batch_dim, advice))
    rows: int = lengths.pop()
    if rows == 0:
        raise ValueError("DataParallel: found no example in the batch, wanted at least one")
    return rows


def _of_lists(tree: Any, lengths: set[int], batch_dim: int) -> str:
    """What to do if a list is why a tree with tensors of these ``lengths`` cannot be cut."""
    for found in pytree.tree_leaves(tree, is_leaf=lambda x: isinstance(x, list)):
        if isinstance(found, list):
            inside = [x for x in leaves_of(found)[0] if is_cut(x, batch_dim)]
            own = {x.shape[dim_of(x, batch_dim)] for x in inside}
            if len(own) > 1 or len(found) in lengths - own:
                return (
                    f". A list with an entry per example, such as this of {len(found)}, cannot be "
                    f"cut: stack its tensors, or pass torch.arange({len(found)}) with "
                    "fastreduce.Whole(list), and have forward pick the examples of its shard"
                )
    return ""


def _differing(leaves: Sequence[tuple[str, Any]], batch_dim: int, advice: str) -> str:
    cut = [(place.lstrip("."), leaf) for place, leaf in leaves if is_cut(leaf, batch_dim)]
    counts = [leaf.shape[dim_of(leaf, batch_dim)] for _, leaf in cut]
    shown = [i for i, n in enumerate(counts) if counts[:i].count(n) < PLACES_SHOWN]
    listed = ", ".join(f"{counts[i]} in {cut[i][0]}" for i in shown)
    if others := len(cut) - len(shown):
        listed += f", and {others} more tensors"
    advice = advice or _of_another_dim([leaf.shape for _, leaf in cut], batch_dim)
    advice = advice or next(
        (
            f". {place} has {counts[0]} in dimension {leaf.shape.index(counts[0])}: pass it with "
            f"these in dimension {batch_dim}, and have forward move them back"
            for n, (place, leaf) in zip(counts, cut, strict=True)
            if n != counts[0] in leaf.shape
        ),
        "",
    )
    return (
        f"DataParallel: found different numbers of examples along dimension {batch_dim} (vectors "
        f"along their only one): {listed}; wanted as many everywhere{advice}. Mark what every "
        "replica shall get whole: fastreduce.Whole(tensor)"
    )


def warn_of_lists(arguments: Iterable[Any], rows: int) -> None:
    """Warn of lists that seem to have an entry per example: every shard gets all of them."""
    if (found := next(_per_example(arguments, rows), None)) is not None:
        warnings.warn(
            f"DataParallel: found a {type(found).__name__} of {rows} {type(found[0]).__name__} for "
            f"{rows} examples. Every replica gets the whole of it, so that its first entries are "
            "not those of a later shard's examples. If they belong to examples, pass a tensor, or "
            f"torch.arange({rows}) with fastreduce.Whole({type(found).__name__}), and have forward "
            "pick those of its shard; if not, fastreduce.Whole says so",
            stacklevel=5,
        )


def _per_example(values: Iterable[Any], rows: int) -> Iterator[Any]:
    for value in values:
        if isinstance(value, dict):
            yield from _per_example(value.values(), rows)
        elif type(value) in (list, tuple):
            wanted = str if isinstance(value, tuple) else object  # a tuple of numbers is a size
            leaves = pytree.tree_leaves(value) if len(value) == rows else []
            if leaves and not any(isinstance(x, Tensor | Whole | bool | None) for x in leaves):
                if all(isinstance(x, wanted) for x in value):
                    yield value
            else:
                yield from _per_example(value, rows)


def _of_another_dim(shapes: Sequence[Sequence[int]], batch_dim: int) -> str:
    """Which dimension has as many in all tensors, as those of recurrent layers have."""
    matrices = [shape for shape in shapes if len(shape) > 1]
    for dim in range(min(map(len, matrices), default=0)):
        lengths = {shape[dim if len(shape) > 1 else 0] for shape in shapes}
        if len(lengths) == 1 and dim != batch_dim:
            return (
                f". All have {lengths.pop()} in dimension {dim}: if these are the examples, "
                f"take batch_dim={dim}"
            )
    return ""


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
            Tensor, lambda x: x.to(device, non_blocking=True), value, is_leaf
        )

    columns = []
    for leaf in leaves:
        # A single shard is the tensor itself: torch lets no forward pass write to parts of a split.
        if len(sizes) > 1 and is_cut(leaf, batch_dim):
            parts: Sequence[Any] = leaf.split(list(sizes), dim_of(leaf, batch_dim))
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
