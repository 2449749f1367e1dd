"""Groups of parameters whose gradients are summed together, in the order in which they come."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fastreduce import _C
from fastreduce.parallel.untraced import untraced

# The sizes of torch's DistributedDataParallel.
FIRST_BUCKET_BYTES, BUCKET_BYTES = 1 << 20, 25 << 20


class Buckets:
    """Joins the replicas' parameters to the module's by autograd, a bucket at a time.

    A bucket is summed when the last gradient of its parameters is there, while the rest of the
    backward pass goes on. A `reduce` takes a list of gradients as it is, so none is copied into a
    flat bucket, and ``param.grad`` has memory of its own. In the first pass every parameter has a
    bucket of its own, which shows the order; from the second on, parameters whose gradients came
    together are summed together.
    Without ``overlap`` there is one bucket, which is summed when all gradients are there.
    """

    def __init__(self, params: Sequence[Tensor], overlap: bool = True):
        self._params = params
        self._overlap = overlap
        # Backward passes usually have the last parameters' gradients first.
        self._usual = list(reversed(range(len(params))))
        self._came: list[int] = []
        self._passes = 0
        self.numbers = [[number] for number in self._usual] if overlap else [self._usual]

    @untraced
    def join(self, memories: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """For each shard, the parameters on its memory; their gradients go to the module's."""
        if torch.is_grad_enabled() and self._overlap:
            self._passes += 1
            if self._passes == 2:
                order = dict.fromkeys([*self._came, *self._usual])  # each once, where it came first
                self.numbers = buckets_of(self._params, list(order))
        found = [[*memory] for memory in memories]
        for number_of_bucket, bucket in enumerate(self.numbers):
            params = [self._params[number] for number in bucket]
            own = [[memory[i] for i in bucket] for memory in memories]
            joined = _C.replicate(params, own, f"SumOfReplicas, bucket {number_of_bucket}")
            if self._passes == 1:
                self._watch(joined[0], bucket)
            for shard, aliases in zip(found, joined, strict=True):
                for number, alias in zip(bucket, aliases, strict=True):
                    shard[number] = alias
        return found

    def _watch(self, aliases: Sequence[Tensor], bucket: list[int]) -> None:
        node = aliases[0].grad_fn
        if node is not None:
            node.register_hook(lambda *_: self._came.extend(bucket))


def buckets_of(params: Sequence[Tensor], order: Sequence[int]) -> list[list[int]]:
    """The numbers of the parameters in this order, in groups of about 25 MiB.

    The first one is small, so that summing begins early.

    >>> params = [torch.empty(1 << 20) for _ in range(9)]
    >>> buckets_of(params, [8, 7, 6, 5, 4, 3, 2, 0, 1])
    [[8], [7, 6, 5, 4, 3, 2, 0], [1]]
    """
    buckets: list[list[int]] = []
    room_bytes = 0
    for number in order:
        if room_bytes <= 0:
            room_bytes = BUCKET_BYTES if buckets else FIRST_BUCKET_BYTES
            buckets.append([])
        buckets[-1].append(number)
        room_bytes -= params[number].nbytes
    return buckets
