"""Shapes of the parameters of well-known models, derived from their published configurations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import torch

from fastreduce.names import listed

Shape: TypeAlias = tuple[int, ...]


class Model(NamedTuple):
    """A model's shapes in the order of its ``parameters()``, and the dtype it is published in."""

    shapes: tuple[Shape, ...]
    dtype: torch.dtype
    source: str


def model(name: str) -> Model:
    """A well-known model by its name.

    Raises:
        ValueError: an unknown name; the message lists the known ones.

    >>> from math import prod
    >>> found = model("gpt2")
    >>> len(found.shapes), sum(map(prod, found.shapes))
    (148, 124439808)
    """
    if name not in _MODELS:
        raise ValueError(f"unknown model {name!r}; known are {listed(_MODELS, name)}")
    return _MODELS[name]


def names() -> list[str]:
    """
    >>> names()
    ['gpt2', 'gpt2-xl', 'llama-1b', 'llama-8b', 'resnet50']
    """
    return sorted(_MODELS)


def _gpt2(width: int, layers: int) -> Iterator[Shape]:
    """The head shares the memory of the token embedding, so it is not counted again."""
    vocabulary, positions = 50257, 1024
    yield from ((vocabulary, width), (positions, width))
    for _ in range(layers):
        yield from ((width,), (width,))
        yield from ((width, 3 * width), (3 * width,), (width, width), (width,))
        yield from ((width,), (width,))
        yield from ((width, 4 * width), (4 * width,), (4 * width, width), (width,))
    yield from ((width,), (width,))


def _llama3(width: int, layers: int, inner: int, key_value: int, own_head: bool) -> Iterator[Shape]:
    """``key_value`` is the width of a layer's keys: key-value heads times the width of a head."""
    embedding = (128256, width)
    yield embedding
    for _ in range(layers):
        yield from ((width, width), (key_value, width), (key_value, width), (width, width))
        yield from ((inner, width), (inner, width), (width, inner))
        yield from ((width,), (width,))
    yield (width,)
    if own_head:
        yield embedding


def _resnet(blocks: tuple[int, ...]) -> Iterator[Shape]:
    """ResNets of bottleneck blocks. Each convolution is followed by a BatchNorm."""

    def convolution(out: int, into: int, side: int) -> Iterator[Shape]:
        yield from ((out, into, side, side), (out,), (out,))

    yield from convolution(64, 3, 7)
    before = 64
    for stage, count in enumerate(blocks):
        width = 64 << stage
        for block in range(count):
            yield from convolution(width, before, 1)
            yield from convolution(width, width, 3)
            yield from convolution(4 * width, width, 1)
            if block == 0:
                yield from convolution(4 * width, before, 1)
            before = 4 * width
    yield from ((1000, before), (1000,))


def _models() -> Iterator[tuple[str, Model]]:
    gpt2 = "Radford et al., Language Models are Unsupervised Multitask Learners, table 2"
    for name, width, layers in (("gpt2", 768, 12), ("gpt2-xl", 1600, 48)):
        yield name, Model(tuple(_gpt2(width, layers)), torch.float32, gpt2)
    small = tuple(_llama3(2048, 16, 8192, 8 * 64, own_head=False))
    yield "llama-1b", Model(small, torch.bfloat16, "meta-llama/Llama-3.2-1B, config.json")
    large = tuple(_llama3(4096, 32, 14336, 8 * 128, own_head=True))
    yield "llama-8b", Model(large, torch.bfloat16, "meta-llama/Meta-Llama-3-8B, config.json")
    resnet = "He et al., Deep Residual Learning for Image Recognition, table 1"
    yield "resnet50", Model(tuple(_resnet((3, 4, 6, 3))), torch.float32, resnet)


_MODELS = dict(_models())
