"""The trees that arguments and outputs are: tensors in tuples, lists, mappings and dataclasses."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence
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


def is_leaf(tree: Any) -> bool:
    """For pytree: has it take apart dataclasses, except `Whole`, and any mapping, list or tuple.

    A torch.Size has numbers alone, and pytree would make a plain tuple of it.
    """
    kind = type(tree)
    if kind is torch.Size:
        return True
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
    except TypeError:  # its constructor takes other arguments
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
    return pytree.tree_flatten(tree, is_leaf=_never_packed)


def _never_packed(tree: Any) -> bool:
    if isinstance(tree, PackedSequence):
        raise ValueError(
            "DataParallel: found a PackedSequence, whose rows are not those of a batch; wanted the "
            "padded tensor and the lengths: forward can pack them, and unpack what it returns"
        )
    return is_leaf(tree)


def named_leaves(tree: Any) -> list[tuple[str, Any]]:
    """The same leaves, each with its place, such as ".logits[0]"; "" for what is a leaf itself."""
    found, _ = pytree.tree_flatten_with_path(tree, is_leaf=is_leaf)
    return [("".join(map(str, path)), leaf) for path, leaf in found]
