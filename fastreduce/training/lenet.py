"""LeNet, written out as a function of a flat list of parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastreduce.names import listed

# Weight and bias of two convolutions, then of two linear layers.
SHAPES = ((20, 1, 3, 3), (20,), (50, 20, 5, 5), (50,), (128, 800), (128,), (10, 128), (10,))
# For how many steps the book's small weights keep the loss near ln 10, that of a guess. Measured on
# the whole set with the book's batch of 256 and lr of 0.2 on a CPU, 2026-11-21: a running mean fell
# below 2.0 at step 291 to 306 (seeds 0 to 2).
PLATEAU_STEPS = 300
CLASSES = 10
Generator = torch.Generator | None


def _book(weight: Tensor, generator: Generator) -> Tensor:
    return nn.init.normal_(weight, std=0.01, generator=generator)


def _kaiming(weight: Tensor, generator: Generator) -> Tensor:
    return nn.init.kaiming_uniform_(weight, nonlinearity="relu", generator=generator)


INITS: dict[str, Callable[[Tensor, Generator], Tensor]] = {"kaiming": _kaiming, "book": _book}
"""What fills a weight with its first values; biases begin at zero."""


def initial_params(
    generator: Generator = None, *, init: str = "book", dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """Draw LeNet's eight parameters on the CPU; the biases are zero.

    ``init`` says how large the weights are. "book": ``0.01 * randn``, as in the book; the loss then
    stays on a plateau for about PLATEAU_STEPS steps before it falls. "kaiming": uniform with
    variance 2 / fan_in (`torch.nn.init.kaiming_uniform_` for ReLU), so that it falls at once.

    Raises ValueError for another ``init``.

    Source: *Dive into Deep Learning*, "Training on Multiple GPUs", "A Toy Network".

    >>> [tuple(p.shape) for p in initial_params()][:2]
    [(20, 1, 3, 3), (20,)]
    """
    if init not in INITS:
        raise ValueError(f"init: found {init!r}, wanted one of {listed(INITS, init)}")
    params = [torch.zeros(shape, dtype=dtype) for shape in SHAPES]
    for weight in params[::2]:
        INITS[init](weight, generator)
    return params


def get_params(params: Sequence[Tensor], device: torch.device | str) -> list[Tensor]:
    """Copy ``params`` to ``device`` as leaves that require a gradient: one replica.

    The copies never share memory with ``params``, even if these are on ``device`` already.

    Source: *Dive into Deep Learning*, "Training on Multiple GPUs", "Data Synchronization".

    >>> [w] = get_params([torch.ones(2)], "cpu")
    >>> w.requires_grad, w.is_leaf
    (True, True)
    """
    return [p.detach().to(device, copy=True).requires_grad_() for p in params]


def lenet(X: Tensor, params: Sequence[Tensor]) -> Tensor:
    """Return the logits, ``(n, 10)``, of ``n`` images, ``(n, 1, 28, 28)``.

    Images are floats in [0, 1], or uint8, which are scaled to that; ``n`` may be zero.
    ``params`` are the eight tensors of `initial_params`, and set the dtype of the result.

    Source: *Dive into Deep Learning*, "Training on Multiple GPUs", "A Toy Network".

    >>> lenet(torch.zeros(3, 1, 28, 28, dtype=torch.uint8), initial_params()).shape
    torch.Size([3, 10])
    """
    W1, b1, W2, b2, W3, b3, W4, b4 = params
    if X.dtype == torch.uint8:
        # Scaled here, on the replica's device, so that one byte per pixel travels, not four.
        X = X.to(W1.dtype) / 255
    h = F.avg_pool2d(F.relu(F.conv2d(X, W1, b1)), 2)
    h = F.avg_pool2d(F.relu(F.conv2d(h, W2, b2)), 2)
    h = F.relu(F.linear(h.flatten(1), W3, b3))
    return F.linear(h, W4, b4)


def loss(logits: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy *summed* over the shard, 0-dim.

    It is the sum, not the mean, so that shards of different sizes add up to the batch's loss.

    >>> loss(torch.zeros(4, 10), torch.zeros(4, dtype=torch.int64)).isclose(
    ...     4 * torch.tensor(10.0).log())
    tensor(True)
    """
    return F.cross_entropy(logits, y, reduction="sum")
