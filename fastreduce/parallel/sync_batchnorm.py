"""BatchNorm over all shards of a batch: mean and variance are those of the whole batch.

Source: S. Ioffe and C. Szegedy, "Batch Normalization" (2015); the name is that of torch's
`nn.SyncBatchNorm`, which needs a process per replica.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

import fastreduce
from fastreduce.parallel.meeting import began_with, is_shard, meet, saved_tensors_hooks
from fastreduce.parallel.streams import Streams
from fastreduce.parallel.untraced import untraced


class SyncBatchNorm:
    """What replicas need so that their BatchNorm layers normalize with all shards."""

    def __init__(self, modules: Iterable[nn.Module]):
        # Made once, since torch.compile would compile again for new functions in every step.
        self._forwards = {
            norm: untraced(functools.partial(_forward, norm.forward, f"BatchNorm layer {name}"))
            for module in modules
            for name, norm in module.named_modules()
            if isinstance(norm, _BatchNorm)
        }
        self._before: dict[nn.Module, Any] = {}  # what `enter` has replaced

    def enter(self) -> None:
        """From here on, layers in threads of `meeting.together` look at all shards."""
        self._before = {norm: vars(norm).get("forward") for norm in self._forwards}
        for norm, forward in self._forwards.items():
            vars(norm)["forward"] = forward

    def leave(self) -> None:
        """Undo what `enter` has done, if only in part; also if it has been undone in part."""
        for norm, forward in self._before.items():
            if forward is None:
                vars(norm).pop("forward", None)
            else:
                vars(norm)["forward"] = forward
        self._before = {}


def sums(parts: Sequence[tuple[Tensor, int]]) -> list[tuple[Tensor, int]]:
    """For each shard, the sum of all shards' tensors and numbers of values."""
    totals = _AllReduce.apply(*(tensor for tensor, _ in parts))  # type: ignore[no-untyped-call]
    count = sum(count for _, count in parts)
    return [(total, count) for total in totals]


class _AllReduce(torch.autograd.Function):
    """One tensor per shard; the sum of all goes to each. So does the sum of all gradients."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.streams = Streams(tensor.device for tensor in tensors)
        totals = [tensor.detach().clone() for tensor in tensors]
        # The tensors have a few KB. The order of "leader" is fixed, so the bits do not depend on
        # what is fastest between these devices.
        fastreduce.allreduce(totals, algorithm="leader")
        return tuple(totals)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        with ctx.streams.current():
            sums: tuple[Tensor, ...] = _AllReduce.apply(*gradients)  # type: ignore[no-untyped-call]
        return sums


class _Moments(torch.autograd.Function):
    """Mean and variance of each channel. torch.var_mean takes twice as long, and its gradient five
    times as long (2 Xeon cores, torch 2.13, 2026-11-22).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        over = [dim for dim in range(x.dim()) if dim != 1]
        mean = x.mean(over)
        variance = (x - _along(mean, x)).square_().mean(over)
        ctx.save_for_backward(x, mean)
        return mean, variance

    @staticmethod
    def backward(ctx: Any, of_mean: Tensor, of_variance: Tensor) -> Tensor:
        x, mean = ctx.saved_tensors
        values = x.numel() // x.shape[1]
        scale = of_variance * (2 / values)
        return _affine(x, scale, of_mean / values - mean * scale)


def _affine(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """``x * scale + shift`` for each channel, in one pass over memory.

    torch.addcmul takes up to three times as long, and its gradient half as long again (one core of
    an AMD EPYC, family 26 model 2, torch 2.13, 2026-11-30). But the gradient of F.batch_norm on the
    CPU is wrong where a dimension has one element only, such as a batch of one example, and the
    gradient that comes has other strides than a tensor usually has there (torch 2.13 and 2.15).
    """
    if 1 in x.shape:
        return torch.addcmul(_along(shift, x), x, _along(scale, x))
    mean, variance = torch.zeros_like(scale), torch.ones_like(scale)
    # Not F.batch_norm, which refuses this eps in torch 2.11.
    return torch.batch_norm(
        *(x, scale, shift, mean, variance),
        training=False,
        momentum=0.0,
        eps=0.0,
        cudnn_enabled=torch.backends.cudnn.enabled,
    )


def _along(channels: Tensor, x: Tensor) -> Tensor:
    return channels.view([-1 if dim == 1 else 1 for dim in range(x.dim())])


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
    x = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
    values = x.numel() // x.shape[1]

    # Two meetings: the mean of squares minus the square of the mean would lose digits.
    mean, variance = _Moments.apply(x)  # type: ignore[no-untyped-call]
    total, count = meet(place, (mean * values, values))
    if count < 2:
        raise ValueError(
            f"DataParallel: {place} has {count} value per channel in the whole batch, wanted more "
            "than one in training"
        )
    whole = total / count
    squares, _ = meet(place, ((variance + (mean - whole).square()) * values, values))

    scale = (squares / count + eps).rsqrt()
    if weight is not None:
        scale = scale * weight
    shift = -whole * scale
    if bias is not None:
        shift = shift + bias
    result = _affine(x, scale, shift)
    with torch.no_grad():
        for running, found in ((running_mean, whole), (running_var, squares / (count - 1))):
            if running is not None:
                running.lerp_(found.to(running.dtype), momentum)
    normalized: Tensor = result.to(input.dtype)
    return normalized


def _check_recomputed(place: str) -> None:
    """Checkpointing would compute the layer again in the backward pass, for one shard alone."""
    gradients, outer_hooks = began_with()
    hooks = saved_tensors_hooks()
    recomputed = hooks and "checkpoint" in getattr(hooks[0], "__qualname__", "")
    if (recomputed and hooks != outer_hooks) or (gradients and not torch.is_grad_enabled()):
        raise ValueError(
            f"DataParallel: {place} is in training mode inside torch.utils.checkpoint or "
            "torch.no_grad, where sync_batchnorm=True cannot work: a checkpoint computes shards "
            "again one by one. Leave BatchNorm out of it, or put the layer into eval mode"
        )
