"""Has the shards of a batch run at the same time, each in a thread with its part of the cores.

On GPUs the work of shards overlaps by itself, as one thread issues it. On the CPU, small shards
one after the other leave cores idle: after each operation, all of them wait for the slowest.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from fastreduce import _C
from fastreduce.parallel.draws import RandomStates
from fastreduce.parallel.meeting import saved_tensors_hooks
from fastreduce.parallel.structure import hooks_of, own_generators

# Shards whose operations compute fewer elements run one after the other, because threads of their
# own cost a millisecond per step. With 2 and 4 replicas on 2 cores, steps of shards up to 0.4
# million elements took 0.9 to 1.6 times as long at the same time; above 1.1 million 0.78 to 1.0
# times, but for one model (1.06 to 1.15; 14 models, Xeon, family 6 model 85, 2026-11-28).
LEAST_ELEMENTS = 1_000_000

# Whether a module draws in training and in evaluation, where that is known before its first pass.
KNOWN_TO_DRAW: dict[bool, bool] = {}


class HasDrawn(BaseException):
    """Shards have drawn random numbers at the same time, so nobody knows which has which."""


class ShardThreads:
    """A thread for each of so many shards, with equal parts of the calling thread's cores."""

    def __init__(self, count: int):
        self._count = count
        self._threads: list[ThreadPoolExecutor] = []
        self._made_for = 0, 0

    def get(self) -> list[ThreadPoolExecutor]:
        """One executor per shard, so that a shard has the same thread in all passes."""
        cores = torch.get_num_threads()
        if self._made_for != (os.getpid(), cores):  # a forked process has no other threads
            self._made_for = os.getpid(), cores
            _keep_freed_memory()
            each = max(1, cores // self._count)
            self._threads = [
                ThreadPoolExecutor(1, "fastreduce replica", _take, (each,))
                for _ in range(self._count)
            ]
            wait([thread.submit(int) for thread in self._threads])
            torch.set_num_threads(cores)  # what new threads of others begin with
        return self._threads


def _keep_freed_memory() -> None:
    """Have the C library keep more of what is freed, or each step fetches its memory anew.

    glibc gives what is free at the end of a thread's memory back to the system if it is more than
    twice the largest block that has been mapped for itself alone and freed again; 32 MiB is the
    largest that counts (mallopt(3), M_MMAP_THRESHOLD). So a block is made, not touched, and freed.
    For a CNN on 2 cores this took 13,000 page faults and a quarter of the time off a step (Xeon,
    family 6 model 85, 2026-11-28).
    """
    torch.empty((32 << 20) - 4096, dtype=torch.uint8)


def _take(cores: int) -> None:
    torch.set_num_threads(cores)
    torch.get_num_threads()  # or the first operation would take what another thread sets later


class AtOnce:
    """Says when shards may run at the same time, so that only the clock shows it.

    They may not where they would write to the same: where hooks and modes are the user's, and where
    they draw random numbers. Whether they draw is seen in the first pass, whose shards run one
    after the other. Should a later pass draw nevertheless, it is undone and repeated in that way.

    Args:
        wanted: False if they never may.
        net: the module. When its structure has changed it takes a new object.
    """

    def __init__(self, wanted: bool, net: nn.Module, threads: ShardThreads):
        self._possible = (
            wanted
            and not own_generators(net)
            and not any(_is_compiled(x) or hooks_of(x) for x in net.modules())
        )
        self._net, self._threads = net, threads
        self._draws = KNOWN_TO_DRAW.copy()  # in training, and in evaluation
        self._looks = False
        self._elements = 0.0  # of a shard's last backward pass

    def may(self, owners: Sequence[int]) -> bool:
        """Whether shards of these replicas may run at the same time in the pass that begins."""
        training = self._net.training
        possible = self._possible and 1 < len(owners) == len(set(owners)) and _is_free()
        self._looks = possible and training not in self._draws
        large = self._elements >= LEAST_ELEMENTS
        return possible and large and not self._draws.get(training, True)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Around each part of a pass in which one shard runs."""
        before = RandomStates() if self._looks else None
        yield
        if before is not None:
            training = self._net.training
            self._draws[training] = self._draws.get(training, False) or before != RandomStates()

    @contextmanager
    def all(self) -> Iterator[list[ThreadPoolExecutor]]:
        """Around a pass in which all shards run, in these threads. Raises HasDrawn."""
        before = RandomStates()
        yield self._threads.get()
        if before != RandomStates():
            self._draws[self._net.training] = True
            before.restore()
            raise HasDrawn

    def backward(self, losses: Sequence[Tensor]) -> None:
        """Do what ``torch.autograd.backward(losses)`` does, for one loss per shard.

        If a shard raises, no gradient has changed.
        """
        if self._possible and len(losses) > 1 and _is_free() and not torch.is_anomaly_enabled():
            passes = _C.BackwardOfShards(losses)
            self._elements = passes.elements
            if passes.is_apart and self._elements >= LEAST_ELEMENTS:
                threads = self._threads.get()
                running = [threads[i].submit(passes.run, i) for i in range(len(losses))]
                wait(running)
                for shard in running:
                    shard.result()
                passes.sum()
                return
        torch.autograd.backward(losses)


def _is_compiled(module: nn.Module) -> bool:
    by_dynamo = "torch._dynamo" in sys.modules and torch._dynamo.OptimizedModule
    scripted = isinstance(module, torch.jit.ScriptModule)
    return scripted or isinstance(module, by_dynamo or ()) or module._compiled_call_impl is not None


def _is_free() -> bool:
    """Whether this thread has cores to give, and torch calls nobody else at its operations."""
    if torch.compiler.is_compiling():
        return False
    return torch.get_num_threads() > 1 and not (
        torch._C._len_torch_function_stack()
        or _get_current_dispatch_mode_stack()
        or torch._C._functorch.maybe_current_level() is not None
        or saved_tensors_hooks()
        or torch.nn.modules.module._has_any_global_hook()  # type: ignore[no-untyped-call]
    )
