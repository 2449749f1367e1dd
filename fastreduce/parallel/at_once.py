"""Has the shards of a batch run at the same time, each in a thread with its part of the cores.

On GPUs the work of shards overlaps by itself, as one thread issues it. On the CPU, small shards
one after the other leave cores idle: after each operation, all of them wait for the slowest.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from fastreduce import _C
from fastreduce.parallel.attributes import version
from fastreduce.parallel.draws import RandomStates
from fastreduce.parallel.meeting import as_in_this_thread, saved_tensors_hooks
from fastreduce.parallel.structure import has_max_norm, hooks_of, own_generators
from fastreduce.parallel.trees import leaves_of
from fastreduce.parallel.worker import Worker

# Models with fewer parameters, where a shard has fewer input elements, run one shard after the
# other, because threads of their own cost a millisecond per step. With 2 and 4 replicas on 2 cores
# (24 models, Xeon, family 6 model 85, 2026-11-28), a step of those took 0.87 to 1.6 times as long
# at the same time; of others 0.78 to 1.01 times, but for one (1.04 to 1.09). On 2 cores of an AMD
# EPYC (family 25 model 1, 2026-11-29) LeNet, a CNN and a small transformer took 0.76 to 0.97 times
# as long, but MLPs of 20,000 to 400,000 parameters, with steps of 9 to 19 ms, 1.1 to 1.6 times.
LEAST_PARAMETERS, LEAST_INPUTS = 1 << 20, 1 << 16


# Shards of a module whose forward function names one of these run one after the other, because all
# threads of a process share what they stand for: the state of torch's generator, from which shards
# do not draw at the same time; the levels of autograd's forward mode; and settings that are changed
# for a while and then set back: one shard would change them while another counts on them, and the
# last to set one back could set it to what another shard had changed it to.
OF_THE_PROCESS = {
    *("get_rng_state", "set_rng_state", "fork_rng", "initial_seed", "default_generator"),
    *("jvp", "jacfwd", "hessian", "forward_ad"),
    *("sdpa_kernel", "mkldnn", "set_default_dtype", "use_deterministic_algorithms"),
    *("detect_anomaly", "set_detect_anomaly", "catch_warnings"),
}


class ShardThreads:
    """Threads for so many shards, with equal parts of the calling thread's cores.

    Args:
        meet: shards wait for each other, so each needs a thread of its own. Else there are no more
            threads than cores, and each runs its shards one after the other.
    """

    def __init__(self, shards: int, meet: bool):
        self._shards, self._meet = shards, meet
        self._threads: list[Worker] = []
        self._made_for = 0, 0

    def get(self) -> list[Worker]:
        """One for each shard, which has the same in all passes."""
        # OpenMP's threads of this thread would wait for its next operation, and keep a core busy
        # for milliseconds: LeNet's step took 1.17 to 1.23 times as long as one replica's, and now
        # 1.00 to 1.04 (2 cores of an AMD EPYC, family 25 model 1, 2026-11-29).
        _C.end_waiting_threads()
        self._start()
        return self._threads

    def can_start(self) -> bool:
        """False at the system's limit, and from Python 3.12 on once the main thread has ended."""
        try:
            self._start()
        except RuntimeError:
            return False
        return True

    def _start(self) -> None:
        cores = torch.get_num_threads()
        if self._made_for == (os.getpid(), cores):  # a forked process has no other threads
            return
        if not _sets_malloc():
            _C.keep_freed_memory()
        count = self._shards if self._meet else min(self._shards, cores)
        each = max(1, cores // count)
        made = [Worker("fastreduce replica", each) for _ in range(count)]
        self._threads = [made[i * count // self._shards] for i in range(self._shards)]
        self._made_for = os.getpid(), cores


def _sets_malloc() -> bool:
    """Whether the user has told glibc how to keep memory (mallopt(3), "Environment variables")."""
    named = any(name.startswith("MALLOC_") for name in os.environ)
    return named or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")


class AtOnce:
    """Says when shards may run at the same time, so that only the clock shows it.

    They may not where they would write to the same: where hooks and modes are the user's, and where
    an embedding has a ``max_norm``. In training, each shard draws random numbers from a generator
    of its own, so that they are those that it would draw in its turn. A pass that would draw others
    is undone and repeated, one shard after the other, as are those that follow.

    Args:
        wanted: False if they never may.
        modules: of all replicas. When their structure has changed it takes a new object.
    """

    def __init__(self, wanted: bool, modules: Sequence[nn.Module], threads: ShardThreads):
        net = modules[0]
        self._net, self._threads = net, threads
        self._modules = [list(replica.modules()) for replica in modules]
        self._possible = (
            wanted
            and not own_generators(net)
            and not any(
                _is_compiled(x) or hooks_of(x) or _names_what_is_of_the_process(x)
                for x in net.modules()
            )
        )
        self._parameters = sum(parameter.numel() for parameter in net.parameters())
        self._ran = False  # whether the shards of the last pass ran at once
        self._drew: set[bool] = set()  # in which modes shards draw numbers: training or not
        self._in_forward = torch.empty(0)  # the state of torch's generator in that pass

    def may(self, owners: Sequence[int], inputs: Sequence[Any]) -> bool:
        """Whether shards of these replicas may run at the same time in the pass that begins.

        It depends on nothing but this pass, the module and whether threads can start, so a run that
        goes on from a checkpoint has the same bits.
        """
        self._ran = False
        return (
            self._possible
            and 1 < len(owners) == len(set(owners))
            and (self._parameters >= LEAST_PARAMETERS or _size(inputs[0]) >= LEAST_INPUTS)
            and self._net.training not in self._drew
            and not any(map(has_max_norm, self._net.modules()))
            and _is_free()
            and self._threads.can_start()
        )

    @contextmanager
    def running(self, inputs: Any) -> Iterator[list[Worker]]:
        """Around a pass in which shards run at the same time, in these threads.

        Raises HasDrawn if they have drawn what they would not in their turns; then generators are
        where they were. So are the modules' attributes, but not what is inside of them.
        """
        before, written = RandomStates(), _versions(inputs)
        self._in_forward = before.of_torch
        refusals = _C.DrawsFrom.refusals()
        modules = [x for replica in self._modules for x in replica]
        attributes = [(x, dict(x)) for module in modules for x in (vars(module), module._buffers)]
        try:
            yield self._threads.get()
            # Forward has gone on after a draw was refused, has drawn from Python's or NumPy's
            # generator, or has set torch's.
            if refusals != _C.DrawsFrom.refusals() or before != RandomStates():
                raise _C.HasDrawn
        except (Exception, _C.HasDrawn) as error:
            if refusals == _C.DrawsFrom.refusals() and not isinstance(error, _C.HasDrawn):
                raise
            self._drew.add(self._net.training)
            before.restore()
            for now, then in attributes:
                now.clear()
                now.update(then)
            if written != _versions(inputs):
                raise RuntimeError(
                    "DataParallel: forward has written to its arguments and then drawn random "
                    "numbers; the shards have run at the same time, so this cannot be undone. "
                    "Wrap the module with at_once=False, or have forward write to a copy"
                ) from error
            raise _C.HasDrawn from error
        self._ran = True

    def backward(self, losses: Sequence[Tensor]) -> None:
        """Do ``torch.autograd.backward(losses)``, for one loss per shard of the last forward pass.

        If a shard raises while shards run at the same time, no gradient has changed.
        """
        # ``loss.backward()`` runs the shards one after the other: for all at once it would need one
        # operation of autograd that stands for all shards. That would hide tensors that forward has
        # put elsewhere, and hooks on them would see parts.
        if self._ran and _is_free() and not torch.is_anomaly_enabled():
            passes = _C.BackwardOfShards(losses)
            if passes.is_apart:
                return self._backward(passes, len(losses))
        torch.autograd.backward(losses)

    def _backward(self, passes: _C.BackwardOfShards, shards: int) -> None:
        before = torch.default_generator.get_state()
        calls = [as_in_this_thread(partial(passes.run, shard)) for shard in range(shards)]
        threads = self._threads.get()[:shards]
        running: list[Future[None]] = [Future() for _ in calls]
        try:
            for thread, call, shard in zip(threads, calls, running, strict=True):
                thread.submit(call, shard)
            wait(running)
        finally:  # so that KeyboardInterrupt leaves no shard running
            wait([shard for shard in running if not shard.cancel()])
            # Checkpoints set torch's generator to its state in the forward pass, and then back.
            # Here several threads do so, and the state of the forward pass may be what is left. No
            # shard has drawn in forward, so no number depends on that.
            if torch.equal(torch.default_generator.get_state(), self._in_forward):
                torch.default_generator.set_state(before)
        try:
            for shard in running:
                shard.result()
        finally:
            del running, shard  # an error's traceback holds this frame
        passes.sum()


def _size(inputs: Any) -> int:
    return sum(x.numel() for x in leaves_of(inputs)[0] if isinstance(x, Tensor))


def _versions(inputs: Any) -> list[int]:
    return [version(x) for x in leaves_of(inputs)[0] if isinstance(x, Tensor)]


def _names_what_is_of_the_process(module: nn.Module) -> bool:
    """Whether its forward does, or a method or function of the same file that it calls."""
    names, left = set[str](), [module.forward]
    while left:
        called: Any = left.pop()
        if not hasattr(called, "__code__"):
            continue
        for name in {*called.__code__.co_names} - names:
            left.append(getattr(type(module), name, called.__globals__.get(name)))
        names.update(called.__code__.co_names)
    return not OF_THE_PROCESS.isdisjoint(names)


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
