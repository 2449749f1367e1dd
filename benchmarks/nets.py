"""Models that benchmarks/data_parallel.py trains, with random data, and shapes of known models."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from fastreduce.training.lenet import SHAPES as LENET
from fastreduce.training.models import Residual, convolution

Task = tuple[nn.Module, Tensor, Tensor]
Shapes = list[tuple[int, ...]]


class Tagger(nn.Sequential):
    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens).transpose(1, 2)  # where cross_entropy looks for classes


def net_of(model: str) -> nn.Module:
    relu, half = nn.ReLU(), nn.AvgPool2d(2)
    if model == "LeNet":
        convs = [nn.Conv2d(1, 20, 3), relu, half, nn.Conv2d(20, 50, 5), relu, half, nn.Flatten()]
        return nn.Sequential(*convs, nn.Linear(800, 128), relu, nn.Linear(128, 10))
    if model == "MLP":
        hidden = [x for i in (784, *[1024] * 4) for x in (nn.Linear(i, 1024), relu)]
        return nn.Sequential(*hidden, nn.Linear(1024, 10))
    if model == "CNN":
        first = [*convolution(3, 32, 3), relu, *convolution(32, 32, 3), relu, half]
        then = [*convolution(32, 64, 3), relu, *convolution(64, 64, 3), relu, half, nn.Flatten()]
        return nn.Sequential(*first, *then, nn.Linear(64 * 8 * 8, 10))
    if model == "ResNet-18":  # the book's, for small images
        widths = (64, 64, 64, 128, 128, 256, 256, 512, 512)
        blocks = [Residual(i, o, 1 if i == o else 2) for i, o in pairwise(widths)]
        end = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)]
        return nn.Sequential(*convolution(3, 64, 3), relu, *blocks, *end)
    layer = nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.0, batch_first=True)
    layers = nn.TransformerEncoder(layer, 12)
    return Tagger(nn.Embedding(1000, 256), layers, nn.Linear(256, 1000))


SHAPES = {
    "LeNet": (256, 1, 28, 28),
    "MLP": (256, 784),
    "CNN": (64, 3, 32, 32),
    "ResNet-18": (16, 3, 32, 32),
    "transformer": (8, 64),
}


def task(model: str) -> Task:
    torch.manual_seed(0)
    net, shape = net_of(model), SHAPES[model]
    if isinstance(net, Tagger):
        return net, torch.randint(1000, shape), torch.randint(1000, shape)
    return net, torch.randn(shape), torch.randint(10, shape[:1])


def resnet(blocks: tuple[int, ...], bottleneck: bool) -> Shapes:
    """The parameters of torchvision's ResNet for ImageNet, in their order."""
    shapes = _with_norm(64, 3, 7)
    inner = 64
    for stage, count in enumerate(blocks):
        width = 64 << stage
        outer = 4 * width if bottleneck else width
        for block in range(count):
            shapes += _with_norm(width, inner, 1 if bottleneck else 3)
            shapes += _with_norm(width, width, 3)
            shapes += _with_norm(outer, width, 1) if bottleneck else []
            if block == 0 and inner != outer:
                shapes += _with_norm(outer, inner, 1)
            inner = outer
    return [*shapes, (1000, inner), (1000,)]


def _with_norm(width: int, width_in: int, size: int) -> Shapes:
    return [(width, width_in, size, size), (width,), (width,)]


def gpt2(layers: int, width: int) -> Shapes:
    """The parameters of GPT-2 (124 million with 12 layers of 768) as transformers has them."""
    norm: Shapes = [(width,), (width,)]
    attention = [(width, 3 * width), (3 * width,), (width, width), (width,)]
    feed_forward = [(width, 4 * width), (4 * width,), (4 * width, width), (width,)]
    layer = [*norm, *attention, *norm, *feed_forward]
    return [(50257, width), (1024, width), *layer * layers, *norm]


GRADIENTS: dict[str, Shapes] = {
    "LeNet": list(LENET),
    "ResNet-18": resnet((2, 2, 2, 2), bottleneck=False),
    "ResNet-50": resnet((3, 4, 6, 3), bottleneck=True),
    "GPT-2": gpt2(layers=12, width=768),
}
"""Lists of gradients as training has them."""
