"""Random numbers of the shards: each draws from a seed of its own."""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fastreduce import _C
from fastreduce.parallel.untraced import P, R, untraced


class Draws:
    """For one batch: what each shard draws depends on torch's seed and the shard's number only.

    Args:
        devices: one per shard; empty where nothing is drawn, as in eval mode.
        only_torch: refuse other random numbers, which would depend on who computes what.

    As a context manager it leaves torch's generators as they were, unless a shard has drawn and
    none has raised: then that of the CPU has given one number, the seed, or the next batch would
    draw the same again.
    """

    def __init__(self, devices: Sequence[torch.device], only_torch: bool):
        if capturing():
            devices = ()  # in a graph each replay goes on where the last one ended
        self._generators = [{_generator(torch.device("cpu")), _generator(x)} for x in devices]
        self._states: list[dict[torch.Generator, Tensor]] = [{} for _ in devices]
        self._only_torch = only_torch
        self._seed, self._drawn = 0, False
        self._at_once: list[_C.DrawsFrom] = []

    def __enter__(self) -> None:
        every = {generator for generators in self._generators for generator in generators}
        # In a shard of an outer model torch's generator is that shard's own.
        if every and _C.DrawsFrom.is_here():
            raise _C.HasDrawn
        self._before = _states_of(every)
        self._at_once = []  # without those of a pass that was undone
        if every:
            self._seed = _next_seed()

    def __exit__(self, error: object, *_: object) -> None:
        _set(self._before)
        if error is None and (self._drawn or any(shard.drew for shard in self._at_once)):
            _next_seed()

    def at_once(self, shards: int) -> list[_C.DrawsFrom]:
        """What each shard enters in a thread of its own, to draw as it would in `of`; or it raises
        HasDrawn, where one could see that it does not draw from torch's generator."""
        own: list[torch.Generator | None] = [None] * shards
        for shard in range(len(self._generators)):
            own[shard] = torch.Generator().manual_seed(self._seed + shard)
        self._at_once = [_C.DrawsFrom(generator) for generator in own]
        return self._at_once

    @contextmanager
    def of(self, shard: int) -> Iterator[None]:
        """In here the shard draws; the next time it goes on where it was."""
        if not self._generators:
            yield
            return
        if self._states[shard]:
            _set(self._states[shard])
        else:
            for generator in self._generators[shard]:
                generator.manual_seed(self._seed + shard)
        before = _states_of(self._generators[shard])
        others = states_of_others() if self._only_torch else None
        yield
        if self._only_torch and others != states_of_others():
            raise ValueError(
                f"DataParallel: forward of shard {shard} has drawn numbers from Python's random or "
                "numpy.random, which cannot be the same on any number of replicas, as reproducible "
                "promises; draw them from torch, or before the batch and pass them as arguments"
            )
        self._states[shard] = now = _states_of(self._generators[shard])
        self._drawn |= not all(_equal(before[generator], now[generator]) for generator in now)


def _unseen(function: Callable[P, R]) -> Callable[P, R]:
    """In the function no mode of the user's and no transform of torch.func sees an operation.

    It is no generator with a ``with``: where an exception of a debugger comes as it is resumed,
    Python 3.10 ends a generator without its ``finally``, and all stayed unseen in that thread.
    """
    off = torch._C

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        with off.DisableTorchFunction(), off._DisableTorchDispatch(), off._DisableFuncTorch():
            return function(*args, **kwargs)

    return called


# torch.random.fork_rng and torch.manual_seed take a millisecond, mostly for tracebacks
# (2 Xeon cores, torch 2.13, 2026-11-22).
@untraced
@_unseen
def _states_of(generators: Iterable[torch.Generator]) -> dict[torch.Generator, Tensor]:
    return {generator: generator.get_state() for generator in generators}


@untraced
@_unseen
def _set(states: dict[torch.Generator, Tensor]) -> None:
    for generator, state in states.items():
        generator.set_state(state)


@untraced
@_unseen
def _equal(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one, other)


@untraced
@_unseen
def _next_seed() -> int:
    return int(torch.randint(2**62, (), device="cpu"))


def capturing() -> bool:
    """Whether a CUDA graph is being captured on the current stream."""
    initialized: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return initialized and torch.cuda.is_current_stream_capturing()


def _generator(device: torch.device) -> torch.Generator:
    if device.type == "cpu":
        return torch.default_generator
    return torch.cuda.default_generators[device.index]


class RandomStates:
    """Of all generators from which a module on the CPU draws, unless it has one of its own."""

    def __init__(self) -> None:
        self.of_torch, self._others = torch.default_generator.get_state(), states_of_others()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RandomStates) or self._others != other._others:
            return False
        return _equal(self.of_torch, other.of_torch)

    def restore(self) -> None:
        torch.default_generator.set_state(self.of_torch)
        of_python, of_numpy = self._others
        random.setstate(of_python)
        if of_numpy is not None:
            kind, keys, *rest = of_numpy
            numbers = sys.modules["numpy"].frombuffer(keys, "uint32")
            sys.modules["numpy.random"].set_state((kind, numbers, *rest))


def states_of_others() -> tuple[Any, Any]:
    """Of Python's generator and NumPy's, as what can be compared."""
    of_numpy = sys.modules.get("numpy.random")  # NumPy imports it at its first use
    if of_numpy is None:
        return random.getstate(), None
    kind, keys, *rest = of_numpy.get_state()
    return random.getstate(), (kind, keys.tobytes(), *rest)
