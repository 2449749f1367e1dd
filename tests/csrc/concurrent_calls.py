"""Calls from several threads at a time, for ThreadSanitizer to watch. Prints "calls right"."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch

import fastreduce
from fastreduce import _C

torch.set_num_threads(1)  # OpenMP's own threads wait in ways that the sanitizer does not see
begin = threading.Barrier(5)


def async_calls() -> None:
    for _ in range(30):
        begun = []
        for algorithm in ("auto", "ring", "tree"):
            tensors = [torch.ones(1000), torch.ones(1000)]
            work = fastreduce.allreduce(tensors, algorithm=algorithm, async_op=True)
            begun.append((tensors, work))
        for tensors, work in begun:
            assert work.wait() and tensors[1][0] == 2


def programs() -> None:
    """Calls that ask for programs while others make all be forgotten."""
    for i in range(300):
        k = 2 + i % 3
        tensors = [torch.ones(10) for _ in range(k)]
        fastreduce.allreduce(tensors, algorithm="ring")
        assert tensors[0][0] == k
        if i % 20 == 0:
            _C.forget_schedules()


def training() -> None:
    model = fastreduce.DataParallel(torch.nn.Linear(10, 3), ["cpu"] * 2)
    for _ in range(30):
        model(torch.ones(4, 10)).sum().backward()
        assert model.bias.grad is not None


def together(what) -> None:
    begin.wait()
    what()


with ThreadPoolExecutor(5) as threads:
    list(threads.map(together, (async_calls, programs, programs, programs, training)))
print("calls right")
