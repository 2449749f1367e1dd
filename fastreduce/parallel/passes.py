"""Runs the shards of a batch through the replicas, and backward."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, TypeAlias

from torch import Tensor, nn

from fastreduce import _C
from fastreduce.parallel.buffers import copies, restored_if_it_raises
from fastreduce.parallel.draws import Draws
from fastreduce.parallel.meeting import Turn, nothing, one_by_one, together
from fastreduce.parallel.replicas import Replicas
from fastreduce.parallel.sync_batchnorm import sums
from fastreduce.parallel.worker import Worker

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


class _Pass:
    """One forward pass: the parameters and buffers with which each shard runs.

    ``held`` are the module's buffers as they were before; the first shard begins with these very
    tensors, the others with copies.
    """

    def __init__(self, replicas: Replicas, owners: Sequence[int], around: Around):
        self._replicas, self._owners, self._around = replicas, owners, around
        self.parameters = replicas.joined(owners)
        self.held = replicas.buffers(0)
        self.buffers = [
            self.held if shard == 0 else copies(self.held, replicas.devices[owner])
            for shard, owner in enumerate(owners)
        ]

    @contextmanager
    def turn(
        self, draws_of: Callable[[int], AbstractContextManager[object]], shard: int
    ) -> Iterator[None]:
        """In here the shard's replica has its parameters and buffers, and draws its numbers."""
        owner, parameters = self._owners[shard], self.parameters[shard]
        self._replicas.put(owner, parameters, self.buffers[shard])
        kept = self._replicas.kept_parameters(owner, parameters)
        with _named(shard, len(self._owners)), self._around(owner), kept, draws_of(shard):
            yield
        self.buffers[shard] = self._replicas.buffers(owner)  # some may be new tensors


class Passes:
    """Forward and backward passes of replicas.

    Args:
        only_torch_draws: refuse modules that draw random numbers from Python or NumPy.
    """

    def __init__(self, replicas: Replicas, only_torch_draws: bool = False):
        self._replicas, self._only_torch_draws = replicas, only_torch_draws
        self._lock = threading.RLock()  # a replica has the parameters of one shard at a time
        self._thread = threading.local()  # says whether a shard runs in the thread

    def forward(
        self, owners: Sequence[int], inputs: Sequence[tuple[Any, Any]], around: Around = nothing
    ) -> list[Any]:
        """Run shard i's inputs, ``(args, kwargs)``, through replica ``owners[i]``.

        Each shard begins with the module's buffers as they are now; what the first shard makes of
        them stays, unless one raises. In training each shard draws random numbers from a seed of
        its own, which depends on torch's seed and the number of the shard only.
        ``around(replica)`` is entered while the replica runs, and then each runs by itself.

        Raises RuntimeError where the module calls the wrapper that is running it, or this thread
        does in the middle of a pass.
        """
        if getattr(self._thread, "runs_a_shard", False):
            raise RuntimeError(
                "DataParallel: forward has called the DataParallel that runs it, by "
                "model.compile(), a forward function that was replaced, or a hook; compile the "
                "module before it is wrapped (torch.compile(net)) or the wrapper "
                "(torch.compile(model)), and replace forward before the module is wrapped"
            )
        if self._lock._is_owned():  # type: ignore[attr-defined]
            raise RuntimeError(
                "DataParallel: a signal handler or a finalizer has called the model in the middle "
                "of a forward pass, which it would wait for; have it take a note, and call the "
                "model after the pass"
            )
        replicas = self._replicas
        with self._lock:
            replicas.update()
            drawing = owners if replicas.net.training else ()
            draws = Draws([replicas.devices[owner] for owner in drawing], self._only_torch_draws)
            outputs = None
            if replicas.at_once.may(owners, inputs) and around is nothing:
                with suppress(_C.HasDrawn):
                    outputs = self._forward(owners, inputs, draws, nothing, at_once=True)
            if outputs is None:
                outputs = self._forward(owners, inputs, draws, around, at_once=False)
            if len(owners) > 1:
                replicas.attributes.warn_of_results()
            return outputs

    def backward(self, losses: Sequence[Tensor]) -> None:
        """Do what ``torch.autograd.backward(losses)`` does, for one loss per shard."""
        self._replicas.at_once.backward(losses)

    def _forward(
        self,
        owners: Sequence[int],
        inputs: Sequence[tuple[Any, Any]],
        draws: Draws,
        around: Around,
        at_once: bool,
    ) -> list[Any]:
        replicas = self._replicas
        one = _Pass(replicas, owners, around)
        calls = [
            functools.partial(self._call, replicas.modules[owner], args, kwargs)
            for owner, (args, kwargs) in zip(owners, inputs, strict=True)
        ]
        leave = functools.partial(replicas.leave, owners, one.parameters)
        try:
            replicas.enter()
            with draws, restored_if_it_raises(one.held):
                if at_once:
                    with replicas.at_once.running(inputs) as threads:
                        draws_of = draws.at_once(len(owners)).__getitem__
                        turn = functools.partial(one.turn, draws_of)
                        outputs = together(calls, turn, sums, threads, at_once)
                else:
                    outputs = self._one_by_one(calls, functools.partial(one.turn, draws.of))
                replicas.check_graph(outputs)
                replicas.look_at_buffers(one.buffers)
                return outputs
        except BaseException:
            one.buffers[0] = one.held
            raise
        finally:
            try:
                leave(one.buffers[0])
            except KeyboardInterrupt:  # this must be done whole; a second Ctrl-C is not expected
                leave(one.buffers[0])
                raise

    def _one_by_one(self, calls: Sequence[Callable[[], Any]], turn: Turn) -> list[Any]:
        if not self._replicas.sync_batchnorm:
            return one_by_one(calls, turn)
        workers = [Worker("fastreduce shard") for _ in calls]
        try:
            return together(calls, turn, sums, workers, at_once=False)
        finally:
            for worker in workers:
                worker.end()

    def _call(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        self._thread.runs_a_shard = True
        try:
            return module(*args, **kwargs)
        finally:
            self._thread.runs_a_shard = False
