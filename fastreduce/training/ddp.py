"""What takes a training step in several processes: torch's DistributedDataParallel."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from fastreduce.bits import bytes_of
from fastreduce.kvstore.peers import Group
from fastreduce.parallel.losses import NonFiniteLoss
from fastreduce.parallel.same_bits import ReplicasDiffer

from .config import Config
from .learners import PROCESSES, Learner, buffers_kept, network, optimizer
from .lenet import Generator

EVALUATED_ROWS = 256  # predicted: few passes, little memory


class DDPLearner(Learner):
    """One replica in each process of the default group, each with an SGD of its own.

    All are given the same batch, and each takes its part of it; the gradient is that of the whole
    batch's mean loss, however many rows a part has.
    """

    def __init__(self, config: Config, generator: Generator) -> None:
        self._net = network(config, generator)
        self._model = DistributedDataParallel(self._net)
        self._optimizer = optimizer(self._net, config)
        self._ranks = Group(None)
        self._skips = config.skip_nonfinite

    def _part(self, x: Tensor) -> Tensor:
        return x.tensor_split(self._ranks.size)[self._ranks.rank]

    def step(self, X: Tensor, y: Tensor) -> Sequence[Tensor]:
        own_X, own_y = self._part(X), self._part(y)
        # DDP wants a pass of every rank; where there are fewer rows than ranks, some take one of
        # another's, which counts nothing.
        counts = len(own_X) > 0
        self._optimizer.zero_grad()
        with buffers_kept(self._net, self._skips):
            logits = self._model(own_X if counts else X[:1])
            loss = counts * F.cross_entropy(logits, own_y if counts else y[:1], reduction="sum")
            # DDP takes the mean of the ranks' gradients.
            (loss * (self._ranks.size / len(X))).backward()  # type: ignore[no-untyped-call]
            losses = [torch.empty_like(loss) for _ in range(self._ranks.size)]
            dist.all_gather(losses, loss.detach())
            for rank, value in enumerate(losses if self._skips else ()):
                if not math.isfinite(value.item()):
                    raise NonFiniteLoss(value.item(), rank, "backward")
        self._optimizer.step()
        return losses

    @torch.no_grad()
    def accuracy(self, X: Tensor, y: Tensor) -> float:
        for buffer in self._net.buffers():  # of BatchNorm: those that a checkpoint keeps
            dist.broadcast(buffer, 0)
        self._net.eval()
        correct = X.new_zeros((), dtype=torch.int64)
        parts = (torch.split(self._part(x), EVALUATED_ROWS) for x in (X, y))
        for own_X, own_y in zip(*parts, strict=True):
            correct += (self._net(own_X).argmax(1) == own_y).sum()
        self._net.train()
        dist.all_reduce(correct)
        return int(correct) / len(X)

    def check(self) -> None:
        digests = {
            name: hashlib.sha256(bytes_of(p.cpu()).numpy().data).digest()
            for name, p in self._net.named_parameters()
        }
        first, *others = self._ranks.told(digests)
        for rank, found in enumerate(others, start=1):
            if differ := [name for name in first if found[name] != first[name]]:
                raise ReplicasDiffer(
                    f"rank {rank}, parameter {differ[0]}: found other bits than rank 0's, wanted "
                    "the same on all ranks; an allreduce has not left the same sums everywhere, or "
                    "something else wrote to one rank's parameters"
                )

    def state(self) -> dict[str, Any]:
        # Any number of processes can go on from it.
        return {"model": self._net, "optimizer": self._optimizer, PROCESSES: None}
