"""Copies of a module's structure, whose parameters follow the module's own.

A replica on the module's device uses the same memory for its parameters. Replicas on another device
have one copy there, which follows when the module's parameters have changed.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

import fastreduce
from fastreduce.parallel.at_once import AtOnce, ShardThreads
from fastreduce.parallel.attributes import Attributes
from fastreduce.parallel.buckets import Buckets
from fastreduce.parallel.buffers import warn_of_differing
from fastreduce.parallel.draws import capturing
from fastreduce.parallel.lost_gradients import check_graph
from fastreduce.parallel.recurrent import RecurrentLayers
from fastreduce.parallel.same_bits import check_replicas
from fastreduce.parallel.structure import copied, has_max_norm, slots, structure_of
from fastreduce.parallel.sync_batchnorm import SyncBatchNorm
from fastreduce.parallel.untraced import untraced
from fastreduce.parallel.watch import Watch

_DELETED: Any = object()  # in the place of a buffer


def _places(tensors: Sequence[Tensor]) -> list[int]:
    """Their addresses; zeros where they have none: in transforms of torch.func, of FakeTensors."""
    nowhere = [0] * len(tensors)
    try:
        return nowhere if hasattr(tensors[0], "fake_mode") else [x.data_ptr() for x in tensors]
    except RuntimeError:
        return nowhere


@untraced
def _versions(tensors: Sequence[Tensor]) -> list[int]:
    try:
        return [tensor._version for tensor in tensors]
    except RuntimeError:  # tensors of inference mode have no version
        return [0] * len(tensors)


def _differing(tensors: Sequence[Tensor], before: Sequence[int], now: Sequence[int]) -> set[int]:
    return {id(x) for x, one, other in zip(tensors, before, now, strict=True) if one != other}


class Replicas:
    """One module per device; the first is ``net`` itself.

    Args:
        sync_batchnorm: BatchNorm layers normalize with all shards of a batch.
        at_once: replicas on the CPU may run at the same time.
        share: False is for tests without GPUs: replicas on the module's own device get copies too.
    """

    def __init__(
        self,
        net: nn.Module,
        devices: Sequence[torch.device],
        sync_batchnorm: bool = False,
        overlap: bool = True,
        at_once: bool = True,
        share: bool = True,
    ):
        self.net, self.devices, self.share = net, list(devices), share
        self.modules: list[nn.Module] = []
        self.attributes = Attributes()
        self.sync_batchnorm, self._overlap = sync_batchnorm, overlap
        self._at_once = at_once and all(device.type == "cpu" for device in devices)
        self._threads = ShardThreads(len(self.devices), meet=sync_batchnorm)
        self._structure: list[Any] = []
        self._graph_is_checked = False
        self._modes_looked_at = set[bool]()
        self._memories: list[list[Tensor]] = []

    def joined(self, owners: Sequence[int]) -> list[list[Tensor]]:
        """For shards of these replicas, the parameters that they run with."""
        return self._buckets.join([self._memories[owner] for owner in owners])

    def enter(self) -> None:
        """A forward pass begins."""
        self.attributes.let_go()
        self._recurrent.enter()
        if self._synchronized:
            self._synchronized.enter()

    def leave(
        self, owners: Sequence[int], parameters: Sequence[list[Tensor]], buffers: Sequence[Tensor]
    ) -> None:
        """A forward pass has ended: the module gets its own parameters back, and these buffers.

        The other replicas keep their parameters of the last pass with gradients, because
        checkpointing runs modules again in the backward pass. What has been interrupted may be
        done again.
        """
        self.put(0, self._params, buffers)
        self._recurrent.leave()
        if self._synchronized:
            self._synchronized.leave()
        last = {x: own for x, own in zip(owners, parameters, strict=True) if x}
        if torch.is_grad_enabled():
            self._left.update(last)
        else:
            for owner in last:
                self._put_parameters(owner, self._left[owner])
        self.attributes.keep(set(range(len(self.modules))) - set(owners))

    def check_graph(self, outputs: Sequence[Any]) -> None:
        """Look for what cannot go backward, once: the module decides, and looking takes time."""
        if torch.is_grad_enabled() and not self._graph_is_checked:
            check_graph(outputs)
            self._graph_is_checked = True

    def forget_last_pass(self) -> None:
        """Drop the parameters that `leave` has left, which hold an autograd graph."""
        self._left = dict(enumerate(self._memories))
        for owner, memory in enumerate(self._memories[1:], start=1):
            self._put_parameters(owner, memory)
        self._recurrent.forget()

    def put(self, owner: int, parameters: Sequence[Tensor], buffers: Sequence[Tensor]) -> None:
        self._put_parameters(owner, parameters)
        for (holder, name), buffer in zip(self._buffer_slots[owner], buffers, strict=True):
            if buffer is _DELETED:
                holder.pop(name, None)
            else:
                holder[name] = buffer

    def _put_parameters(self, owner: int, parameters: Sequence[Tensor]) -> None:
        for (holder, name), number in zip(self._parameter_slots[owner], self._numbers, strict=True):
            holder[name] = parameters[number]

    def buffers(self, owner: int) -> list[Tensor]:
        """Those that a replica has now, one for each of its slots.

        Forward may have set one to None, or deleted it; no pass begins with such slots.
        """
        held: list[Any] = [holder.get(n, _DELETED) for holder, n in self._buffer_slots[owner]]
        return held

    def look_at_buffers(self, shards: Sequence[Sequence[Tensor]]) -> None:
        """Warn of what is lost of them: once in training and once in evaluation, as it takes time,
        and waits for GPUs."""
        if len(shards) > 1 and self.net.training not in self._modes_looked_at and not capturing():
            self._modes_looked_at.add(self.net.training)
            warn_of_differing(self.net, self._buffer_slots[0], shards)

    @contextmanager
    def kept_parameters(self, owner: int, parameters: Sequence[Tensor]) -> Iterator[None]:
        """Raises ValueError if a forward pass leaves others than these, or changes one.

        Embeddings with a ``max_norm`` may shorten rows of the module's own weight: what one shard
        has shortened no other does again.
        """
        places, versions = _places(parameters), _versions(parameters)
        children = self._children_of(owner)
        yield
        found = [x for holder in self._holders[owner] for x in holder.values() if x is not None]
        wanted = [parameters[number] for number in self._numbers]
        moved = _differing(parameters, places, _places(parameters))
        written = _differing(parameters, versions, _versions(parameters))
        if written and self._memories[owner] is self._params:
            written -= {id(x.weight) for x in self.modules[owner].modules() if has_max_norm(x)}
        names = self.modules[owner].named_parameters()
        if children != self._children_of(owner):  # new ones may have parameters
            known = set(map(id, found))
            found += [x for x in self.modules[owner].parameters() if id(x) not in known]
        if moved or len(found) != len(wanted) or not all(map(operator.is_, found, wanted)):
            kept = set(map(id, wanted)) - moved
            new = next((f"set parameter {name}" for name, x in names if id(x) not in kept), None)
            raise ValueError(
                f"DataParallel: forward has {new or 'deleted a parameter'}, but each replica has "
                "parameters of its own only while it runs, so that would be lost. Do it between "
                "two forward passes, or run one batch through the module before you wrap it"
            )
        if written:
            name = next(name for name, x in names if id(x) in written)
            raise ValueError(
                f"DataParallel: forward of replica {owner}, on {self.devices[owner]}, has written "
                f"to parameter {name}. Every shard of a batch would do so again, or to a copy on "
                "another device, so a step would depend on the number of replicas. Do it between "
                "two forward passes (an embedding's max_norm, too), or make it a buffer"
            )

    def _children_of(self, owner: int) -> list[nn.Module | None]:
        return [child for children in self._children[owner] for child in children.values()]

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
        if structure != self._structure or not self.attributes.follow():
            self._structure = []  # so that the next pass builds again if this raises
            with torch.inference_mode(False):  # else the copies could never be trained
                self._build()
            self.attributes = Attributes(*(x.modules() for x in self.modules), devices=self.devices)
            self._structure = structure
        # Always in a graph, since at its replays the parameters have changed.
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
        self._graph_is_checked = False
        self._modes_looked_at.clear()
        self.modules = [
            self.net,
            *(
                copied(self.net, self._params, memory, device)
                for memory, device in zip(self._memories[1:], self.devices[1:], strict=True)
            ),
        ]
        self._recurrent = RecurrentLayers(self.modules)
        self.at_once = AtOnce(self._at_once, self.modules, self._threads)
        self._synchronized = SyncBatchNorm(self.modules) if self.sync_batchnorm else None
        self._holders = [[x._parameters for x in module.modules()] for module in self.modules]
        self._children = [[x._modules for x in module.modules()] for module in self.modules]
        self._parameter_slots = [slots(self.net, x, "_parameters") for x in self.modules]
        self._buffer_slots = [slots(self.net, x, "_buffers") for x in self.modules]
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
