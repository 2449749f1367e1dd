"""Small data sets in the format of the real one."""

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fastreduce.training import FashionMNIST, Split

WriteSet = Callable[..., Path]


def idx_bytes(values: Tensor) -> bytes:
    header = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    return header + values.contiguous().numpy().tobytes()


@pytest.fixture
def write_set() -> WriteSet:
    """A function that writes the four files, image i of label i % 10 filled with the value i."""

    def write(folder: Path, *, gz: bool = True, train: int = 6, test: int = 4) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for prefix, count in (("train", train), ("t10k", test)):
            order = torch.arange(count, dtype=torch.uint8)
            files = {
                "images-idx3-ubyte": order.view(-1, 1, 1).expand(count, 28, 28),
                "labels-idx1-ubyte": order % 10,
            }
            for kind, values in files.items():
                raw = idx_bytes(values)
                name = f"{prefix}-{kind}{'.gz' if gz else ''}"
                (folder / name).write_bytes(gzip.compress(raw) if gz else raw)
        return folder

    return write


@pytest.fixture
def tiny() -> FashionMNIST:
    """Ten random training images and seven test images."""
    generator = torch.Generator().manual_seed(0)

    def split(count: int) -> Split:
        images = torch.randint(256, (count, 1, 28, 28), generator=generator, dtype=torch.uint8)
        return Split(images, torch.randint(10, (count,), generator=generator))

    return FashionMNIST(split(10), split(7), Path("tiny"))
