"""Whether replicas still hold the same parameters."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fastreduce.bits import bytes_of


class ReplicasDiffer(RuntimeError):
    """Two replicas hold different parameters, so they no longer train one model."""


def check_replicas(
    device_params: Sequence[Sequence[Tensor]], names: Sequence[str] | None = None
) -> None:
    """Check that all replicas hold the same bits; ``names`` are the parameters', for the message.

    Raises ReplicasDiffer, which names the first replica and parameter that differ from
    replica 0's. Bits, not values: two NaNs agree, 0.0 and -0.0 do not.

    >>> check_replicas([[torch.ones(2)], [torch.ones(2)]])
    """
    for replica, params in enumerate(device_params[1:], start=1):
        for index, (own, first) in enumerate(zip(params, device_params[0], strict=True)):
            own_bits, first_bits = (bytes_of(p.cpu()) for p in (own, first))
            if not torch.equal(own_bits, first_bits):
                differ = (own_bits != first_bits).view(own.numel(), -1).any(1).sum().item()
                name = names[index] if names else index
                raise ReplicasDiffer(
                    f"replica {replica}, parameter {name}: found {differ} of {own.numel()} "
                    "elements that differ from replica 0's, wanted the same bits in all replicas; "
                    "an allreduce has not left the same sums everywhere, or something else wrote "
                    "to one replica's parameters"
                )
