"""The bits of a tensor."""

from __future__ import annotations

import torch
from torch import Tensor


def bytes_of(tensor: Tensor) -> Tensor:
    """The bytes of its elements in their order, a vector of uint8: the same memory if they lie so.

    >>> bytes_of(torch.tensor([[1, 2]], dtype=torch.int16)).tolist()
    [1, 0, 2, 0]
    """
    # Of views that torch conjugates or negates only when it reads them, the values.
    values = tensor.detach().resolve_conj().resolve_neg().contiguous()
    # One of at most one element may have any strides, with which torch views no bytes.
    return values.as_strided((values.numel(),), (1,)).view(torch.uint8)
