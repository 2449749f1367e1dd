"""The training steps that benchmarks/data_parallel.py times, and a check that they do the same."""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from nets import Task, task
from torch import Tensor, nn

import fastreduce

LR, CHECKED_STEPS = 0.01, 2
SYNCHRONIZED = "sync_batchnorm"

Step = Callable[[], Any]
Started = tuple[Step, nn.Module]  # a step, and what it trains
Contender = tuple[int, int, Callable[..., Started]]  # replicas, shards of a batch, what starts it


def stepper(backward: Step, params: Iterable[Tensor]) -> Step:
    optimizer = torch.optim.SGD(params, lr=LR)
    return lambda: (optimizer.zero_grad(), backward(), optimizer.step())


def bare(net: nn.Module, X: Tensor, y: Tensor) -> Started:
    return stepper(lambda: F.cross_entropy(net(X), y).backward(), net.parameters()), net


def parallel(net: nn.Module, X: Tensor, y: Tensor, k: int, **settings: Any) -> Started:
    model = fastreduce.DataParallel(net, ["cpu"] * k, **settings)
    return stepper(lambda: model.backward(F.cross_entropy, X, y), model.parameters()), model


def by_parts(nets: Sequence[nn.Module], X: Tensor, y: Tensor) -> None:
    """One backward pass of each of them, with equal parts of the batch."""
    parts = X.tensor_split(len(nets)), y.tensor_split(len(nets))
    for net, X_part, y_part in zip(nets, *parts, strict=True):
        loss = F.cross_entropy(net(X_part), y_part, reduction="sum")
        (loss / y.numel()).backward()


def accumulated(net: nn.Module, X: Tensor, y: Tensor, k: int) -> Started:
    return stepper(lambda: by_parts([net] * k, X, y), net.parameters()), net


def ten_lines(net: nn.Module, X: Tensor, y: Tensor, k: int) -> Started:
    replicas = [copy.deepcopy(net) for _ in range(k)]

    def backward() -> None:
        by_parts(replicas, X, y)
        fastreduce.allreduce(fastreduce.grads(replicas))

    return stepper(backward, [p for replica in replicas for p in replica.parameters()]), replicas[0]


def has_batchnorm(net: nn.Module) -> bool:
    return any(isinstance(module, nn.BatchNorm2d) for module in net.modules())


def contenders(ks: Iterable[int], with_batchnorm: bool) -> dict[str, Contender]:
    found: dict[str, Contender] = {"bare": (1, 1, bare)}
    for k in ks:
        found[f"DataParallel, {k}"] = (k, k, partial(parallel, k=k))
        if k > 1:
            found[f"ten lines, {k}"] = (k, k, partial(ten_lines, k=k))
            found[f"one by one, {k}"] = (k, k, partial(parallel, k=k, at_once=False))
            found[f"accumulated, {k}"] = (1, k, partial(accumulated, k=k))
        if k > 1 and with_batchnorm:
            found[f"{SYNCHRONIZED}, {k}"] = (k, k, partial(parallel, k=k, sync_batchnorm=True))
    return found | {"reproducible=8": (1, 8, partial(parallel, k=1, reproducible=8))}


def vector(net: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(net.parameters()).detach().clone()


def trained(start: Callable[..., Started], fresh: Task) -> tuple[Step, Tensor]:
    """The contender's step, and the parameters after the first few."""
    step, model = start(*copy.deepcopy(fresh))
    for _ in range(CHECKED_STEPS):
        step()
    return step, vector(model)


def check(fresh: Task, found: Mapping[str, tuple[int, Tensor]]) -> None:
    """Raise AssertionError, which names the contender, if one trains a different model; ``found``:
    by name, the number of shards and the parameters after the first steps.

    The parameters must be those of the same steps in float64: up to 1 % of the way that these have
    moved, because two small steps move no parameter far, and who does not train would pass else. If
    the bare module's own float32 steps (or the ten lines') are more than half as far off, up to
    twice as much: for ResNet-18 they are 3.6 % off on an AMD EPYC, family 25 model 1, 2026-11-29.
    """
    net, X, y = fresh
    exact = copy.deepcopy(net).double(), X.double() if X.is_floating_point() else X, y
    begin, wanted, most = vector(net).double(), {}, {}

    def distance(params: Tensor, key: int) -> float:
        return float((params - wanted[key]).norm() / (wanted[key] - begin).norm())

    for name, (shards, params) in found.items():
        own_statistics = has_batchnorm(net) and SYNCHRONIZED not in name
        key = shards if own_statistics else 1
        if key not in wanted:
            start = bare if key == 1 else partial(ten_lines, k=key)
            wanted[key] = trained(start, exact)[1]
            most[key] = max(0.01, 2 * distance(trained(start, fresh)[1], key))
        same = torch.allclose(params.double(), wanted[key], 1e-3, 1e-4)
        moved = distance(params, key) < most[key]
        assert same and moved, f"{name}: the parameters are not those of the same steps"


def ddp_steps(rank: int, model: str, rounds: int) -> tuple[list[float], Tensor]:
    net, X, y = task(model)
    wrapped = nn.parallel.DistributedDataParallel(net)
    step, params = trained(
        lambda *_: bare(wrapped, X.chunk(2)[rank], y.chunk(2)[rank]), (net, X, y)
    )
    times = []
    for _ in range(1 + rounds):
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    return times[1:], params


def ddp_process(rank: int, model: str, rounds: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=2)
    found = ddp_steps(rank, model, rounds)  # its model, which keeps the group, is gone behind it
    if rank == 0:
        torch.save(found, f"{folder}/found")
    dist.barrier()  # a rank that ends while the other is still at work may be aborted by Gloo
    dist.destroy_process_group()


def ddp(model: str, rounds: int) -> tuple[list[float], Tensor]:
    """Seconds of each step, and the parameters after the first few."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(ddp_process, (model, rounds, folder), nprocs=2)
        return torch.load(f"{folder}/found")
