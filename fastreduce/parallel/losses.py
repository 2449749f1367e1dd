"""Makes of the shards' losses that of the whole batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class NonFiniteLoss(ValueError):
    """The loss of a shard, or with None the sum of all shards', is ``value``: NaN or infinite."""

    def __init__(self, value: float, shard: int | None, where: str) -> None:
        what = "sum of all shards' losses" if shard is None else f"loss of shard {shard}"
        super().__init__(f"{where}: the {what} is {value}, wanted a finite number")
        self.value, self.shard = value, shard


def combine(losses: Sequence[Any], sizes: Sequence[int], reduction: str) -> list[Tensor]:
    """Weigh the shards' losses so that their sum is the loss of the whole batch.

    A loss is a tensor of one element, whose ``reduction`` over the shard's examples (``sizes``) is
    "mean" (or "batchmean", as `nn.KLDivLoss` calls it) or "sum"; or a pair of a sum and its weight
    (a number of tokens), whose quotient over the whole batch is the loss. Returns 0-dim tensors.
    """
    if reduction not in ("mean", "batchmean", "sum"):
        raise ValueError(f"backward: found reduction {reduction!r}, wanted 'mean' or 'sum'")
    pairs = [isinstance(loss, tuple) and len(loss) == 2 for loss in losses]
    values = [loss[0] for loss in losses] if all(pairs) else list(losses)
    for shard, value in enumerate(values):
        _check(shard, value)
    if all(pairs):
        total = sum(float(weight) for _, weight in losses)
        if not total > 0:
            raise ValueError(
                f"backward: the weights of all shards' losses add up to {total}, wanted a sum "
                "above 0"
            )
        factors = [1 / total] * len(values)
    else:
        rows = sum(sizes)
        factors = [1.0 if reduction == "sum" else size / rows for size in sizes]
    values = [value.reshape(()) if value.dim() else value for value in values]
    return [x if f == 1.0 else x * f for x, f in zip(values, factors, strict=True)]


def scaled_by_tensor(loss: Any) -> bool:
    """Whether the last operation on a loss was what `torch.amp.GradScaler.scale` does.

    That is a multiplication by a float32 tensor that does not train; numbers are float64 there.
    """
    value = loss[0] if isinstance(loss, tuple) else loss
    if value.grad_fn is None or value.grad_fn.name() != "MulBackward0":
        return False
    factor = value.grad_fn._saved_other
    return factor is not None and factor.dtype == torch.float32 and not factor.requires_grad


def total(losses: Sequence[Tensor], device: torch.device, look: bool) -> Tensor:
    """The sum of what `combine` returned, detached, on ``device``.

    Raises NonFiniteLoss if it is told to ``look``.
    """
    here = [loss.detach().to(device) for loss in losses]
    found = here[0] if len(here) == 1 else torch.stack(here).sum()
    # On a GPU, looking at the value would wait for all its work.
    if look and device.type == "cpu" and not math.isfinite(found.item()):
        shard = next((i for i, x in enumerate(here) if not math.isfinite(x.item())), None)
        raise NonFiniteLoss(found.item(), shard, "backward, before any gradient was computed")
    return found


def coarsest_eps(loss: Tensor) -> float:
    """The relative distance of neighbours in the least exact dtype that the loss went through.

    A float16 loss that a GradScaler has scaled is float32 and no more exact than before. Only what
    has one element is looked at: the errors of the elements that a loss is a sum of are smaller.
    """
    found, seen, nodes = torch.finfo(loss.dtype).eps, set[Any](), [loss.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        results = [x for x in node._input_metadata if math.prod(x.shape) == 1]
        dtypes = [x.dtype for x in results if x.dtype.is_floating_point]
        found = max([found, *(torch.finfo(dtype).eps for dtype in dtypes)])
        if results:
            nodes += [before for before, _ in node.next_functions]
    return found


def compared(whole: Tensor, found: Tensor, eps: float) -> bool:
    """Check that the shards' losses make that of the whole batch: means of means go unnoticed.

    ``eps`` is the `coarsest_eps` of a shard's. Returns False where a loss is not finite, so that
    nothing can be said.
    """
    if not (whole.isfinite() and found.isfinite()):
        return False
    tolerance = eps**0.5
    if not torch.allclose(whole, found, rtol=tolerance, atol=tolerance):
        raise ValueError(
            f"backward: the loss of the whole batch is {whole.item():.6g}, but the shards' "
            f"make {found.item():.6g}, so it is not their mean over examples (or sum, with "
            'reduction="sum"), or it draws random numbers; let the loss function return a sum and '
            "its weight, such as a number of tokens, or call loss_fn(model(X), y).backward()"
        )
    return True


def _check(shard: int, loss: Any) -> None:
    wanted = (
        "wanted a tensor of one element, or a pair of one and its weight, the same of all shards"
    )
    if not isinstance(loss, Tensor):
        raise TypeError(f"backward: the loss of shard {shard} is {type(loss).__name__}; {wanted}")
    if loss.numel() != 1:
        raise ValueError(
            f"backward: the loss of shard {shard} has shape {tuple(loss.shape)}; {wanted}"
        )
    if not loss.requires_grad:
        raise ValueError(
            f"backward: the loss of shard {shard} depends on no parameter that requires grad; "
            "was it computed under torch.no_grad(), detached, or are all parameters frozen?"
        )
