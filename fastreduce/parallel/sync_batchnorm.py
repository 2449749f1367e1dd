"""BatchNorm over all shards of a batch: mean and variance are those of the whole batch.

Source: S. Ioffe and C. Szegedy, "Batch Normalization" (2015); the name is that of torch's
`nn.SyncBatchNorm`, which needs a process per replica.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

import fastreduce
from fastreduce.parallel.meeting import began_with_gradients, is_shard, meet


class SyncBatchNorm:
    """What replicas need so that their BatchNorm layers normalize with all shards."""

    def __init__(self, modules: Iterable[nn.Module]):
        # Made once, or torch.compile would take them for something new in every step.
        self._forwards = {
            norm: _untraced(functools.partial(_forward, norm.forward, f"BatchNorm layer {name}"))
            for module in modules
            for name, norm in module.named_modules()
            if isinstance(norm, _BatchNorm)
        }

    def __enter__(self) -> None:
        """From here on, layers in threads of `meeting.together` look at all shards."""
        self._before = {norm: vars(norm).get("forward") for norm in self._forwards}
        for norm, forward in self._forwards.items():
            vars(norm)["forward"] = forward

    def __exit__(self, *_: object) -> None:
        for norm, forward in self._before.items():
            del vars(norm)["forward"]
            if forward is not None:
                vars(norm)["forward"] = forward


def _untraced(forward: Any) -> Any:
    """torch.compile cannot trace a meeting. Asking it not to try imports it, which takes a second;
    where nobody has imported it, nobody compiles.
    """
    if "torch._dynamo" not in sys.modules:
        return forward
    return torch._dynamo.disable(forward)  # type: ignore[no-untyped-call]


def sums(parts: Sequence[tuple[Tensor, int]]) -> list[tuple[Tensor, int]]:
    """For each shard, the sum of all shards' tensors and numbers of values."""
    totals = _AllReduce.apply(*(tensor for tensor, _ in parts))  # type: ignore[no-untyped-call]
    count = sum(count for _, count in parts)
    return [(total, count) for total in totals]


class _AllReduce(torch.autograd.Function):
    """One tensor per shard; the sum of all goes to each. So does the sum of all gradients."""

    @staticmethod
    def forward(_: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        totals = [tensor.detach().clone() for tensor in tensors]
        # A few KB per tensor; in the fixed order of "leader", so that the bits do not depend on
        # what is fastest between these devices.
        fastreduce.allreduce(totals, algorithm="leader")
        return tuple(totals)

    @staticmethod
    def backward(_: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        sums: tuple[Tensor, ...] = _AllReduce.apply(*gradients)  # type: ignore[no-untyped-call]
        return sums


def _forward(forward: Any, place: str, *args: Any, **kwargs: Any) -> Any:
    if not is_shard():
        return forward(*args, **kwargs)
    with _BatchStatistics(place):
        return forward(*args, **kwargs)


class _BatchStatistics(TorchFunctionMode):
    """Puts the statistics of the batch into what torch's layer computes with those of a shard."""

    def __init__(self, place: str):
        super().__init__()
        self._place = place

    def __torch_function__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not F.batch_norm or not kwargs["training"]:
            return func(*args, **kwargs)
        _check_recomputed(self._place)
        return _batch_norm(self._place, *args, **kwargs)


def _batch_norm(
    place: str,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    *,
    weight: Tensor | None,
    bias: Tensor | None,
    momentum: float,
    eps: float,
    **_: Any,
) -> Tensor:
    over = [dim for dim in range(input.dim()) if dim != 1]
    shape = [-1 if dim == 1 else 1 for dim in range(input.dim())]
    x = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
    values = x.numel() // x.shape[1]

    # Two meetings: the mean of squares minus the square of the mean would lose digits.
    total, count = meet(place, (x.sum(over), values))
    if count < 2:
        raise ValueError(
            f"DataParallel: {place} has {count} value per channel in the whole batch, wanted more "
            "than one in training"
        )
    mean = total / count
    centered = x - mean.view(shape)
    squares, _ = meet(place, (centered.square().sum(over), values))

    result = centered * (squares / count + eps).rsqrt().view(shape)
    if weight is not None:
        result = result * weight.view(shape)
    if bias is not None:
        result = result + bias.view(shape)
    with torch.no_grad():
        for running, found in ((running_mean, mean), (running_var, squares / (count - 1))):
            if running is not None:
                running.lerp_(found.to(running.dtype), momentum)
    normalized: Tensor = result.to(input.dtype)
    return normalized


def _check_recomputed(place: str) -> None:
    """Checkpointing would compute the layer again in the backward pass, for one shard alone."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    recomputed = hooks and "checkpoint" in getattr(hooks[0], "__qualname__", "")
    if recomputed or (began_with_gradients() and not torch.is_grad_enabled()):
        raise ValueError(
            f"DataParallel: {place} is in training mode inside torch.utils.checkpoint or "
            "torch.no_grad, where sync_batchnorm=True cannot work: a checkpoint computes shards "
            "again one by one. Leave BatchNorm out of it, or put the layer into eval mode"
        )
