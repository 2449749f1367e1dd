"""Copies of a module's structure, whose parameters follow the module's own.

A replica on the module's device uses the same memory for its parameters. Replicas on another device
have one copy there, which follows when the module's parameters have changed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

import fastreduce
from fastreduce import _C
from fastreduce.parallel.same_bits import check_replicas
from fastreduce.parallel.structure import copied, slots, structure_of

# The sizes of torch's DistributedDataParallel.
FIRST_BUCKET_BYTES, BUCKET_BYTES = 1 << 20, 25 << 20

# Attributes of these types follow the module's: training, eps, a dropout's p.
_FOLLOWING = {bool, int, float, str, type(None)}


class Replicas:
    """One module per device; the first is ``net`` itself.

    ``share=False`` is for tests without GPUs: replicas on the module's own device get copies too.
    """

    def __init__(self, net: nn.Module, devices: Sequence[torch.device], share: bool = True):
        self.net, self.devices, self.share = net, list(devices), share
        self._lock = threading.Lock()  # the module has the parameters of one shard at a time
        self._structure: list[Any] = []
        self._versions: list[int] = []
        self._modules: list[nn.Module] = []

    def run(self, owners: Sequence[int], inputs: Sequence[tuple[Any, Any]]) -> list[Any]:
        """Run shard i's inputs, ``(args, kwargs)``, through replica ``owners[i]``, one by one.

        Each shard begins with the module's buffers as they are now; what the first shard makes of
        them stays. In training each shard draws random numbers from a seed of its own, which
        depends on torch's seed and the number of the shard only.
        """
        with self._lock:
            return self._run(owners, inputs)

    def _run(self, owners: Sequence[int], inputs: Sequence[tuple[Any, Any]]) -> list[Any]:
        self.update()
        parameters = self._parameters_of([self._memories[owner] for owner in owners])
        first_buffers = self._buffers()
        buffers = [
            first_buffers
            if shard == 0
            else [b.to(self.devices[owner], copy=True, non_blocking=True) for b in first_buffers]
            for shard, owner in enumerate(owners)
        ]
        seed = int(torch.randint(2**62, ())) if self.net.training else None
        outputs = []
        try:
            with _kept({torch.device("cpu"), *self.devices} if seed is not None else ()):
                for shard, (owner, (args, kwargs)) in enumerate(zip(owners, inputs, strict=True)):
                    self._put(owner, parameters[shard], buffers[shard])
                    if seed is not None:
                        for device in {torch.device("cpu"), self.devices[owner]}:
                            _generator(device).manual_seed(seed + shard)
                    outputs.append(self._modules[owner](*args, **kwargs))
                    if shard == 0:
                        first_buffers = self._buffers()  # some may be new tensors
        finally:
            self._put(0, self._params, first_buffers)
        return outputs

    def _parameters_of(self, memories: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """For each shard, the parameters on these memories, joined to the module's by autograd."""
        found = [[*memory] for memory in memories]
        for bucket in self.buckets:
            params = [self._params[number] for number in bucket]
            joined = _C.replicate(params, [[memory[i] for i in bucket] for memory in memories])
            for shard, aliases in zip(found, joined, strict=True):
                for number, alias in zip(bucket, aliases, strict=True):
                    shard[number] = alias
        return found

    def _put(self, owner: int, parameters: Sequence[Tensor], buffers: Sequence[Tensor]) -> None:
        for (holder, name), number in zip(self._parameter_slots[owner], self._numbers, strict=True):
            holder[name] = parameters[number]
        for (holder, name), buffer in zip(self._buffer_slots[owner], buffers, strict=True):
            holder[name] = buffer

    def _buffers(self) -> list[Tensor]:
        """Those of the module, in the order of their slots."""
        held = (holder[name] for holder, name in self._buffer_slots[0])
        return [buffer for buffer in held if buffer is not None]

    def check(self) -> None:
        """Raise ReplicasDiffer if a copy on another device has other bits than the module."""
        self.update()
        names = [name for name, _ in self.net.named_parameters()]
        check_replicas([self._params, *self._copies.values()], names)

    # ---- following the module

    def update(self) -> None:
        """Find what has changed in the module since the last time, and follow it."""
        structure = [structure_of(module) for module in self.net.modules()]
        if structure != self._structure:
            self._build()
            self._structure = structure
        for module in self._modules[1:]:
            for own, first in zip(module.modules(), self.net.modules(), strict=True):
                for name, value in vars(first).items():
                    if type(value) in _FOLLOWING and vars(own).get(name) is not value:
                        vars(own)[name] = value
        versions = [parameter._version for parameter in self._params]
        if self._copies and versions != self._versions:
            with torch.no_grad():
                fastreduce.broadcast([[p.detach() for p in self._params], *self._copies.values()])
            self._versions = versions

    def _build(self) -> None:
        self._params: list[Tensor] = list(self.net.parameters())
        self._check()
        self.buckets = buckets_of(self._params)
        self._versions = [parameter._version for parameter in self._params]
        self._copies: dict[torch.device, list[Tensor]] = {}
        self._memories = []
        for replica, device in enumerate(self.devices):
            if replica == 0 or (self.share and device == self.devices[0]):
                self._memories.append(self._params)
                continue
            if device not in self._copies:
                self._copies[device] = [p.detach().to(device, copy=True) for p in self._params]
            self._memories.append(self._copies[device])
        self._modules = [
            self.net,
            *(copied(self.net, self._params, memory) for memory in self._memories[1:]),
        ]
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
            if parameter.device != self.devices[0]:
                raise ValueError(
                    f"DataParallel: parameter {name} is on {parameter.device}, but the first "
                    f"replica, which is the module itself, belongs on {self.devices[0]}; move it "
                    f'with model.to("{self.devices[0]}"), or name other devices'
                )


def buckets_of(params: Sequence[Tensor]) -> list[list[int]]:
    """The numbers of the parameters, the last ones first, in groups that are summed together.

    Backward passes usually have the last parameters' gradients first. A group is summed, and its
    replicas' gradients are freed, while the rest of the backward pass goes on. The first one is
    small, so that summing begins early.

    >>> buckets_of([torch.empty(1 << 20) for _ in range(9)])
    [[8], [7, 6, 5, 4, 3, 2, 1], [0]]
    """
    buckets: list[list[int]] = []
    room_bytes = 0
    for number in reversed(range(len(params))):
        if room_bytes <= 0:
            room_bytes = BUCKET_BYTES if buckets else FIRST_BUCKET_BYTES
            buckets.append([])
        buckets[-1].append(number)
        room_bytes -= params[number].nbytes
    return buckets


def _generator(device: torch.device) -> torch.Generator:
    if device.type == "cpu":
        return torch.default_generator
    return torch.cuda.default_generators[device.index]


@contextmanager
def _kept(devices: Iterable[torch.device]) -> Iterator[None]:
    """Leave the devices' generators as they were. (torch.random.fork_rng and torch.manual_seed
    take a millisecond, mostly for tracebacks; 2 Xeon cores, torch 2.13, 2026-11-22.)
    """
    states = {device: _generator(device).get_state() for device in devices}
    try:
        yield
    finally:
        for device, state in states.items():
            _generator(device).set_state(state)
