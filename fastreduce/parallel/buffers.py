"""Buffers of a module: copies for the shards of a batch, and their values if one raises."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._prims_common import compute_required_storage_length
from torch.nn.modules.batchnorm import _NormBase

from fastreduce.parallel.draws import capturing
from fastreduce.parallel.structure import Slot

_ALIGNMENT_BYTES = 16  # of complex128, the largest dtype


@contextmanager
def restored_if_it_raises(buffers: Sequence[Tensor]) -> Iterator[None]:
    # A CUDA graph would make these copies in every replay, and a replay raises nothing.
    before = [] if capturing() else [buffer.clone() for buffer in buffers]
    try:
        yield
    except BaseException:
        with torch.inference_mode():  # where buffers that were made in this mode can be written too
            for buffer, values in zip(buffers, before, strict=False):
                buffer.data.copy_(values)  # .data: graphs of earlier passes may hold the buffer
        raise


def copies(buffers: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """A copy of each. Those of overlapping buffers overlap: forward may write to one, read another.

    Modules may also share a buffer, which is then more than once in the list.
    """
    by_storage = defaultdict(list)
    for buffer in {id(buffer): buffer for buffer in buffers}.values():
        by_storage[_storage(buffer)].append(buffer)
    made = {}
    for views in by_storage.values():
        for overlapping in [views] if len(views) == 1 else _overlapping(views):
            made.update(_copied(overlapping, device))
    return [made[id(buffer)] for buffer in buffers]


def warn_of_differing(
    net: nn.Module, slots: Sequence[Slot], shards: Sequence[Sequence[Tensor]]
) -> None:
    """Warn of buffers that the shards of a batch have made different, as a queue of their outputs.

    Not of running statistics, which are known to be those of the first shard.

    Args:
        slots: the places of the buffers in ``net``.
        shards: for each, the buffers that it has left there.
    """
    modules = {id(module._buffers): (path, module) for path, module in net.named_modules()}
    names = []
    for (holder, name), first, *others in zip(slots, *shards, strict=True):
        path, module = modules.get(id(holder), ("", None))  # forward may have replaced it
        alike = isinstance(module, _NormBase) or all(_alike(first, other) for other in others)
        if not alike:
            names.append(f"{path}.{name}" if path else name)
    if names:
        more = f" (and of {len(names) - 1} more)" if len(names) > 1 else ""
        warnings.warn(
            f"DataParallel: forward has made other values of buffer {names[0]}{more} in each shard "
            "of the batch. The model keeps those of the first shard, so what the others have put "
            "there is lost; have forward return it, and write to the buffer after the pass",
            stacklevel=2,
        )


def _alike(first: Any, other: Any) -> bool:
    if not (isinstance(first, Tensor) and isinstance(other, Tensor)):
        return type(first) is type(other)
    if first.shape != other.shape:
        return False
    try:  # on different devices the last bits may differ
        return torch.allclose(first, other.to(first.device), equal_nan=True)
    except RuntimeError:  # sparse ones, FakeTensors and such cannot be compared
        return True


def _storage(tensor: Tensor) -> int:
    """What is equal for tensors of one storage. Those with none (sparse, in transforms of
    torch.func) stand for themselves, as do conjugate and negative views."""
    try:
        alone = tensor.is_conj() or tensor.is_neg()
        return id(tensor) if alone else tensor.untyped_storage()._cdata
    except NotImplementedError:
        return id(tensor)


def _extent_bytes(view: Tensor) -> tuple[int, int]:
    """Where in its storage it begins and ends."""
    begin = int(view.storage_offset())
    end = compute_required_storage_length(view.shape, view.stride(), begin)
    return begin * view.element_size(), end * view.element_size()


def _overlapping(views: Iterable[Tensor]) -> list[list[Tensor]]:
    """Groups of these tensors of one storage; no memory belongs to two groups.

    A storage may be much larger: that of a file, in which all parameters lie.
    """
    groups: list[list[Tensor]] = []
    reached = 0
    for view in sorted(views, key=_extent_bytes):
        begin, end = _extent_bytes(view)
        if groups and begin < reached:
            groups[-1].append(view)
        else:
            groups.append([view])
        reached = max(reached, end)
    return groups


def _copied(overlapping: Sequence[Tensor], device: torch.device) -> dict[int, Tensor]:
    if len(overlapping) == 1:
        view = overlapping[0]
        return {id(view): view.to(device, copy=True, non_blocking=True)}
    extents = [_extent_bytes(view) for view in overlapping]
    first = extents[0][0] // _ALIGNMENT_BYTES * _ALIGNMENT_BYTES
    part = overlapping[0].untyped_storage()[first : max(end for _, end in extents)]
    memory = torch.UntypedStorage(part.nbytes(), device=device)  # type: ignore[no-untyped-call]
    memory.copy_(part, non_blocking=True)
    return {
        id(view): torch.empty(0, dtype=view.dtype, device=device).set_(
            memory, (begin - first) // view.element_size(), view.shape, view.stride()
        )
        for view, (begin, _) in zip(overlapping, extents, strict=True)
    }
