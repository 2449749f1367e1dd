"""Models that benchmarks/data_parallel.py trains, with random data, and shapes of known models."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastreduce.plan.models import model
from fastreduce.training.lenet import SHAPES as LENET
from fastreduce.training.models import convolution, lenet, resnet18

Task = tuple[nn.Module, Tensor, Tensor]
Shapes = list[tuple[int, ...]]


class Tagger(nn.Sequential):
    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens).transpose(1, 2)  # where cross_entropy looks for classes


def net_of(name: str) -> nn.Module:
    relu, half = nn.ReLU(), nn.AvgPool2d(2)
    if name == "LeNet":
        return nn.Sequential(*lenet())  # without the Classifier's scaling of bytes
    if name == "MLP":
        hidden = [x for i in (784, *[1024] * 4) for x in (nn.Linear(i, 1024), relu)]
        return nn.Sequential(*hidden, nn.Linear(1024, 10))
    if name == "CNN":
        first = [*convolution(3, 32, 3), relu, *convolution(32, 32, 3), relu, half]
        then = [*convolution(32, 64, 3), relu, *convolution(64, 64, 3), relu, half, nn.Flatten()]
        return nn.Sequential(*first, *then, nn.Linear(64 * 8 * 8, 10))
    if name == "ResNet-18":  # the book's, of images in colour
        return nn.Sequential(*convolution(3, 64, 3), *list(resnet18())[2:])
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


def task(name: str) -> Task:
    torch.manual_seed(0)
    net, shape = net_of(name), SHAPES[name]
    if isinstance(net, Tagger):
        return net, torch.randint(1000, shape), torch.randint(1000, shape)
    return net, torch.randn(shape), torch.randint(10, shape[:1])


def resnet18_for_imagenet() -> Shapes:
    """torchvision's parameters: the book's, but for the first convolution and the classes."""
    with torch.device("meta"):
        shapes = [tuple(param.shape) for param in resnet18().parameters()]
    return [(64, 3, 7, 7), *shapes[1:-2], (1000, 512), (1000,)]


# Lists of gradients as training has them.
GRADIENTS: dict[str, Shapes] = {
    "LeNet": list(LENET),
    "ResNet-18": resnet18_for_imagenet(),
    "ResNet-50": list(model("resnet50").shapes),
    "GPT-2": list(model("gpt2").shapes),
}
