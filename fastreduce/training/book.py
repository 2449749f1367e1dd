"""The training of the book, in one call."""

from __future__ import annotations

from fastreduce.devices import deal_devices, usable_devices

from .config import Config
from .data import FashionMNIST, load_fashion_mnist
from .progress import Epoch
from .report import closing_line
from .trainer import Trainer


def train(
    num_gpus: int,
    batch_size: int,
    lr: float,
    *,
    num_epochs: int = 10,
    steps: int | None = None,
    init: str = "book",
    data: FashionMNIST | None = None,
) -> list[Epoch]:
    """Train LeNet on Fashion-MNIST with ``num_gpus`` replicas, and print the book's last line.

    Replicas are dealt out over the GPUs of this machine; without a GPU they share the CPU. The
    default ``init`` is the book's ``0.01 * randn``; "kaiming" learns from the first step on
    (`initial_params`). Without ``data`` it is found by `load_fashion_mnist`. Returns one `Epoch`
    each. Raises ValueError as `Config` does, and what finding the data and `fastreduce.allreduce`
    raise.

    Source: *Dive into Deep Learning*, "Training on Multiple GPUs", "Training".

    >>> from fastreduce.training.data import SAMPLE
    >>> data = load_fashion_mnist(SAMPLE)
    >>> [epoch] = train(2, 256, 0.2, num_epochs=1, steps=1, data=data)  # doctest: +ELLIPSIS
    test acc: 0..., ... sec/epoch on [device(type=...), device(type=...)]
    """
    # No more devices than replicas, so that each device has one.
    devices = deal_devices(usable_devices()[: max(1, num_gpus)], num_gpus)
    config = Config(devices, batch_size, lr, num_epochs, allreduce="auto", steps=steps, init=init)
    epochs = list(Trainer(config, data or load_fashion_mnist()).epochs())
    print(closing_line(epochs, devices))
    return epochs
