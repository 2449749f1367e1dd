"""Copies of a module's structure, whose parameters follow the module's own.

A replica on the module's device uses the same memory for its parameters. Replicas on another device
have one copy there, which follows when the module's parameters have changed.
"""

from __future__ import annotations

import functools
import operator
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

import fastreduce
from fastreduce.parallel.attributes import Attributes
from fastreduce.parallel.buckets import Buckets
from fastreduce.parallel.draws import Draws, capturing
from fastreduce.parallel.meeting import one_by_one, together
from fastreduce.parallel.same_bits import check_replicas
from fastreduce.parallel.structure import copied, slots, structure_of
from fastreduce.parallel.sync_batchnorm import SyncBatchNorm, sums
from fastreduce.parallel.untraced import untraced
from fastreduce.parallel.watch import Watch

Around: TypeAlias = "Callable[[int], AbstractContextManager[None]]"


@contextmanager
def _named(shard: int, shards: int) -> Iterator[None]:
    """An error of the module says in which shard it was."""
    try:
        yield
    except Exception as error:
        if sys.version_info >= (3, 11):
            error.add_note(f"DataParallel: in shard {shard} of {shards}, counted from 0")
        raise


@contextmanager
def restored_if_it_raises(buffers: Sequence[Tensor]) -> Iterator[None]:
    # The replays of a graph raise nothing, and would copy in vain.
    before = [] if capturing() else [buffer.clone() for buffer in buffers]
    try:
        yield
    except BaseException:
        with torch.inference_mode():  # which may write to buffers that were made in it, too
            for buffer, values in zip(buffers, before, strict=False):
                buffer.data.copy_(values)  # .data: graphs of earlier passes may hold the buffer
        raise


def _places(tensors: Sequence[Tensor]) -> list[int]:
    """Their addresses; zeros inside a function transform of torch.func, where they have none."""
    try:
        return [tensor.data_ptr() for tensor in tensors]
    except RuntimeError:
        return [0] * len(tensors)


def _copies(buffers: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """One per buffer, which several modules may share: what one writes, the others read."""
    made = {id(b): b.to(device, copy=True, non_blocking=True) for b in buffers}
    return [made[id(b)] for b in buffers]


def nothing(_: int) -> AbstractContextManager[None]:
    return nullcontext()


class Replicas:
    """One module per device; the first is ``net`` itself.

    Args:
        sync_batchnorm: BatchNorm layers normalize with all shards of a batch.
        only_torch_draws: refuse modules that draw random numbers from Python or NumPy.
        share: False is for tests without GPUs: replicas on the module's own device get copies too.
    """

    def __init__(
        self,
        net: nn.Module,
        devices: Sequence[torch.device],
        sync_batchnorm: bool = False,
        only_torch_draws: bool = False,
        overlap: bool = True,
        share: bool = True,
    ):
        self.net, self.devices, self.share = net, list(devices), share
        self.sync_batchnorm, self.only_torch_draws = sync_batchnorm, only_torch_draws
        self._overlap = overlap
        self._lock = threading.Lock()  # the module has the parameters of one shard at a time
        self._thread = threading.local()  # whether a shard runs in it
        self._structure: list[Any] = []
        self._attributes = Attributes()
        self._modules: list[nn.Module] = []
        self._memories: list[list[Tensor]] = []

    def run(
        self, owners: Sequence[int], inputs: Sequence[tuple[Any, Any]], around: Around = nothing
    ) -> list[Any]:
        """Run shard i's inputs, ``(args, kwargs)``, through replica ``owners[i]``, one by one.

        Each shard begins with the module's buffers as they are now; what the first shard makes of
        them stays, unless one raises. In training each shard draws random numbers from a seed of
        its own, which depends on torch's seed and the number of the shard only.
        ``around(replica)`` is entered while the replica runs.

        Raises RuntimeError where the module calls the wrapper that is running it.
        """
        if getattr(self._thread, "runs_a_shard", False):
            raise RuntimeError(
                "DataParallel: forward has called the DataParallel that runs it, by "
                "model.compile(), a forward function that was replaced, or a hook; compile the "
                "module before it is wrapped (torch.compile(net)) or the wrapper "
                "(torch.compile(model)), and replace forward before the module is wrapped"
            )
        with self._lock:
            return self._run(owners, inputs, around)

    def _run(
        self, owners: Sequence[int], inputs: Sequence[tuple[Any, Any]], around: Around
    ) -> list[Any]:
        self.update()
        parameters = self._buckets.join([self._memories[owner] for owner in owners])
        held = self._buffers(0)
        buffers = [
            held if shard == 0 else _copies(held, self.devices[owner])
            for shard, owner in enumerate(owners)
        ]
        drawing = owners if self.net.training else ()
        draws = Draws([self.devices[owner] for owner in drawing], self.only_torch_draws)

        @contextmanager
        def turn(shard: int) -> Iterator[None]:
            self._put(owners[shard], parameters[shard], buffers[shard])
            with _named(shard, len(owners)), draws.of(shard), around(owners[shard]):
                places = _places(parameters[shard])
                yield
                self._check_parameters(owners[shard], parameters[shard], places)
            buffers[shard] = self._buffers(owners[shard])  # some may be new tensors

        calls = [
            functools.partial(self._call, self._modules[owner], args, kwargs)
            for owner, (args, kwargs) in zip(owners, inputs, strict=True)
        ]
        self._attributes.let_go()
        try:
            with draws, restored_if_it_raises(held):
                if self._synchronized is None:
                    return one_by_one(calls, turn)
                with self._synchronized:
                    return together(calls, turn, sums)
        except BaseException:
            buffers[0] = held
            raise
        finally:
            self._put(0, self._params, buffers[0])
            self._leave({x: own for x, own in zip(owners, parameters, strict=True) if x})
            self._attributes.keep()

    def _call(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        self._thread.runs_a_shard = True
        try:
            return module(*args, **kwargs)
        finally:
            self._thread.runs_a_shard = False

    def _leave(self, parameters: dict[int, list[Tensor]]) -> None:
        """Have all replicas but the module itself keep those of the last pass with gradients.

        Checkpointing runs modules again in the backward pass.
        """
        if torch.is_grad_enabled():
            self._left.update(parameters)
            return
        for owner in parameters:
            self._put_parameters(owner, self._left[owner])

    def forget_last_pass(self) -> None:
        """Drop the parameters that `_leave` has left, which hold an autograd graph."""
        self._left = dict(enumerate(self._memories))
        for owner, memory in enumerate(self._memories[1:], start=1):
            self._put_parameters(owner, memory)

    def _put(self, owner: int, parameters: Sequence[Tensor], buffers: Sequence[Tensor]) -> None:
        self._put_parameters(owner, parameters)
        for (holder, name), buffer in zip(self._buffer_slots[owner], buffers, strict=True):
            holder[name] = buffer

    def _put_parameters(self, owner: int, parameters: Sequence[Tensor]) -> None:
        for (holder, name), number in zip(self._parameter_slots[owner], self._numbers, strict=True):
            holder[name] = parameters[number]

    def _buffers(self, owner: int) -> list[Tensor]:
        """Those that a replica has now, in the order of its slots."""
        held = (holder[name] for holder, name in self._buffer_slots[owner])
        return [buffer for buffer in held if buffer is not None]

    def _check_parameters(
        self, owner: int, parameters: Sequence[Tensor], places: Sequence[int]
    ) -> None:
        """Raise ValueError if a forward pass has left others than it was given, or elsewhere."""
        found = [x for holder in self._holders[owner] for x in holder.values() if x is not None]
        wanted = [parameters[number] for number in self._numbers]
        pairs = zip(parameters, places, _places(parameters), strict=True)
        moved = {id(x) for x, before, after in pairs if before != after}
        if len(found) == len(wanted) and all(map(operator.is_, found, wanted)) and not moved:
            return
        kept = set(map(id, wanted)) - moved
        now = self._modules[owner].named_parameters()
        new = next((f"set parameter {name}" for name, x in now if id(x) not in kept), None)
        raise ValueError(
            f"DataParallel: forward has {new or 'deleted a parameter'}, but each replica has "
            "parameters of its own only while it runs, so that would be lost. Do it between two "
            "forward passes, or run one batch through the module before you wrap it"
        )

    def check(self) -> None:
        """Raise ReplicasDiffer if a copy on another device has other bits than the module."""
        self.update()
        names = [name for name, _ in self.net.named_parameters()]
        check_replicas([self._params, *self._copies.values()], names)

    # ---- following the module

    @untraced
    def update(self) -> None:
        """Find what has changed in the module since the last time, and follow it."""
        structure = [structure_of(module) for module in self.net.modules()]
        if structure != self._structure or not self._attributes.follow():
            with torch.inference_mode(False):  # or what is copied now could never be trained
                self._build()
            self._attributes = Attributes(*(x.modules() for x in self._modules))
            self._structure = structure
        # In a graph always: its replays find the parameters changed.
        if self._watch and (self._watch.changed(self._params) or capturing()):
            with torch.no_grad():
                fastreduce.broadcast([[p.detach() for p in self._params], *self._copies.values()])

    def _build(self) -> None:
        self._params: list[Tensor] = list(self.net.parameters())
        self._check()
        self._buckets = Buckets(self._params, self._overlap)
        self._copies: dict[torch.device, list[Tensor]] = {}
        self._memories = []
        for replica, device in enumerate(self.devices):
            if replica == 0 or (self.share and device == self.devices[0]):
                self._memories.append(self._params)
                continue
            if device not in self._copies:
                self._copies[device] = [p.detach().to(device, copy=True) for p in self._params]
            self._memories.append(self._copies[device])
        self._watch = Watch() if self._copies else None
        if self._watch:
            self._watch.changed(self._params)  # the copies are new
        self._left = dict(enumerate(self._memories))
        self._modules = [
            self.net,
            *(copied(self.net, self._params, memory) for memory in self._memories[1:]),
        ]
        self._synchronized = SyncBatchNorm(self._modules) if self.sync_batchnorm else None
        self._holders = [[x._parameters for x in module.modules()] for module in self._modules]
        self._parameter_slots = [slots(self.net, x, "_parameters") for x in self._modules]
        self._buffer_slots = [slots(self.net, x, "_buffers") for x in self._modules]
        # Modules may share a parameter, which then has several slots.
        numbers = {id(parameter): number for number, parameter in enumerate(self._params)}
        self._numbers = [numbers[id(holder[name])] for holder, name in self._parameter_slots[0]]

    def _check(self) -> None:
        if not self._params:
            raise ValueError(
                f"DataParallel: {type(self.net).__name__} has no parameters, so there is nothing "
                "to train; call the module itself"
            )
        for name, parameter in self.net.named_parameters():
            if is_lazy(parameter):
                raise ValueError(
                    f"DataParallel: parameter {name} is not initialized yet; run one batch through "
                    "the module before you wrap it"
                )
            if parameter.is_inference():
                raise ValueError(
                    f"DataParallel: parameter {name} was made under torch.inference_mode(), so "
                    "nothing can train it; make the module outside"
                )
            if parameter.device != self.devices[0]:
                raise ValueError(
                    f"DataParallel: parameter {name} is on {parameter.device}, but the first "
                    f"replica, which is the module itself, belongs on {self.devices[0]}; move it "
                    f'with model.to("{self.devices[0]}"), or name other devices'
                )
