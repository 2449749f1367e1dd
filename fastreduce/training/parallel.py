"""One step of data-parallel training over replicas, which may share devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

import fastreduce

from .lenet import lenet, loss

Device = torch.device | str
Allreduce = Callable[[list[list[Tensor]]], object]
"""Leaves the sum of all replicas' tensors in each of them: one list of tensors per replica."""


def split_batch(
    X: Tensor, y: Tensor, devices: Sequence[Device]
) -> tuple[list[Tensor], list[Tensor]]:
    """Divide the rows of ``X`` and ``y`` among ``devices``, in order, each row once.

    Sizes differ by at most one; with fewer rows than devices the last shards are empty.
    The same device may be named several times.

    Raises ValueError for no device and for ``X`` and ``y`` of different lengths.

    Source: *Dive into Deep Learning*, "Training on Multiple GPUs", "Distributing Data".

    >>> X_shards, _ = split_batch(torch.arange(5), torch.arange(5), ["cpu", "cpu"])
    >>> [shard.tolist() for shard in X_shards]
    [[0, 1, 2], [3, 4]]
    """
    if not devices:
        raise ValueError("split_batch: found no device, wanted at least one")
    if len(X) != len(y):
        raise ValueError(f"split_batch: found {len(X)} rows of X and {len(y)} of y, wanted as many")

    def deal(rows: Tensor) -> list[Tensor]:
        shards = rows.tensor_split(len(devices))
        return [shard.to(d, non_blocking=True) for shard, d in zip(shards, devices, strict=True)]

    return deal(X), deal(y)


def loop_allreduce(gradients: list[list[Tensor]]) -> None:
    """Sum with the book's loop over the parameters, which `fastreduce.allreduce` replaces.

    Replica 0 adds up the others' tensors, then the sum is copied back to each.

    Source: *Dive into Deep Learning*, "Training on Multiple GPUs", "Data Synchronization".

    >>> a, b = torch.tensor([1.0]), torch.tensor([2.0])
    >>> loop_allreduce([[a], [b]])
    >>> a, b
    (tensor([3.]), tensor([3.]))
    """
    for data in zip(*gradients, strict=True):
        for other in data[1:]:
            data[0][:] += other.to(data[0].device)
        for other in data[1:]:
            other[:] = data[0].to(other.device)


def sgd(params: Sequence[Tensor], gradients: Sequence[Tensor], lr: float, batch_size: int) -> None:
    """Take one step of plain SGD, in place: ``lr / batch_size`` times the summed gradient.

    >>> w = torch.ones(1)
    >>> sgd([w], [torch.tensor([4.0])], lr=0.5, batch_size=2)
    >>> w.item()
    0.0
    """
    with torch.no_grad():
        for p, gradient in zip(params, gradients, strict=True):
            p.sub_(gradient, alpha=lr / batch_size)


def train_batch(
    X: Tensor,
    y: Tensor,
    device_params: Sequence[Sequence[Tensor]],
    devices: Sequence[Device],
    lr: float,
    *,
    allreduce: Allreduce = fastreduce.allreduce,
) -> list[Tensor]:
    """Train all replicas on one batch: forward, backward, allreduce, update.

    ``X`` holds images as `lenet` takes them and ``y`` int64 labels, ``(n,)``; ``device_params[i]``
    is the replica on ``devices[i]``. All gradients of all replicas go through one call of
    ``allreduce``. The step is ``lr / n`` times the gradient of the summed loss, however the batch
    was split. Returns each shard's summed loss, detached, on its device; it is not read here,
    because reading waits for the device.

    Raises ValueError as `split_batch` does and for an empty batch, and what ``allreduce`` raises.

    Source: *Dive into Deep Learning*, "Training on Multiple GPUs", "Training".

    >>> from fastreduce.training import get_params, initial_params
    >>> devices = ["cpu", "cpu"]
    >>> replicas = [get_params(initial_params(), d) for d in devices]
    >>> X, y = torch.rand(5, 1, 28, 28), torch.tensor([0, 1, 2, 3, 4])
    >>> len(train_batch(X, y, replicas, devices, lr=0.1, allreduce=loop_allreduce))
    2
    """
    X_shards, y_shards = split_batch(X, y, devices)
    if not len(X):
        raise ValueError("train_batch: found an empty batch, wanted at least one example")
    losses = [
        loss(lenet(X_shard, params), y_shard)
        for X_shard, y_shard, params in zip(X_shards, y_shards, device_params, strict=True)
    ]
    # One call for all replicas: autograd then runs different devices at the same time.
    flat = torch.autograd.grad(losses, [p for params in device_params for p in params])
    count = len(device_params[0])
    gradients = [list(flat[i : i + count]) for i in range(0, len(flat), count)]
    allreduce(gradients)
    for params, summed in zip(device_params, gradients, strict=True):
        sgd(params, summed, lr, len(X))
    return [shard_loss.detach() for shard_loss in losses]


@torch.no_grad()
def accuracy(
    X: Tensor,
    y: Tensor,
    device_params: Sequence[Sequence[Tensor]],
    devices: Sequence[Device],
    *,
    batch_size: int = 256,
) -> float:
    """Return the share of ``X`` that is classified as ``y``; each replica classifies its shard.

    ``batch_size`` is what one replica takes at a time. Raises ValueError for no image at all.

    >>> from fastreduce.training import get_params, initial_params
    >>> bias_for_3 = [*initial_params()[:7], torch.eye(10)[3]]
    >>> X, y = torch.zeros(4, 1, 28, 28), torch.tensor([3, 3, 3, 1])
    >>> accuracy(X, y, [get_params(bias_for_3, "cpu")] * 2, ["cpu"] * 2)
    0.75
    """
    if not len(X):
        raise ValueError("accuracy: found no image, wanted at least one")
    correct = [torch.zeros((), dtype=torch.int64, device=d) for d in devices]
    rows = batch_size * len(devices)
    for X_batch, y_batch in zip(torch.split(X, rows), torch.split(y, rows), strict=True):
        shards = zip(*split_batch(X_batch, y_batch, devices), device_params, correct, strict=True)
        for X_shard, y_shard, params, count in shards:
            count += (lenet(X_shard, params).argmax(1) == y_shard).sum()
    return sum(int(count) for count in correct) / len(X)
