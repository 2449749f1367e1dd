"""Two ways to train the same network, epoch by epoch in turn: seconds, and whether they agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastreduce.names import listed

from .config import Config
from .data import FashionMNIST
from .learners import Learner, ModuleLearner, learner
from .lenet import Generator
from .progress import Epoch
from .trainer import Trainer

NAMES = ("loop", "single", "nn")


class NNLearner(ModuleLearner):
    """The same network in torch's `nn.DataParallel`."""

    def __init__(self, config: Config, generator: Generator) -> None:
        super().__init__(config, generator)
        # fastreduce.DataParallel shares its module's parameters; here its replicas stay unused.
        self._wrapped = nn.DataParallel(self.model.module, list(config.devices))

    def step(self, X: Tensor, y: Tensor) -> list[Tensor]:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self._wrapped(X), y)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return [loss.detach() * len(X)]


def rival(config: Config, name: str) -> tuple[Config, Callable[[Config, Generator], Learner]]:
    """The settings of ``name``, and what learns with them.

    "loop" is LeNet by the book's functions and the book's loop over the parameters; "single" one
    replica on the first device; "nn" torch's `nn.DataParallel`, on GPUs.

    Raises ValueError for another name, and where there is no such way.
    """
    if name not in NAMES:
        raise ValueError(f"compare: found {name!r}, wanted one of {listed(NAMES, name)}")
    if name == "loop":
        try:
            return config.changed(allreduce="loop"), learner
        except ValueError as error:
            raise ValueError(f"compare with loop: {error}") from None
    if name == "single":
        return config.changed(devices=config.devices[:1]), learner
    if config.devices[0].type != "cuda" or len(set(config.devices)) < len(config.devices):
        found = ", ".join(map(str, config.devices))
        raise ValueError(
            f"compare: found nn on {found}, but nn.DataParallel wants a GPU for each replica; "
            "compare with single"
        )
    return config.changed(allreduce=None), NNLearner


@dataclass(frozen=True)
class Comparison:
    """After so many epochs: the rival's mean seconds per epoch over those of the first, and the
    largest difference of a parameter between the two, relative to the largest parameter."""

    ratio: float
    difference: float

    def __str__(self) -> str:
        agree = (
            "the same bits" if self.difference == 0 else f"parameters within {self.difference:.1e}"
        )
        return f"{self.ratio:.2f} times as long per epoch, {agree}"


class Rivals:
    """A trainer, and one of the same network to compare it with."""

    def __init__(self, trainer: Trainer, data: FashionMNIST, name: str) -> None:
        config, make = rival(trainer.config, name)
        self.name = name
        self._first = trainer
        self._other = Trainer(config, data, progress=False, make=make)
        self._epochs: Iterator[Epoch] = self._other.epochs()
        self._seconds: list[tuple[float, float]] = []

    def follow(self, first: Epoch) -> Epoch:
        """Let the rival take the same epoch, and return it."""
        epoch = next(self._epochs)
        self._seconds.append((first.epoch_s, epoch.epoch_s))
        return epoch

    @torch.no_grad()
    def compared(self) -> Comparison:
        own, other = (
            x.learner.state()["model"].state_dict().values() for x in (self._first, self._other)
        )
        pairs = [
            (a.double().cpu(), b.double().cpu())
            for a, b in zip(own, other, strict=True)
            if a.is_floating_point()
        ]
        largest = max(float(a.abs().max()) for a, _ in pairs)
        difference = max(float((a - b).abs().max()) for a, b in pairs) / largest
        mine, theirs = (sum(column) for column in zip(*self._seconds, strict=True))
        return Comparison(theirs / mine, difference)
