"""Data-parallel training of any `nn.Module` in one process."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from fastreduce.parallel.checks import (
    Settings,
    check_attribute,
    check_keywords,
    check_module,
    device_list,
    refuse_to_be_scripted,
)
from fastreduce.parallel.dealer import Dealer
from fastreduce.parallel.graphed import GraphedStep
from fastreduce.parallel.structure import detach_saved_results


class DataParallel(nn.Module):
    """A module whose batches are dealt to replicas, in one process.

    The object takes the place of ``module``: parameters, buffers, names, attributes, methods and
    class are the module's own, and what changes one changes the other. Calling it cuts the
    arguments into one shard per replica, runs the replicas and joins their outputs; gradients are
    summed over the replicas while autograd goes backward, and ``parameter.grad`` is that of the
    whole batch.

    Args:
        module: any `nn.Module` with parameters that can be copied by `copy.deepcopy`. It stays the
            first replica.
        devices: one per replica; the first is the module's own. The same device may be named
            several times: such replicas share the parameters' memory. By default every GPU; where
            there is none, the CPU once, which is the plain module.
        batch_dim: the dimension of tensors along which they are cut and joined; vectors, such as
            labels, are cut along their only one. Other tensors without it (scalars), and what is no
            tensor, go to every replica; so does what is marked with `fastreduce.Whole`.
        shares: for each replica, its part of the batch relative to the others', for devices that
            are not equally fast; [2, 1] deals two thirds and one third. "measured" deals equal
            shares until eight batches have shown how fast each replica's forward pass is; then
            ``model.shares`` stays as it is.
        reproducible: cut every batch into this many micro-shards instead, whose gradients are
            summed in one order whoever computes them. Then any number of replicas, up to that of
            micro-shards, gives the same bits, if the operations of the model give the same bits
            from run to run.
        sync_batchnorm: BatchNorm layers normalize with the whole batch, as on one device, and not
            with each replica's shard. Shards then meet at each of these layers, so they must go
            through the same ones; and these layers cannot be inside `torch.utils.checkpoint`.
        overlap: sum gradients in buckets, each as soon as its last gradient is there, while the
            rest of the backward pass goes on; False sums all of them after it. The bits are the
            same.
        at_once: run replicas on the CPU at the same time, each with its part of the cores, where
            that changes nothing but the time: where shards are large, modules have no hooks, and
            random numbers come from layers such as `nn.Dropout`. The forward pass and `backward`
            do so, but not ``loss.backward()``. False if forward is not fit for several threads.
        record: a new file for a hash of every parameter before each step and after the last, which
            `fastreduce diff` compares with another run's. A copy of the model records nothing.

    Arguments of a call: tensors, and tensors in tuples, lists, dicts and dataclasses. Outputs are
    joined on the first device; those without a batch dimension, as one loss per shard, are stacked.
    A batch smaller than the number of replicas leaves the last ones idle.

    Gradients: replicas are summed in ascending order by one `reduce` for each bucket of parameters.
    A replica that has not used a parameter adds nothing. Hooks of the module run once per replica;
    hooks of a parameter see the summed gradient once, and may see None if no replica has used it.

    Buffers: every replica begins a forward pass with the module's; what the first replica makes of
    them stays. So without ``sync_batchnorm`` BatchNorm normalizes with each replica's own
    statistics, and its running statistics are those of the first replica.

    Random numbers: in training each shard has a seed of its own, drawn from torch's generator. That
    one moves on only if a shard draws.

    Raises:
        TypeError, ValueError: the module cannot be replicated, or devices or settings make no
            sense; on a call, arguments that cannot be cut or outputs that cannot be joined.

    Source: the interface is that of `torch.nn.DataParallel`.

    >>> import torch, fastreduce
    >>> net = torch.nn.Linear(2, 1)
    >>> model = fastreduce.DataParallel(net, devices=["cpu", "cpu"])
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> X, y = torch.randn(8, 2), torch.randn(8, 1)
    >>> torch.nn.functional.mse_loss(model(X), y).backward()
    >>> optimizer.step()
    >>> list(model.state_dict())
    ['weight', 'bias']
    """

    __slots__ = ("_parallel",)
    _parallel: Dealer

    def __new__(cls, module: nn.Module, *_: Any, **__: Any) -> DataParallel:
        check_module(module, DataParallel)
        # The object has the module's own attributes and class: names, state and methods are those
        # of the bare module, and a change to one is a change to the other.
        parallel = object.__new__(_class_for(type(module)))  # type: ignore[arg-type]
        object.__setattr__(parallel, "__dict__", vars(module))
        return parallel

    def __init__(
        self,
        module: nn.Module,
        devices: Iterable[torch.device | str | int] | None = None,
        *,
        batch_dim: int = 0,
        shares: Sequence[float] | str | None = None,
        reproducible: int | None = None,
        sync_batchnorm: bool = False,
        overlap: bool = True,
        at_once: bool = True,
        record: str | Path | None = None,
        **unknown: Any,
    ) -> None:
        check_keywords(unknown)
        settings = Settings(batch_dim, shares, reproducible, sync_batchnorm, overlap, at_once)
        parallel = Dealer(module, device_list(devices), settings, record)
        object.__setattr__(self, "_parallel", parallel)

    def __init_subclass__(cls, **_: Any) -> None:
        """Keep it from the module's class, which may count its subclasses."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._parallel.forward(args, kwargs)

    forward = __call__

    def backward(
        self,
        loss_fn: Callable[..., Tensor | tuple[Tensor, Tensor | float]],
        inputs: Any = (),
        *targets: Any,
        reduction: str | None = None,
    ) -> Tensor:
        """Compute the loss on each replica, and the gradient of the loss of the whole batch.

        No outputs are joined, so this moves less between devices than a loss of ``model(X)``.

        Args:
            loss_fn: takes a replica's output and its shards of ``targets``; returns a tensor of one
                element, which is a mean or a sum over the shard's examples; or a pair of a sum and
                its weight, such as a number of tokens. The batch's loss is then the sum of all sums
                divided by that of all weights.
            inputs: what the module takes. A tuple becomes several arguments, a mapping
                keyword arguments; put one tuple that is a single argument into another.
            targets: cut like the inputs.
            reduction: "mean" or "sum": what ``loss_fn`` makes of a shard's examples. By default
                ``loss_fn.reduction`` where there is such an attribute, as in torch's loss modules
                ("batchmean" is "mean"), else "mean".

        Returns the loss of the whole batch, a detached 0-dim tensor on the first device.

        Raises:
            TypeError: ``loss_fn`` is no function, or a loss is no tensor.
            ValueError: a loss is not a tensor of one element, not finite (on the CPU, and not if
                the last operation was that of ``GradScaler.scale``, which skips such steps; on GPUs
                looking would wait for them) or has no graph; arguments cannot be cut; or, at the
                first call with this ``loss_fn``, the shards' losses do not make that of the whole
                batch, which means that it is no mean (or sum) over examples. No gradient has
                changed then.

        >>> import torch, fastreduce
        >>> model = fastreduce.DataParallel(torch.nn.Linear(2, 3), devices=["cpu", "cpu"])
        >>> X, y = torch.randn(5, 2), torch.tensor([0, 1, 2, 0, 1])
        >>> loss = model.backward(torch.nn.functional.cross_entropy, X, y)
        >>> model.weight.grad.shape
        torch.Size([3, 2])
        """
        return self._parallel.backward(loss_fn, inputs, targets, reduction)

    def graphed(
        self,
        loss_fn: Callable[..., Any],
        inputs: Any,
        *targets: Any,
        reduction: str | None = None,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> GraphedStep:
        """Capture what `backward` does with batches of these shapes into one CUDA graph.

        Returns a function: ``loss = step(inputs, *targets)`` does what ``model.backward(loss_fn,
        inputs, *targets)`` does, except that it sets gradients instead of adding to them; with an
        ``optimizer`` it also does what ``optimizer.step()`` does. One launch runs all kernels of
        all GPUs. One GPU has run it; on several it is untried.

        The module's forward and the loss must be what a CUDA graph can hold: the same kernels for
        every batch, and nothing that waits for the GPU. Random numbers go on from replay to replay.

        Args:
            inputs, targets: an example batch, whose shapes and dtypes all later ones must have.
            loss_fn, reduction: as in `backward`; the weight of a pair must be a Python number.
            optimizer: SGD, or one with ``capturable=True``; one that keeps a state must have taken
                a step. A learning rate that changes must be a tensor on the GPU.

        Raises:
            RuntimeError: the replicas are not on GPUs; the autograd graph of an earlier pass is
                held, by its output or loss; or the parameters, or the optimizer's settings or
                state, have been replaced since.
            ValueError: a later batch has other shapes; an argument is `fastreduce.Whole`; the
                model is ``reproducible``, which needs seeds for every batch; or the graph cannot
                hold the optimizer's step.
        """
        return self._parallel.graphed(loss_fn, inputs, targets, reduction, optimizer)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Change nothing: for scripts that accumulate gradients as DistributedDataParallel wants.

        Gradients are summed over the replicas in every backward pass, also in here; so they are
        complete whenever one looks at them. On one device that costs no more than keeping them
        apart, since either reads each replica's gradient once; between GPUs it moves each backward
        pass's gradients.

        >>> import torch, fastreduce
        >>> model = fastreduce.DataParallel(torch.nn.Linear(2, 1), devices=["cpu", "cpu"])
        >>> with model.no_sync():
        ...     model(torch.ones(2, 2)).sum().backward()
        >>> model(torch.ones(2, 2)).sum().backward()
        >>> model.bias.grad
        tensor([4.])
        """
        yield

    def check(self) -> None:
        """Check that all replicas hold the bits of the model's parameters.

        Replicas on the model's own device share its memory, so only those on others can differ.
        Raises `fastreduce.parallel.same_bits.ReplicasDiffer`, which names replica and parameter.
        """
        self._parallel.replicas.check()

    @property
    def devices(self) -> list[torch.device]:
        """The device of each replica."""
        return list(self._parallel.replicas.devices)

    @property
    def shares(self) -> list[float]:
        """Each replica's part of the batch, or each micro-shard's, relative to the others'."""
        return list(self._parallel.shares)

    def __getattr__(self, name: str) -> Any:
        if name == "module" and "module" not in self._modules:
            return self._parallel.replicas.net  # as scripts written for nn.DataParallel say
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        check_attribute(name)
        if isinstance(value, MethodType) and value.__self__ is self:
            # Accelerate replaces ``forward`` like this. Each replica calls its own.
            value = MethodType(value.__func__, self._parallel.replicas.net)
        super().__setattr__(name, value)

    def __copy__(self) -> DataParallel:
        return DataParallel(copy.copy(self._parallel.replicas.net), **self._settings())

    def __deepcopy__(self, memo: dict[int, Any]) -> DataParallel:
        net = copy.deepcopy(self._parallel.replicas.net, memo)
        if not vars(net):  # a copy that has only begun
            raise RuntimeError(
                "an attribute of it, inside, refers to the DataParallel that runs it; set it "
                "before the module is wrapped, or keep it outside of the module"
            )
        copied = DataParallel(net, **self._settings())
        memo[id(self)] = copied
        return copied

    def __reduce_ex__(self, _: Any) -> Any:
        return _rebuilt, (self._parallel.replicas.net, self._settings())

    def __prepare_scriptable__(self) -> nn.Module:
        """What torch.jit.script compiles: threads and autograd's sums cannot be."""
        refuse_to_be_scripted()

    def _settings(self) -> dict[str, Any]:
        return {"devices": self.devices, **asdict(self._parallel.settings)}


# A notebook that shows or completes the arguments looks at __new__ before __init__.
vars(DataParallel.__new__)["__signature__"] = inspect.signature(DataParallel.__init__)


def _rebuilt(module: nn.Module, settings: dict[str, Any]) -> DataParallel:
    detach_saved_results(module)
    return DataParallel(module, **settings)


@functools.cache
def _class_for(kind: type[nn.Module]) -> type[DataParallel]:
    """The class of a parallel ``kind``, of that name, so that it prints as the bare module."""

    def new(_: type, *args: Any, **kwargs: Any) -> nn.Module:
        return kind(*args, **kwargs)

    @functools.wraps(kind.forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        # A function that has replaced ``forward`` may call this one, for the module or a replica.
        called = self if isinstance(self, DataParallel) else functools.partial(kind.forward, self)
        return called(*args, **kwargs)

    own = {"__slots__": (), "__doc__": kind.__doc__, "__module__": kind.__module__}
    # Where the module's methods call type(self), as slices of nn.Sequential do, they get a bare
    # module.
    return type(kind.__name__, (DataParallel, kind), {**own, "__new__": new, "forward": forward})
