"""The networks that `fastreduce train` trains, as modules for images of 28 x 28 bytes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .lenet import CLASSES, INITS, Generator


class Classifier(nn.Sequential):
    """Layers that make logits, float32 ``(n, 10)``, of images, uint8 ``(n, 1, 28, 28)``.

    With ``precision`` "bf16" the layers compute in bfloat16 where `torch.autocast` does so; the
    parameters and the logits are float32.
    """

    precision = "fp32"

    def forward(self, X: Tensor) -> Tensor:
        with torch.autocast(X.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            # Scaled here, on the replica's device, so that one byte per pixel travels, not four.
            logits: Tensor = super().forward(X.float() / 255)  # type: ignore[no-untyped-call]
        return logits.float()


class Residual(nn.Module):
    """Two convolutions and a way around them, which halves the image where the width grows."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *convolution(width_in, width, 3, stride), nn.ReLU(), *convolution(width, width, 3)
        )
        same = width_in == width and stride == 1
        self.skip = (
            nn.Identity() if same else nn.Sequential(*convolution(width_in, width, 1, stride))
        )

    def forward(self, X: Tensor) -> Tensor:
        return F.relu(self.body(X) + self.skip(X))


def convolution(width_in: int, width: int, size: int, stride: int = 1) -> list[nn.Module]:
    return [
        nn.Conv2d(width_in, width, size, stride, size // 2, bias=False),
        nn.BatchNorm2d(width),
    ]


def lenet() -> Classifier:
    """The network of `fastreduce.training.lenet`, with the same parameters in the same order."""
    return Classifier(
        *(nn.Conv2d(1, 20, 3), nn.ReLU(), nn.AvgPool2d(2)),
        *(nn.Conv2d(20, 50, 5), nn.ReLU(), nn.AvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(800, 128), nn.ReLU(), nn.Linear(128, CLASSES)),
    )


def resnet18() -> Classifier:
    """ResNet-18 for small images: a stem of 3 x 3 without pooling, then 8 residual blocks.

    Source: *Dive into Deep Learning*, "Concise Implementation for Multiple GPUs", "A Toy Network".
    """
    widths = (64, 64, 64, 128, 128, 256, 256, 512, 512)
    blocks = [Residual(i, o, stride=1 if i == o else 2) for i, o in pairwise(widths)]
    return Classifier(
        *convolution(1, 64, 3),
        nn.ReLU(),
        *blocks,
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES)),
    )


def mlp() -> Classifier:
    """One hidden layer of 256.

    Source: *Dive into Deep Learning*, "Implementation of Multilayer Perceptrons".
    """
    return Classifier(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, CLASSES))


MODELS: dict[str, Callable[[], Classifier]] = {"lenet": lenet, "resnet18": resnet18, "mlp": mlp}
"""By the name that ``--model`` takes."""


def make(model: str, generator: Generator = None, *, init: str = "kaiming") -> Classifier:
    """Return a network of `MODELS` on the CPU, whose weights are drawn from ``generator``.

    ``init`` is as in `fastreduce.training.initial_params`: weights of layers are drawn in their
    order, biases are zero, and normalization layers begin as torch makes them.

    >>> import torch
    >>> make("mlp")(torch.zeros(3, 1, 28, 28, dtype=torch.uint8)).shape
    torch.Size([3, 10])
    """
    # Their own first values would be drawn from torch's generator, and are not used.
    with torch.random.fork_rng(devices=[]):
        net = MODELS[model]()
    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            INITS[init](module.weight.data, generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return net
