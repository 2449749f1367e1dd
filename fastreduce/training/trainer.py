"""Training on Fashion-MNIST by data-parallel replicas, an epoch at a time, with checkpoints."""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from fastreduce.arguments import check_flags
from fastreduce.files import stderr_is_terminal
from fastreduce.parallel.losses import NonFiniteLoss

from . import checkpoint
from .config import Config
from .data import FashionMNIST, fingerprint
from .learners import Learner, learner
from .lenet import PLATEAU_STEPS, Generator
from .progress import Epoch, Progress
from .state import on_all_ranks
from .torch_settings import deterministic_cudnn, threads_for
from .tracing import traced

logger = logging.getLogger(__name__)


class Trainer:
    """Replicas of one network, one per device of ``config``, and the data they train on.

    With ``checkpoints``, a folder, a checkpoint is written there after every epoch, and every
    ``checkpoint_every`` steps; `restore` goes on from one, with the bits of a run that was never
    stopped. A `torch.profiler` trace of the fourth to seventh step goes to ``trace``.

    >>> from fastreduce.training.data import SAMPLE, load_fashion_mnist
    >>> config = Config((torch.device("cpu"),) * 2, epochs=2, steps=1)
    >>> data = load_fashion_mnist(SAMPLE)
    >>> [epoch.epoch for epoch in Trainer(config, data, progress=False).epochs()]
    [1, 2]
    """

    def __init__(
        self,
        config: Config,
        data: FashionMNIST,
        *,
        progress: bool = True,
        checkpoints: Path | None = None,
        checkpoint_every: int | None = None,
        trace: Path | None = None,
        make: Callable[[Config, Generator], Learner] = learner,
    ) -> None:
        check_flags("Trainer", progress=progress)
        if checkpoint_every is not None and (
            type(checkpoint_every) is not int or checkpoint_every < 1
        ):
            raise ValueError(
                f"checkpoint every: found {checkpoint_every!r}, wanted a whole number of steps, at "
                "least 1"
            )
        self.config = config
        self.checkpoints = checkpoints
        self._checkpoint_every = checkpoint_every
        self._trace = trace
        self._generator = torch.Generator().manual_seed(config.seed)
        self.learner = make(config, self._generator)
        # Of the epoch under way, whose order is drawn again when a run goes on.
        self._order_state = self._generator.get_state()
        self._at = Progress()
        self._unread: list[Sequence[Tensor]] = []  # losses, by step, on the devices
        self._data = data
        # All images on the first device, so that batches are picked and split without the host.
        self._train, self._test = (s.to(config.devices[0]) for s in (data.train, data.test))
        self._progress = progress
        self._warn_of_the_plateau()

    def _warn_of_the_plateau(self) -> None:
        config, images = self.config, len(self._train)
        steps = config.epochs * min(math.ceil(images / config.batch_size), config.steps or images)
        if config.init == "book" and config.model == "lenet" and steps < 2 * PLATEAU_STEPS:
            logger.warning(
                "The book's init keeps LeNet on a plateau, at the accuracy of a guess, for about "
                "%d steps at batch 256 and lr 0.2 (more than an epoch of the whole set, and longer "
                "at a lower lr); this run takes %d.",
                PLATEAU_STEPS,
                steps,
            )

    def close(self) -> None:
        """Take leave of the other processes, which may still need this one's part of a store."""
        self.learner.close()

    # ---- checkpoints

    @functools.cached_property
    def _fingerprint(self) -> str:
        return fingerprint(self._data)  # of 55 MB: once, and not at every checkpoint

    def _parts(self) -> dict[str, Any]:
        return {
            **self.learner.state(),
            "torch": torch.default_generator,
            "order": self._order_state,
            "progress": self._at.to_json(),
            "config": self.config.to_json(),
            "data": self._fingerprint,
        }

    def save(self) -> Path:
        """Write a checkpoint into ``checkpoints``; raises what `checkpoint.save` raises."""
        assert self.checkpoints is not None
        steps = len(self._at.epochs) * self._steps_per_epoch() + self._at.step
        return checkpoint.save(self.checkpoints, self._parts(), step=steps)

    def restore(self, found: checkpoint.Checkpoint) -> list[Epoch]:
        """Go on from a checkpoint, with the config's rate, momentum and weight decay.

        Returns the epochs that had ended. Raises CheckpointError if it is of another model or of
        other data; nothing has changed then.
        """
        parts = {**self._parts(), "order": self._generator}
        on_all_ranks(parts, lambda: self._check_data(found))
        found.restore(parts)
        config = self.config
        self.learner.set_sgd(
            lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay
        )
        self._order_state = self._generator.get_state()
        self._at = Progress.from_json(found.state["progress"])
        return list(self._at.epochs)

    def _check_data(self, found: checkpoint.Checkpoint) -> None:
        if found.state.get("data") != self._fingerprint:
            raise checkpoint.CheckpointError(
                f"{found.path}: found a run on other images than those of {self._data.folder}; "
                "name their folder with --data"
            )

    # ---- training

    def epochs(self) -> Iterator[Epoch]:
        """Train until ``config.epochs`` epochs have ended, and yield each as it ends.

        Raises ReplicasDiffer if the replicas are not bit-identical after an epoch, and
        NonFiniteLoss, which names step and shard, as the config says.
        """
        while len(self._at.epochs) < self.config.epochs:
            yield self._run_epoch()

    def _run_epoch(self) -> Epoch:
        if self.config.lr_schedule != "constant":
            self.learner.set_sgd(lr=self.config.lr_of_epoch(len(self._at.epochs)))
        batches = self._batches()
        self._train_on(batches)
        self.learner.check()
        begin_s = time.perf_counter()
        test_accuracy = self.learner.accuracy(self._test.images, self._test.labels)
        at = self._at
        epoch = Epoch(
            epoch=len(at.epochs) + 1,
            loss=sum(at.losses) / at.images if at.images else math.nan,
            test_accuracy=test_accuracy,
            epoch_s=at.epoch_s,
            allreduce_s=at.allreduce_s,
            evaluation_s=time.perf_counter() - begin_s,
            skipped=at.skipped,
        )
        self._at = Progress(epochs=[*at.epochs, epoch])
        self._order_state = self._generator.get_state()
        if self.checkpoints is not None:
            self.save()
        return epoch

    def _steps_per_epoch(self) -> int:
        whole = math.ceil(len(self._train) / self.config.batch_size)
        return min(whole, self.config.steps or whole)

    def _batches(self) -> Sequence[Tensor]:
        # Drawn on the CPU, so that the order does not depend on the device.
        self._generator.set_state(self._order_state)
        order = torch.randperm(len(self._train), generator=self._generator)
        order = order.to(self.config.devices[0])
        return torch.split(order, self.config.batch_size)[: self.config.steps]

    def _train_on(self, batches: Sequence[Tensor]) -> None:
        """Take the steps of this epoch that are left."""
        devices, at = self.config.devices, self._at
        left: Iterable[Tensor] = batches[at.step :]
        # Not by tqdm's `disable`: a Ctrl-C that comes while Python frees such an object is lost.
        if self._progress and stderr_is_terminal():
            title = f"epoch {len(at.epochs) + 1}"
            left = tqdm(left, title, total=len(batches), initial=at.step, unit="step", leave=False)
        trace, self._trace = self._trace, None
        # With micro-shards by their size: other threads give other bits, other replicas must not.
        shards = self.config.reproducible or len(devices)
        with (
            deterministic_cudnn(),
            threads_for(self.config.batch_size / shards, devices),
            traced(trace) as tracer,
        ):
            begin_s = time.perf_counter()
            for rows in left:
                self._step(rows)
                tracer.step()
                every = self._checkpoint_every
                if self.checkpoints and every and at.step % every == 0 and at.step < len(batches):
                    self._read_losses()
                    at.epoch_s += time.perf_counter() - begin_s
                    self.save()
                    begin_s = time.perf_counter()
            self._read_losses()
            at.epoch_s += time.perf_counter() - begin_s

    def _step(self, rows: Tensor) -> None:
        losses: Sequence[Tensor] = ()
        try:
            losses = self.learner.step(self._train.images[rows], self._train.labels[rows])
        except NonFiniteLoss as error:
            if not self.config.skip_nonfinite:
                raise self._named(error, self._at.step) from None
            self._at.skipped += 1
        else:
            self._at.images += self.learner.counted(len(rows))
        self._unread.append(losses)
        self._at.step += 1
        if self.config.devices[0].type == "cpu":  # elsewhere, reading would make every step wait
            self._read_losses()

    def _read_losses(self) -> None:
        """Wait for the devices, and take over what they have counted."""
        unread, self._unread = self._unread, []
        for losses in unread:
            values = [loss.item() for loss in losses]
            of_all = len(values) < len(self.config.devices)
            for shard, value in enumerate(values):
                if not math.isfinite(value):
                    error = NonFiniteLoss(value, None if of_all else shard, "")
                    raise self._named(error, len(self._at.losses))
            self._at.losses.append(sum(values))
        if (allreduce_s := self.learner.allreduce_s()) is not None:
            self._at.allreduce_s = (self._at.allreduce_s or 0.0) + allreduce_s

    def _named(self, error: NonFiniteLoss, step: int) -> NonFiniteLoss:
        where = f"{self.learner.where}epoch {len(self._at.epochs) + 1}, step {step + 1}"
        return NonFiniteLoss(error.value, error.shard, where)
