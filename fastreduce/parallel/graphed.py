"""A training step of all replicas as one CUDA graph: one launch instead of thousands.

One process launches the kernels of all GPUs, one after the other; a graph launches them together.
One GPU with several replicas has run the passes and the optimizer so; several GPUs have not.

Source: "CUDA Graphs" in the notes of PyTorch's documentation, for what a capture needs.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.utils import _pytree as pytree

from fastreduce.parallel.trees import Whole, leaves_of
from fastreduce.parallel.update import Update

# As many as torch's notes advise; two are needed to find the order of the buckets.
WARM_UP_STEPS = 3


class GraphedStep:
    """What `DataParallel.graphed` returns: a step that is launched at once.

    ``step(inputs, *targets)`` takes a batch of the shapes that it was made with, sets each
    parameter's ``grad`` to the gradient of that batch and returns its loss. With an ``update`` it
    changes the parameters, too.
    """

    def __init__(
        self,
        step: Callable[[Any, Any], Tensor],
        module: torch.nn.Module,
        devices: Sequence[torch.device],
        batch: tuple[Any, Any],
        update: Update | None = None,
    ):
        self._module, self._devices, self._update = module, list(dict.fromkeys(devices)), update
        here = self._devices[0]
        leaves, self._shape = leaves_of(batch)
        if any(isinstance(leaf, Whole) for leaf in leaves):
            raise ValueError(
                "graphed: found an argument that is fastreduce.Whole, wanted tensors that are cut; "
                "what all replicas need whole can be a buffer of the module"
            )
        self._inputs = [x.to(here, copy=True) if isinstance(x, Tensor) else x for x in leaves]
        own = pytree.tree_unflatten(self._inputs, self._shape)
        self._params = list(module.parameters())
        _check_that_no_graph_holds(module)

        def whole() -> Tensor:
            loss = step(*own)
            if update:
                update()
            return loss

        with _gradients_kept(self._params):
            with _unchanged(module, self._devices), update.undone() if update else nullcontext():
                for _ in range(WARM_UP_STEPS):
                    self._forget_gradients()
                    whole()
            self._forget_gradients()
            self._replay, self._loss = captured(whole, self._devices)
            self._gradients = [parameter.grad for parameter in self._params]
        self._pointers = [parameter.data_ptr() for parameter in self._params]
        if update:
            update.keep()

    def __call__(self, inputs: Any, *targets: Any) -> Tensor:
        leaves, shape = leaves_of((inputs, targets))
        self._check(leaves, shape)
        for own, new in zip(self._inputs, leaves, strict=True):
            if isinstance(own, Tensor):
                own.copy_(new, non_blocking=True)
        self._replay()
        if self._update:  # so that replicas on other devices notice the new values
            torch.autograd.graph.increment_version(self._update.params)
        for parameter, gradient in zip(self._params, self._gradients, strict=True):
            parameter.grad = gradient
        return self._loss.clone()

    def _forget_gradients(self) -> None:
        for parameter in self._params:
            parameter.grad = None

    def _check(self, leaves: Sequence[Any], shape: Any) -> None:
        found, wanted = _described(leaves), _described(self._inputs)
        if shape != self._shape or found != wanted:
            raise ValueError(
                f"graphed: found a batch of {', '.join(found)}; wanted {', '.join(wanted)}, as "
                "when the step was captured; call model.backward for other batches"
            )
        params = list(self._module.parameters())
        if [parameter.data_ptr() for parameter in params] != self._pointers:
            raise RuntimeError(
                "graphed: the module's parameters are not those that were captured; call "
                "model.graphed again after changing or moving them"
            )
        if self._update:
            self._update.check()


def _check_that_no_graph_holds(module: torch.nn.Module) -> None:
    """Raise RuntimeError if an earlier pass's autograd graph still leads to the parameters.

    It keeps the nodes that accumulate their gradients, which run on the stream of that pass: as a
    rule the default stream, which no capture may wait for.
    """
    mark = "earlier pass"
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    for _ in range(2):
        for parameter in trained.values():
            _metadata(parameter)[mark] = True  # gone with the node, unless a graph holds that
        held = [name for name, parameter in trained.items() if mark in _metadata(parameter)]
        if not held:
            return
        gc.collect()
    raise RuntimeError(
        f"graphed: found the autograd graph of an earlier pass, which leads to {held[0]}; delete "
        "what holds it, such as the loss or an output of that pass, or keep it detached"
    )


def _metadata(parameter: Tensor) -> dict[str, Any]:
    """Of the node that accumulates the parameter's gradient."""
    return cast("dict[str, Any]", get_gradient_edge(parameter).node.metadata)


def captured(
    call: Callable[[], Tensor], devices: Sequence[torch.device]
) -> tuple[Callable[[], None], Tensor]:
    """What replays the call, and its result, which each replay overwrites."""
    first, others = devices[0], devices[1:]
    graph = torch.cuda.CUDAGraph()
    pools = [_pool_on(device) for device in others]  # torch gives the first device one itself
    with torch.cuda.device(first):  # where the seeds are: each replay sets them on its own stream
        for device in others:
            graph.register_generator_state(torch.cuda.default_generators[device.index])
    with ExitStack() as stack:
        stack.enter_context(torch.cuda.device(first))
        own = torch.cuda.Stream(first)  # type: ignore[no-untyped-call]
        stack.enter_context(torch.cuda.graph(graph, stream=own))
        main = torch.cuda.current_stream(first)
        streams = [torch.cuda.Stream(x) for x in others]  # type: ignore[no-untyped-call]
        for device, stream, pool in zip(others, streams, pools, strict=True):
            stream.wait_stream(main)  # so it becomes part of the capture
            stack.enter_context(torch.cuda.stream(stream))
            stack.enter_context(_allocating_from(pool, device))
        with torch.cuda.device(first):
            result = call()
        for stream in streams:
            main.wait_stream(stream)

    def replay() -> None:
        current = torch.cuda.current_stream(first)
        for device in others:
            current.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.device(first):
            graph.replay()
        for device in others:
            torch.cuda.current_stream(device).wait_stream(current)

    replay.pools = pools  # type: ignore[attr-defined]  # the graph's memory on the other devices
    return replay, result


def _pool_on(device: torch.device) -> torch.cuda.MemPool:
    """It keeps its memory as long as it lives, but on the device where it was made alone."""
    with torch.cuda.device(device):
        return torch.cuda.MemPool()


@contextmanager
def _allocating_from(pool: torch.cuda.MemPool, device: torch.device) -> Iterator[None]:
    """As torch.cuda.use_mem_pool, but for all threads: autograd has one per device."""
    torch._C._cuda_beginAllocateToPool(device.index, pool.id)
    try:
        yield
    finally:
        torch._C._cuda_endAllocateToPool(device.index, pool.id)
        torch._C._cuda_releasePool(device.index, pool.id)


@contextmanager
def _gradients_kept(params: Sequence[Tensor]) -> Iterator[None]:
    before = [parameter.grad for parameter in params]
    try:
        yield
    finally:
        for parameter, gradient in zip(params, before, strict=True):
            parameter.grad = gradient


@contextmanager
def _unchanged(module: torch.nn.Module, devices: Sequence[torch.device]) -> Iterator[None]:
    """Leaves buffers and generators as they were, and runs on streams that a capture may follow."""
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    gpus = [device for device in devices if device.type == "cuda"]
    with torch.random.fork_rng(gpus):
        streams = [torch.cuda.Stream(gpu) for gpu in gpus]  # type: ignore[no-untyped-call]
        for gpu, stream in zip(gpus, streams, strict=True):
            stream.wait_stream(torch.cuda.current_stream(gpu))
        with ExitStack() as stack:
            if gpus:
                # First, since when a stream ends, torch makes one of the device from before current
                # again, which creates a context there.
                stack.enter_context(torch.cuda.device(gpus[0]))
            for stream in reversed(streams):  # so that the first device is current
                stack.enter_context(torch.cuda.stream(stream))
            yield
        for gpu, stream in zip(gpus, streams, strict=True):
            torch.cuda.current_stream(gpu).wait_stream(stream)
    with torch.no_grad():
        for buffer, value in buffers:
            buffer.copy_(value)


def _described(leaves: Sequence[Any]) -> list[str]:
    return [
        f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
        if isinstance(x, Tensor)
        else repr(x)
        for x in leaves
    ]
