"""What a module consists of: copies of it, and the places of its parameters and buffers."""

from __future__ import annotations

import copy
import functools
import random
import sys
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

Slot: TypeAlias = "tuple[dict[str, Tensor | None], str]"
"""Where a module keeps a parameter or a buffer: its dict of them, and the name."""


def copied(
    net: nn.Module, params: Sequence[Tensor], memory: Sequence[Tensor], device: torch.device
) -> nn.Module:
    """A copy of the module in which nothing trains: parameters are put in for each shard.

    Other tensors that are where its parameters are go to ``device``.
    """
    memo: dict[int, Any] = {}
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    for parameter, values in zip(params, memory, strict=True):
        memo[id(parameter)] = _placeholder(names[id(parameter)], parameter, values)
    for buffer in net.buffers():
        memo[id(buffer)] = buffer.detach()
    known = {id(value) for value in memo.values()}
    for shared in (*_owners_of_hooks(net), *own_generators(net)):
        memo[id(shared)] = shared
    try:
        with _TensorsOn(device, params[0].device):
            copied = copy.deepcopy(net, memo)
    except Exception as error:
        raise ValueError(
            f"DataParallel: {type(net).__name__} cannot be copied: {error}. Each replica "
            "is a copy.deepcopy of the module; keep what cannot be copied out of it"
        ) from error
    for value in memo.values():
        trains = isinstance(value, Tensor) and value.requires_grad and value.is_leaf
        if trains and id(value) not in known:
            raise ValueError(
                f"DataParallel: {type(net).__name__} holds a tensor of shape "
                f"{tuple(value.shape)} that requires grad but is not one of its parameters, so "
                "replicas would train copies of it; make it an nn.Parameter of a module, or "
                "detach it if it is a result that was saved and loaded with the module"
            )
    return copied


class _TensorsOn(TorchFunctionMode):
    """Has copy.deepcopy put tensors of ``home`` on a device, and leave results of operations that a
    module keeps, which torch cannot copy.

    They are what the last forward pass has left there, such as features, or what was set there:
    parts of a parameter, or weights that another network has made, whose gradients go back there.
    """

    def __init__(self, device: torch.device, home: torch.device):
        super().__init__()
        self._device, self._home = device, home

    def __torch_function__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        copies = func is Tensor.__deepcopy__
        is_result = copies and args[0].grad_fn is not None
        value = args[0] if is_result else func(*args, **(kwargs or {}))
        if not copies or value.device != self._home or (value.requires_grad and not is_result):
            return value
        with torch.enable_grad():
            return value.to(self._device)


def detach_saved_results(net: nn.Module) -> None:
    """Detach what a wrapped module had in its attributes when it was saved, such as the weight that
    `nn.utils.weight_norm` had computed: torch.load makes of such results what trains by itself."""
    for module in net.modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor) and value.requires_grad:
                vars(module)[name] = value.detach()


def own_generators(net: nn.Module) -> list[Any]:
    """The module's own random generators: shards draw from the same, one after the other.

    Copies would give all replicas the same numbers, and other ones on another number of replicas.
    """
    numpy = sys.modules.get("numpy")
    kinds: tuple[type, ...] = (torch.Generator, random.Random)
    if numpy is not None:
        kinds += (numpy.random.Generator, numpy.random.RandomState)
    return [x for m in net.modules() for x in vars(m).values() if isinstance(x, kinds)]


def has_max_norm(module: nn.Module) -> bool:
    """Whether its forward pass writes to its weight: it shortens the rows that it looks up."""
    return isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None


def _owners_of_hooks(net: nn.Module) -> list[Any]:
    """What the user's hooks write to: the hooks of all replicas write to the same.

    Hooks that know a module of ``net`` are not among them: each replica's know its own.
    """
    modules = set(net.modules())
    owners = []
    for hook in (hook for module in modules for hook in hooks_of(module)):
        owner = getattr(hook, "__self__", hook)  # a bound method has an owner
        known: list[Any] = [owner]
        while isinstance(known[-1], functools.partial):
            made = known[-1]
            known += [*made.args, *made.keywords.values(), made.func]
            known[-1] = getattr(made.func, "__self__", made.func)
        if not any(isinstance(x, nn.Module) and x in modules for x in known):
            owners.append(owner)
    return owners


def hooks_of(module: nn.Module) -> list[Any]:
    """The user's functions that are called beside forward and backward of this module."""
    forward = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
    return [*forward, *module._backward_pre_hooks.values(), *module._backward_hooks.values()]


def refuse_placeholder(leaf: Any) -> None:
    """Raise RuntimeError if this leaf of an autograd graph is in the place of a parameter."""
    if hasattr(leaf, "of_fastreduce"):
        leaf.of_fastreduce(leaf)


def _placeholder(name: str, parameter: Tensor, values: Tensor) -> Tensor:
    held = nn.Parameter(values.detach(), requires_grad=parameter.requires_grad)

    def refuse(_: Any) -> None:
        raise RuntimeError(
            f"DataParallel: forward has used parameter {name} through another reference than its "
            "module's attribute (a list, a closure), where replicas cannot follow; read it from "
            "the module in forward, as self.weight"
        )

    if held.requires_grad:
        held.register_post_accumulate_grad_hook(refuse)  # type: ignore[no-untyped-call]
        # The hook is not called by torch.autograd.grad, so `check_graph` looks for what is marked.
        held.of_fastreduce = refuse  # type: ignore[attr-defined]
    return held


def structure_of(module: nn.Module) -> Any:
    """What makes new copies necessary when it changes.

    It holds the modules themselves: a new one may have the address of one that is gone.
    """
    return (
        module,
        type(module),
        [*module._modules.items()],
        [
            (name, id(p), p.requires_grad, p.dtype, p.device, None if is_lazy(p) else p.shape)
            for name, p in module._parameters.items()
            if p is not None
        ],
        [(name, buffer is None) for name, buffer in module._buffers.items()],
        [*module._forward_hooks, *module._forward_pre_hooks],
        [*module._backward_hooks, *module._backward_pre_hooks],
    )


def slots(net: nn.Module, module: nn.Module, kind: str) -> list[Slot]:
    """The slots of ``module``, a copy of ``net``, for the tensors that ``net`` has."""
    return [
        (getattr(own, kind), name)
        for original, own in zip(net.modules(), module.modules(), strict=True)
        for name, tensor in getattr(original, kind).items()
        if tensor is not None
    ]
