"""Deals batches to replicas, and takes their outputs and losses together."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fastreduce.parallel.batch import cut, rows_of, sizes_of_shards, warn_of_lists
from fastreduce.parallel.checks import Settings, check_not_traced
from fastreduce.parallel.common_objects import unchanged_objects
from fastreduce.parallel.draws import capturing
from fastreduce.parallel.graphed import GraphedStep
from fastreduce.parallel.loss_kinds import kind_of
from fastreduce.parallel.losses import coarsest_eps, combine, compared, scaled_by_tensor, total
from fastreduce.parallel.outputs import join
from fastreduce.parallel.passes import Passes
from fastreduce.parallel.record import Recorder
from fastreduce.parallel.replicas import Replicas
from fastreduce.parallel.shares import MeasuredShares
from fastreduce.parallel.update import Update

# How many kinds of loss functions are compared with the loss of the whole batch. A function that
# counts its steps is a new kind in every step.
MOST_CHECKED = 64


class Dealer:
    """What a `DataParallel` has beyond the module: replicas, and how a batch is dealt to them."""

    def __init__(
        self,
        net: nn.Module,
        devices: list[torch.device],
        settings: Settings,
        record: str | Path | None,
    ) -> None:
        settings.check(len(devices))
        shares, reproducible = settings.shares, settings.reproducible
        if shares is not None and not isinstance(shares, str):
            # A list of its own, since the caller's may change, and with Python's numbers, since
            # some of NumPy's are too coarse to cut a batch.
            shares = [x if isinstance(x, int) else float(x) for x in shares]
        self.settings = replace(settings, shares=shares)
        # Micro-shards never run at once, so that their bits do not depend on the number of threads.
        at_once = settings.at_once and reproducible is None
        self.use(Replicas(net, devices, settings.sync_batchnorm, settings.overlap, at_once))
        self.batch_dim = int(settings.batch_dim)
        shards = int(reproducible or len(devices))
        self.owners = [shard * len(devices) // shards for shard in range(shards)]
        self.measured = MeasuredShares(devices) if shares == "measured" else None
        self.fixed = shares if isinstance(shares, list) else [1.0] * shards
        self.alone = shards == 1
        # The kinds of loss functions that have been compared.
        self.checked: set[tuple[str, Any]] = set()
        self.not_comparable: set[tuple[str, Any]] = set()
        self.replicas.update()
        self.recorder = Recorder(record, net) if record is not None else None

    def use(self, replicas: Replicas) -> None:
        self.replicas = replicas
        self.passes = Passes(replicas, only_torch_draws=self.settings.reproducible is not None)

    @property
    def shares(self) -> list[float]:
        """The part of the batch of each replica, or of each micro-shard."""
        return self.measured.shares if self.measured else self.fixed

    def deal(self, tree: _Arguments | _Batch) -> tuple[list[int], list[int], list[Any]]:
        """The shards that are not empty: their owners, sizes and parts of ``tree``."""
        rows = rows_of(tree, self.batch_dim)
        sizes = sizes_of_shards(rows, self.shares)
        devices = [self.replicas.devices[owner] for owner in self.owners]
        parts = cut(tree, sizes, devices, self.batch_dim)
        kept = [i for i, size in enumerate(sizes) if size]
        if len(kept) > 1:
            warn_of_lists(tree.several(), rows)
        return [self.owners[i] for i in kept], [sizes[i] for i in kept], [parts[i] for i in kept]

    def run(self, owners: list[int], sizes: list[int], calls: list[tuple[Any, Any]]) -> list[Any]:
        if self.recorder:
            self.recorder.see()
        if self.alone:
            return [self.replicas.net(*args, **kwargs) for args, kwargs in calls]
        if not self.measured:
            return self.passes.forward(owners, calls)
        outputs = self.passes.forward(owners, calls, self.measured.lap)
        self.measured.end(owners, sizes)
        return outputs

    def forward(self, args: Any, kwargs: Any) -> Any:
        check_not_traced()
        arguments = _Arguments(args, kwargs)
        owners, sizes, parts = self.deal(arguments)
        with unchanged_objects(arguments, len(owners)):
            outputs = self.run(owners, sizes, [(part.args, part.kwargs) for part in parts])
        if self.alone:
            return outputs[0]
        return join(outputs, sizes, self.replicas.devices[0], self.batch_dim)

    def backward(
        self, loss_fn: Callable[..., Any], inputs: Any, targets: Any, reduction: str | None
    ) -> Tensor:
        _check_loss(loss_fn)
        owners, sizes, parts = self.deal(_Batch(inputs, targets))
        with unchanged_objects(inputs, len(owners)):
            outputs = self.run(owners, sizes, [_as_call(part.inputs) for part in parts])
        losses = [
            loss_fn(output, *part.targets) for output, part in zip(outputs, parts, strict=True)
        ]
        if reduction is None:
            reduction = getattr(loss_fn, "reduction", "mean")
        scaled = combine(losses, sizes, reduction)
        # A GradScaler skips the steps of losses that are not finite, and then scales by less.
        look = not any(map(scaled_by_tensor, losses))
        found = total(scaled, self.replicas.devices[0], look)
        few = len(self.checked) + len(self.not_comparable) < MOST_CHECKED
        if len(owners) > 1 and few and isinstance(losses[0], Tensor):
            kind = reduction, kind_of(loss_fn)
            if kind not in self.checked and not capturing():  # comparing waits for the GPU
                whole = self._whole_loss(kind, loss_fn, outputs, targets, sizes)
                if whole is not None and compared(whole.to(found), found, coarsest_eps(losses[0])):
                    self.checked.add(kind)
        self.passes.backward(scaled)
        return found

    def graphed(
        self,
        loss_fn: Callable[..., Any],
        inputs: Any,
        targets: Any,
        reduction: str | None,
        optimizer: torch.optim.Optimizer | None,
    ) -> GraphedStep:
        devices = self.replicas.devices
        if devices[0].type != "cuda":
            raise RuntimeError(
                f"graphed: the replicas are on {devices[0]}, wanted GPUs: on the CPU there is no "
                "graph to launch; call model.backward"
            )
        if self.settings.reproducible is not None:
            raise ValueError(
                "graphed: found a model with reproducible micro-shards, whose random numbers need "
                "new seeds for every batch; call model.backward"
            )
        if self.measured:
            self.measured.keep()

        def step(inputs: Any, targets: Any) -> Tensor:
            return self.backward(loss_fn, inputs, targets, reduction)

        self.replicas.forget_last_pass()
        update = None if optimizer is None else Update(optimizer)
        return GraphedStep(step, self.replicas.net, devices, (inputs, targets), update)

    def _whole_loss(
        self,
        kind: tuple[str, Any],
        loss_fn: Callable[..., Any],
        outputs: Sequence[Any],
        targets: Any,
        sizes: list[int],
    ) -> Tensor | None:
        """The loss of the joined outputs; None where there is no such thing, which is said once."""
        device = self.replicas.devices[0]
        with torch.no_grad():
            try:
                joined = join(outputs, sizes, device, self.batch_dim)
            except ValueError:
                self._warn(kind, "as the outputs of its shards cannot be joined")
                return None
            (moved,) = cut(targets, [sum(sizes)], [device], self.batch_dim)
            whole = loss_fn(joined, *moved)
        if not isinstance(whole, Tensor) or whole.numel() != 1:
            self._warn(kind, "as it is among the outputs, one for each shard")
            self.checked.add(kind)
            return None
        return whole.reshape(())

    def _warn(self, kind: tuple[str, Any], why: str) -> None:
        if kind not in self.not_comparable:
            self.not_comparable.add(kind)
            warnings.warn(
                f"backward: the loss of the whole batch is not known, {why}, so the shards' could "
                "not be compared with it. It is their mean only if it is a mean over examples (or "
                'a sum, with reduction="sum"). If it is one over something else, such as tokens, '
                "let the loss function return a sum and its weight; the gradient of a loss that "
                "compares examples with each other is loss_fn(model(X)).backward()'s",
                stacklevel=5,
            )


@dataclass
class _Arguments:
    args: Any
    kwargs: Any

    def several(self) -> tuple[Any, ...]:
        return (*self.args, self.kwargs)


@dataclass
class _Batch:
    inputs: Any
    targets: Any

    def several(self) -> tuple[Any, ...]:
        return (*(self.inputs if isinstance(self.inputs, tuple) else (self.inputs,)), *self.targets)


def _as_call(inputs: Any) -> tuple[Any, Any]:
    if isinstance(inputs, Mapping):
        return (), inputs
    return (inputs if isinstance(inputs, tuple) else (inputs,)), {}


def _check_loss(loss_fn: Any) -> None:
    if not callable(loss_fn):
        raise TypeError(
            f"backward: found {type(loss_fn).__name__} as loss_fn, wanted a function: "
            "backward(loss_fn, inputs, *targets). A loss that is computed already goes "
            "backward by itself: loss.backward()"
        )
    if isinstance(loss_fn, type) and issubclass(loss_fn, nn.Module):
        name = loss_fn.__name__
        raise TypeError(
            f"backward: found the class {name} as loss_fn, wanted a function, such as {name}()"
        )
