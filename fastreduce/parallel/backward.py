"""Has the shards of a batch go backward at the same time, as one operation of autograd's graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import wait
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fastreduce import _C
from fastreduce.parallel.meeting import as_in_this_thread
from fastreduce.parallel.worker import Worker


def going_backward_at_once(
    outputs: Sequence[Sequence[Any]],
    parameters: Sequence[Sequence[Tensor]],
    threads: Callable[[], Sequence[Worker]],
    is_free: Callable[[], bool],
) -> Sequence[Sequence[Any]]:
    """The outputs of each shard, on the same memory, where the graphs of shards are apart.

    A backward pass waits until it has the gradients of all outputs, and goes on to those of all
    parameters, each shard in its thread. If one raises, no parameter has got a gradient.

    Args:
        outputs: tensors and other objects, which stay as they are.
        parameters: those that each shard ran with.
        threads: one per shard.
        is_free: whether shards may run in them.
    """

    def run_shards(backward: _C.ShardsBackward) -> None:
        calls = [partial(backward.run, shard) for shard in range(len(backward))]
        # Hooks and modes may have come since.
        if backward.creates_graph or not (is_free() and backward.are_apart()):
            for call in calls:
                call()
        else:
            _run_in(threads(), calls)

    train, trained = list(map(_that_train, outputs)), list(map(_that_train, parameters))
    made = any(train) and is_free() and _C.going_backward_by(run_shards, train, trained)
    if not made:
        return outputs
    return [
        [next(new) if _trains(x) else x for x in shard]
        for shard, new in zip(outputs, map(iter, made), strict=True)
    ]


def _trains(x: Any) -> bool:
    return isinstance(x, Tensor) and x.requires_grad


def _that_train(shard: Sequence[Any]) -> list[Tensor]:
    return list(filter(_trains, shard))


def _run_in(threads: Sequence[Worker], calls: Sequence[Callable[[], None]]) -> None:
    # Checkpoints set torch's generator and set it back, here in several threads: as forward has not
    # drawn, no number depends on it, but the end may be another than the beginning.
    before = torch.default_generator.get_state()
    calls = list(map(as_in_this_thread, calls))
    running = [x.submit(call) for x, call in zip(threads, calls, strict=False)]
    wait(running)
    torch.default_generator.set_state(before)
    for shard in running:
        shard.result()
