"""What takes a training step on one batch: the book's functions, or DataParallel for any module."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fastreduce
from fastreduce.parallel.buffers import restored_if_it_raises
from fastreduce.parallel.graphed import GraphedStep
from fastreduce.parallel.losses import NonFiniteLoss
from fastreduce.parallel.same_bits import check_replicas

from .config import Config
from .lenet import Generator, get_params, initial_params
from .models import Classifier, make
from .parallel import accuracy, loop_allreduce, train_batch
from .stopwatch import stopwatch

# What a checkpoint calls the number of processes that can go on from it; None: any number.
PROCESSES = "processes"


class Learner(abc.ABC):
    """Replicas of one network that learn together."""

    where = ""  # of several processes, each with losses of its own: which one this is

    @abc.abstractmethod
    def step(self, X: Tensor, y: Tensor) -> Sequence[Tensor]:
        """Learn from a batch; return the losses, summed over their examples, detached: of each
        shard, or where there are several replicas perhaps one of all.

        Raises NonFiniteLoss, with nothing changed, where it has looked at them.
        """

    def counted(self, rows: int) -> int:
        """Of how many examples of a batch of so many the losses are that `step` returns."""
        return rows

    @abc.abstractmethod
    def accuracy(self, X: Tensor, y: Tensor) -> float: ...

    @abc.abstractmethod
    def check(self) -> None:
        """Raise ReplicasDiffer if the replicas are not bit-identical."""

    @abc.abstractmethod
    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, as `fastreduce.training.save` takes it."""

    def set_sgd(self, **options: float) -> None:
        """Go on with these options of SGD, whatever those of a restored checkpoint are."""
        if optimizer := self.state().get("optimizer"):
            for group in optimizer.param_groups:
                group.update(options)

    def allreduce_s(self) -> float | None:
        """Seconds in the allreduce since the last call, where they are measured."""
        return None

    def close(self) -> None:  # noqa: B027
        """Take leave of other processes, if there are any."""


class BookLearner(Learner):
    """LeNet as a list of parameters per replica, and the functions of the book."""

    def __init__(self, config: Config, generator: Generator) -> None:
        params = initial_params(generator, init=config.init)
        self.device_params = [get_params(params, device) for device in config.devices]
        self._config = config
        self._watch = stopwatch(config.devices[0])

    def step(self, X: Tensor, y: Tensor) -> Sequence[Tensor]:
        devices, lr = self._config.devices, self._config.lr
        return train_batch(X, y, self.device_params, devices, lr, allreduce=self._timed_allreduce)

    def _timed_allreduce(self, gradients: list[list[Tensor]]) -> None:
        with self._watch:
            if self._config.allreduce == "loop":
                loop_allreduce(gradients)
            else:
                fastreduce.allreduce(gradients, algorithm=self._config.allreduce or "auto")

    def accuracy(self, X: Tensor, y: Tensor) -> float:
        return accuracy(X, y, self.device_params, self._config.devices)

    def check(self) -> None:
        check_replicas(self.device_params)

    def allreduce_s(self) -> float:
        return self._watch.read_s()

    def state(self) -> dict[str, Any]:
        return {"model": _Parameters(self.device_params)}


class _Parameters:
    """All replicas' parameters, as if they were one module's."""

    def __init__(self, device_params: Sequence[Sequence[Tensor]]) -> None:
        self._device_params = device_params

    def state_dict(self) -> dict[str, Tensor]:
        return {str(index): p.detach() for index, p in enumerate(self._device_params[0])}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for params in self._device_params:
            for p, values in zip(params, state.values(), strict=True):
                p.copy_(values)


def network(config: Config, generator: Generator) -> Classifier:
    net = make(config.model, generator, init=config.init)
    net.precision = config.precision
    net.to(config.devices[0])
    if config.compile:
        # In its class: a copy of the module, which a replica is, would lose what `compile()` adds.
        compiled = {"forward": torch.compile(type(net).forward)}
        net.__class__ = type("Compiled", (type(net),), compiled)
    return net


def optimizer(net: nn.Module, config: Config) -> torch.optim.SGD:
    return torch.optim.SGD(
        net.parameters(),
        lr=config.lr,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
    )


def buffers_kept(net: nn.Module, skips: bool) -> AbstractContextManager[None]:
    """Where a step may be skipped: what its batch has left in BatchNorm is forgotten with it."""
    return restored_if_it_raises(list(net.buffers())) if skips else nullcontext()


class ModuleLearner(Learner):
    """A module of `models` in `fastreduce.DataParallel`, and SGD."""

    def __init__(self, config: Config, generator: Generator) -> None:
        self.model = fastreduce.DataParallel(
            network(config, generator),
            config.devices,
            reproducible=config.reproducible,
            overlap=config.overlap,
            at_once=not config.compile,  # as every compiled module, which its class does not tell
        )
        self.optimizer = optimizer(self.model, config)
        self._rows = 256 * len(config.devices)
        self._config = config
        self._graphed: GraphedStep | None = None

    def step(self, X: Tensor, y: Tensor) -> Sequence[Tensor]:
        # A graph has one shape; the last batch of an epoch may be shorter. And the tensors of a
        # momentum, which the first step makes, must be there before.
        can_be_captured = not self._config.momentum or self.optimizer.state
        if self._config.graph and len(X) == self._config.batch_size and can_be_captured:
            return [self._graphed_step(X, y) * len(X)]
        self.optimizer.zero_grad()
        with buffers_kept(self.model, self._config.skip_nonfinite):
            loss = self.model.backward(F.cross_entropy, X, y)
            if self._config.skip_nonfinite and not math.isfinite(loss.item()):
                raise NonFiniteLoss(loss.item(), None, "backward")
        self.optimizer.step()
        return [loss * len(X)]

    def set_sgd(self, **options: float) -> None:
        super().set_sgd(**options)
        self._graphed = None  # a graph repeats the options with which it was captured

    def _graphed_step(self, X: Tensor, y: Tensor) -> Tensor:
        if self._graphed is None:
            self._graphed = self.model.graphed(F.cross_entropy, X, y, optimizer=self.optimizer)
        return self._graphed(X, y)

    @torch.no_grad()
    def accuracy(self, X: Tensor, y: Tensor) -> float:
        self.model.eval()
        batches = zip(torch.split(X, self._rows), torch.split(y, self._rows), strict=True)
        correct = [(self.model(X).argmax(1) == y).sum() for X, y in batches]
        self.model.train()
        return int(torch.stack(correct).sum()) / len(X)

    def check(self) -> None:
        self.model.check()

    def state(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer}


class StoreLearner(ModuleLearner):
    """The same, whose parameters a `fastreduce.KVStore` keeps and updates; SGD runs there.

    Each process takes its part of a batch, and pushes its gradients, weighted by its share of the
    batch: so their sum is the gradient of the whole batch's mean loss, however many there are.
    """

    def __init__(self, config: Config, generator: Generator) -> None:
        super().__init__(config, generator)
        assert config.kvstore is not None
        self.store = fastreduce.KVStore(config.kvstore, staleness=config.staleness)
        self.set_sgd(lr=config.lr)
        if self.store.num_workers > 1:
            self.where = f"rank {self.store.rank}, "
        self._keys = [name for name, _ in self.model.named_parameters()]
        self._params = [p.detach() for p in self.model.parameters()]
        self.store.broadcast(self._keys, self._params, self._params)

    def step(self, X: Tensor, y: Tensor) -> Sequence[Tensor]:
        own_X, own_y = self._part(X), self._part(y)
        self.optimizer.zero_grad()
        losses = []
        if len(own_X):  # the last batch may have fewer examples than there are workers
            losses = [self.model.backward(F.cross_entropy, own_X, own_y) * len(own_X)]
        gradients = [
            torch.zeros_like(p) if p.grad is None else p.grad * (len(own_X) / len(X))
            for p in self.model.parameters()
        ]
        self.store.pushpull(self._keys, gradients, self._params)
        return losses

    def counted(self, rows: int) -> int:
        return len(self._part(torch.empty(rows)))

    def _part(self, x: Tensor) -> Tensor:
        return x.tensor_split(self.store.num_workers)[self.store.rank]

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "store": self.store,
            PROCESSES: self.store.num_workers,
        }

    def set_sgd(self, **options: float) -> None:
        # Without a momentum, which the config refuses here, SGD keeps no state.
        self.store.set_optimizer(torch.optim.SGD, **options)

    def close(self) -> None:
        self.store.close()


def learner(config: Config, generator: Generator) -> Learner:
    if config.allreduce is not None:
        return BookLearner(config, generator)
    if config.kvstore is not None:
        return StoreLearner(config, generator)
    if config.backend is not None:
        from .ddp import DDPLearner  # here, because what it needs of torch takes seconds to import

        return DDPLearner(config, generator)
    return ModuleLearner(config, generator)
