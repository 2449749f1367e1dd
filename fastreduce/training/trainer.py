"""Training of LeNet on Fashion-MNIST by data-parallel replicas, an epoch at a time."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

import fastreduce
from fastreduce.devices import deal_devices, usable_devices
from fastreduce.parallel.same_bits import check_replicas

from .data import FashionMNIST, load
from .lenet import INITS, PLATEAU_STEPS, get_params, initial_params
from .parallel import accuracy, loop_allreduce, train_batch
from .stopwatch import stopwatch
from .torch_settings import deterministic_cudnn, threads_for

# For the shipped sample, which has only 40 batches of the whole set's size. Measured with seeds 0
# to 6, two replicas on one CPU core, 2026-11-21: test accuracy 0.805 to 0.848, 20 to 30 s of CPU
# time.
SAMPLE_SETTINGS: dict[str, Any] = {"batch_size": 16, "lr": 0.08, "epochs": 3}

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Config:
    """The settings of a training run. Two runs of equal configs on one machine give the same bits.

    ``devices`` names one device per replica, the same one several times if need be.
    ``batch_size`` counts the examples of all replicas together. ``allreduce`` is "auto", "loop" or
    the name of an algorithm. ``steps`` bounds the steps of an epoch. ``init`` is as in
    `initial_params`. The defaults are for the whole set; `SAMPLE_SETTINGS` are for the sample.

    Raises ValueError for a setting that makes no sense.

    >>> Config(devices=(torch.device("cpu"),) * 2, allreduce="loop").batch_size
    256
    """

    devices: tuple[torch.device, ...]
    batch_size: int = 256
    lr: float = 0.2
    epochs: int = 10
    allreduce: str = "auto"
    seed: int = 0
    steps: int | None = None
    init: str = "kaiming"

    def __post_init__(self) -> None:
        counts = {
            "replicas": len(self.devices),
            "batch size": self.batch_size,
            "epochs": self.epochs,
            "steps": 1 if self.steps is None else self.steps,
        }
        for name, count in counts.items():
            if count < 1:
                raise ValueError(f"{name}: found {count}, wanted at least 1")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed: found {self.seed}, wanted 0 to 2**63 - 1")
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise ValueError(f"lr: found {self.lr}, wanted a number above 0")
        known = ("auto", "loop", *fastreduce.algorithms.names())
        if self.allreduce not in known:
            raise ValueError(
                f"allreduce: found {self.allreduce!r}, wanted one of {', '.join(known)}"
            )
        if self.init not in INITS:
            raise ValueError(f"init: found {self.init!r}, wanted one of {', '.join(INITS)}")


@dataclass(frozen=True)
class Epoch:
    """One epoch: the mean loss while training, the accuracy after it, and the seconds of each part.

    ``epoch_s`` is the time of the training steps, including ``allreduce_s`` but not
    ``evaluation_s``.
    """

    epoch: int
    loss: float
    test_accuracy: float
    epoch_s: float
    allreduce_s: float
    evaluation_s: float

    @property
    def allreduce_share(self) -> float:
        return self.allreduce_s / self.epoch_s


class Trainer:
    """Replicas of LeNet, one per device of ``config``, and the data they train on.

    >>> from fastreduce.training.data import SAMPLE
    >>> config = Config((torch.device("cpu"),) * 2, epochs=2, steps=1, allreduce="loop")
    >>> [epoch.epoch for epoch in Trainer(config, load(SAMPLE), progress=False).epochs()]
    [1, 2]
    """

    def __init__(self, config: Config, data: FashionMNIST, *, progress: bool = True) -> None:
        self.config = config
        self._generator = torch.Generator().manual_seed(config.seed)
        params = initial_params(self._generator, init=config.init)
        self.device_params = [get_params(params, device) for device in config.devices]
        # All images on the first device, so that batches are picked and split without the host.
        self._train, self._test = (s.to(config.devices[0]) for s in (data.train, data.test))
        self._watch = stopwatch(config.devices[0])
        self._progress = progress
        steps = config.epochs * min(
            math.ceil(len(data.train) / config.batch_size), config.steps or len(data.train)
        )
        if config.init == "book" and steps < 2 * PLATEAU_STEPS:
            logger.warning(
                "The book's init keeps LeNet on a plateau, at the accuracy of a guess, for about "
                "%d steps at batch 256 and lr 0.2 (more than an epoch of the whole set, and longer "
                "at a lower lr); this run takes %d.",
                PLATEAU_STEPS,
                steps,
            )

    def epochs(self) -> Iterator[Epoch]:
        """Train ``config.epochs`` epochs, and yield each as it ends.

        Raises ReplicasDiffer if the replicas are not bit-identical after an epoch.
        """
        for number in range(1, self.config.epochs + 1):
            yield self._run_epoch(number)

    def _run_epoch(self, number: int) -> Epoch:
        start_s = time.perf_counter()
        batches = self._batches()
        loss = self._train_on(batches, f"epoch {number}") / sum(len(rows) for rows in batches)
        epoch_s = time.perf_counter() - start_s
        check_replicas(self.device_params)
        images, labels = self._test.images, self._test.labels
        test_accuracy = accuracy(images, labels, self.device_params, self.config.devices)
        return Epoch(
            epoch=number,
            loss=loss,
            test_accuracy=test_accuracy,
            epoch_s=epoch_s,
            allreduce_s=self._watch.read_s(),
            evaluation_s=time.perf_counter() - start_s - epoch_s,
        )

    def _batches(self) -> Sequence[Tensor]:
        # Drawn on the CPU, so that the order does not depend on the device.
        order = torch.randperm(len(self._train), generator=self._generator)
        order = order.to(self.config.devices[0])
        return torch.split(order, self.config.batch_size)[: self.config.steps]

    def _train_on(self, batches: Sequence[Tensor], title: str) -> float:
        """Take one step per batch of row numbers; return the sum of all examples' losses."""
        devices = self.config.devices
        # Added up on the devices, because reading a loss in the loop would make every step wait.
        losses = [torch.zeros((), device=d) for d in devices]
        hidden = None if self._progress else True  # None: hidden if stderr is no terminal.
        shard_rows = self.config.batch_size / len(devices)
        with deterministic_cudnn(), threads_for(shard_rows, devices):
            for rows in tqdm(batches, title, unit="step", leave=False, disable=hidden):
                shard_losses = train_batch(
                    self._train.images[rows],
                    self._train.labels[rows],
                    self.device_params,
                    devices,
                    self.config.lr,
                    allreduce=self._timed_allreduce,
                )
                for total, shard_loss in zip(losses, shard_losses, strict=True):
                    total += shard_loss
        for device in devices:
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        return sum(total.item() for total in losses)

    def _timed_allreduce(self, gradients: list[list[Tensor]]) -> None:
        with self._watch:
            if self.config.allreduce == "loop":
                loop_allreduce(gradients)
            else:
                fastreduce.allreduce(gradients, algorithm=self.config.allreduce)


def closing_line(epochs: Sequence[Epoch], devices: Sequence[torch.device]) -> str:
    """Return the book's last line: test accuracy, mean seconds per epoch, devices."""
    mean_s = sum(epoch.epoch_s for epoch in epochs) / len(epochs)
    return f"test acc: {epochs[-1].test_accuracy:.2f}, {mean_s:.1f} sec/epoch on {list(devices)}"


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
    (`initial_params`). Without ``data`` the data is found by `load`. Returns one `Epoch` each.
    Raises ValueError as `Config` does, and what `load` and `fastreduce.allreduce` raise.

    Source: *Dive into Deep Learning*, "Training on Multiple GPUs", "Training".

    >>> from fastreduce.training.data import SAMPLE
    >>> [epoch] = train(2, 256, 0.2, num_epochs=1, steps=1, data=load(SAMPLE))  # doctest: +ELLIPSIS
    test acc: 0..., ... sec/epoch on [device(type=...), device(type=...)]
    """
    # No more devices than replicas, so that each device has one.
    devices = deal_devices(usable_devices()[: max(1, num_gpus)], num_gpus)
    config = Config(devices, batch_size, lr, num_epochs, steps=steps, init=init)
    epochs = list(Trainer(config, data or load()).epochs())
    print(closing_line(epochs, devices))
    return epochs
