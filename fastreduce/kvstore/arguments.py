"""What is passed to a store, checked before anything is exchanged."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from fastreduce import _C
from fastreduce.arguments import known_op, wraps_others
from fastreduce.kinds import is_number
from fastreduce.kvstore.entry import Entry, Key
from fastreduce.names import listed, meant, shown

KINDS = ("local", "dist_sync", "dist_async")


def check_store(kind: str, op: Any, staleness: Any, timeout_s: float = 1) -> str:
    """The name of ``op``, if all of it makes sense."""
    if kind not in KINDS:
        raise ValueError(f"KVStore: found {shown(kind)}, wanted one of {listed(KINDS, kind)}")
    try:
        name = known_op(op)
    except ValueError:
        wanted = listed(_C.ops(), op)
        raise ValueError(f"KVStore: found op {shown(op)}, wanted one of {wanted}") from None
    if staleness is not None:
        if kind != "dist_async":
            raise ValueError(
                f"KVStore: found staleness {shown(staleness)} with {kind}, which waits for "
                "all ranks; only dist_async has one"
            )
        if type(staleness) is not int or staleness < 0:
            raise ValueError(
                f"KVStore: found staleness {shown(staleness)}, wanted 0, 1, ... or None"
            )
    if not is_number(timeout_s) or not timeout_s > 0:
        raise ValueError(
            f"KVStore: found timeout_s {shown(timeout_s)}, wanted a number of seconds above 0"
        )
    return name


def check_updater(updater: Any) -> object:
    if not callable(updater):
        raise TypeError(
            f"set_updater: found {shown(updater)}, wanted a function (key, update, value)"
        )
    return updater


def check_optimizer(kind: Any, settings: Mapping[str, Any]) -> None:
    if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
        made = isinstance(kind, torch.optim.Optimizer)
        found = f"an optimizer of class {type(kind).__name__}" if made else shown(kind)
        raise TypeError(
            f"set_optimizer: found {found}, wanted a class such as torch.optim.SGD, and its "
            "settings by name"
        )
    parameter = torch.zeros(1)
    try:
        optimizer = kind([parameter], **settings)
    except Exception as error:
        raise ValueError(
            f"set_optimizer: found settings {shown(dict(settings))}, wanted some that "
            f"{kind.__name__} takes ({error})"
        ) from error
    parameter.grad = torch.zeros(1)
    try:
        with contextlib.suppress(AssertionError):  # ``capturable`` is for GPUs, where rows may be
            optimizer.step()
    except Exception as error:
        raise ValueError(
            f"set_optimizer: found {kind.__name__}, whose step() of a gradient raises "
            f"{type(error).__name__} ({error}); wanted one that needs nothing else, such as SGD"
        ) from error


def ranks_of(servers: Sequence[int] | None, size: int) -> list[int]:
    """The ranks that are servers, in ascending order, which says whose rows come first."""
    if servers is None:
        return list(range(size))
    found = list(servers) if isinstance(servers, Sequence) else []
    ranks = {rank for rank in found if type(rank) is int and 0 <= rank < size}
    if not found or len(ranks) < len(found):
        raise ValueError(
            f"KVStore: found servers {shown(servers)}, wanted a list of ranks, 0 to {size - 1}, "
            "each once, or None for all"
        )
    return sorted(found)


def by_key(call: str, key: Any, value: Any) -> dict[Key, Any]:
    """The value of each key; raises TypeError or ValueError where there are none."""
    several = isinstance(key, list | tuple)
    keys = list(key) if several else [key]
    values = value if several else [value]
    for one in keys:
        if not isinstance(one, str | int) or isinstance(one, bool):
            raise TypeError(
                f"{call}: found the key {shown(one)}, wanted a string or an integer, or a list "
                "of them"
            )
    if not keys:
        raise ValueError(f"{call}: found no key, wanted at least one")
    if not isinstance(values, list | tuple) or len(values) != len(keys):
        found = f"{len(values)}" if isinstance(values, list | tuple) else type(values).__name__
        raise ValueError(
            f"{call}: found {len(keys)} keys and, of values, {found}; wanted a list of as many"
        )
    if len(set(keys)) < len(keys):
        raise ValueError(f"{call}: found a key twice in {shown(keys)}, wanted each once")
    return dict(zip(keys, values, strict=True))


def names(keys: Iterable[Key]) -> str:
    return ", ".join(repr(key) for key in keys)


def about(value: Any) -> str:
    return _odd(value) or dense(value.dtype, value.shape)


def _odd(value: Any) -> str | None:
    """What a value is that is no dense tensor with memory of its own."""
    if not isinstance(value, Tensor):
        return type(value).__name__
    if is_lazy(value):
        return "a parameter that no batch has initialized yet"
    if value.is_nested:
        return "a nested tensor"
    if wraps_others(value):
        return f"a {type(value).__name__}, whose values are in other tensors"
    return None if value.layout == torch.strided else f"sparse {dense(value.dtype, value.shape)}"


def dense(dtype: torch.dtype, shape: Sequence[int]) -> str:
    """What `about` says of a dense tensor like this."""
    return f"{str(dtype).removeprefix('torch.')} of shape {tuple(shape)}"


def check_unknown(keys: Iterable[Key], known: Collection[Key]) -> None:
    for key in keys:
        if key in known:
            raise ValueError(f"init: key {key!r} has a value already; push changes it")


def check_new(values: Mapping[Key, Any], known: Collection[Key], op: str) -> None:
    check_unknown(values, known)
    reducible = _C.ops()[op]
    for key, value in values.items():
        if _odd(value):
            raise ValueError(f"init: key {key!r}: found {about(value)}, wanted a dense tensor")
        _check_device(f"init: key {key!r}", value)
        if value.dtype not in reducible:
            wanted = ", ".join(str(x).removeprefix("torch.") for x in reducible)
            raise ValueError(
                f"init: key {key!r}: found {about(value)} with op {op!r}, wanted one of {wanted}"
            )


def like(
    call: str, key: Any, value: Any, entries: Mapping[Key, Entry], priority: Any
) -> dict[Key, list[Tensor]]:
    """By key, the highest priority first, the replicas' tensors, which are like its value."""
    values = by_key(call, key, value)
    found = {key: _like(call, key, x, _entry(call, key, entries)) for key, x in values.items()}
    return {key: found[key] for key in _by_priority(call, list(found), priority)}


def outs(
    key: Any, out: Any, entries: Mapping[Key, Entry], priority: Any
) -> dict[Key, list[Tensor]]:
    """`like`, for what a pull writes into."""
    found = like("pull", key, out, entries, priority)
    for one, values in found.items():
        for replica, x in enumerate(values):
            _check_writable(f"pull: key {one!r}, replica {replica}", x)
    return found


def _check_writable(start: str, out: Tensor) -> None:
    if _overlaps_itself(out):
        raise ValueError(
            f"{start}: found {about(out)} with strides {out.stride()}, whose elements share "
            "memory, wanted one to write into; clone it"
        )
    if out.is_inference() and not torch.is_inference_mode_enabled():
        raise ValueError(
            f"{start}: found a tensor that was made in inference mode, wanted one that may be "
            "written to; clone it"
        )


def _overlaps_itself(x: Tensor) -> bool:
    """Whether elements of a strided tensor may have one place in memory."""
    if not x.numel():
        return False
    reach = 0  # of the dimensions before, which have smaller strides
    for stride, size in sorted((s, n) for s, n in zip(x.stride(), x.shape, strict=True) if n > 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def _like(call: str, key: Key, value: Any, entry: Entry) -> list[Tensor]:
    values = list(value) if isinstance(value, list | tuple) else [value]
    wanted = dense(entry.rows.dtype, entry.shape)
    if not values or value is None:
        raise ValueError(f"{call}: key {key!r}: found no tensor, wanted {wanted}")
    for replica, one in enumerate(values):
        if about(one) != wanted:
            raise ValueError(
                f"{call}: key {key!r}, replica {replica}: found {about(one)}, wanted {wanted}"
            )
        _check_device(f"{call}: key {key!r}, replica {replica}", one)
    return values


def _check_device(where: str, tensor: Tensor) -> None:
    if tensor.device.type not in ("cpu", "cuda"):
        raise ValueError(f"{where}: found a {tensor.device} tensor, wanted cpu or cuda")


def check_rows(key: Key, entries: Mapping[Key, Entry], out: Any, row_ids: Any) -> None:
    """Raise for rows that cannot be pulled into ``out``."""
    start, entry = f"row_sparse_pull: key {key!r}", _entry("row_sparse_pull", key, entries)
    integers = not _odd(row_ids) and row_ids.dtype in (torch.int64, torch.int32)
    if not integers or row_ids.is_meta:
        raise ValueError(
            f"{start}: found row_ids {about(row_ids)}, wanted a dense tensor of int64 or int32 "
            "with values"
        )
    if not entry.shape:
        raise ValueError(f"{start}: found a value without dimensions, wanted one with rows")
    wanted = dense(entry.rows.dtype, (row_ids.numel(), *entry.shape[1:]))
    if about(out) != wanted:
        raise ValueError(f"{start}: found {about(out)} to copy into, wanted {wanted}")
    _check_device(start, out)
    _check_writable(start, out)
    if row_ids.numel() and not entry.shape[0]:
        raise ValueError(f"{start}: found numbers of rows, wanted none: the value has no rows")
    if row_ids.numel() and not (int(row_ids.min()) >= 0 and int(row_ids.max()) < entry.shape[0]):
        raise ValueError(
            f"{start}: found rows {int(row_ids.min())} to {int(row_ids.max())}, wanted 0 to "
            f"{entry.shape[0] - 1}"
        )


def _by_priority(call: str, keys: Sequence[Key], priority: Any) -> list[Key]:
    """The keys in the order of their priorities, the highest first."""
    several = isinstance(priority, list | tuple)
    numbers: Sequence[Any] = priority if several else [priority] * len(keys)
    if not all(map(is_number, numbers)):
        raise TypeError(
            f"{call}: found priority {shown(priority)}, wanted a number, or a list with one per key"
        )
    if any(number != number for number in numbers):
        raise ValueError(
            f"{call}: found priority {shown(priority)}, wanted numbers that have an order, which "
            "nan has not"
        )
    if len(numbers) != len(keys):
        raise ValueError(
            f"{call}: found {len(numbers)} priorities for {len(keys)} keys, wanted as many"
        )
    order = sorted(range(len(keys)), key=lambda i: -numbers[i])
    return [keys[i] for i in order]


def _entry(call: str, key: Key, entries: Mapping[Key, Entry]) -> Entry:
    if key not in entries:
        near = meant((x for x in entries if isinstance(x, str)), key)
        raise KeyError(f"{call}: key {key!r} has no value; init gives it one{near}")
    return entries[key]
