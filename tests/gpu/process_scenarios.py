"""What the ranks of a group do with tensors on one device, which all of them share."""

import os
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
from backend_calls import CALLS, REDUCING
from backend_cases import ALL_OPS, Case, Memory
from backend_scenarios import run_cases
from ddp_programs import Net, batch
from failure_scenarios import every_later_call_raises, raised
from places import SLEEP_CYCLES
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from fastreduce import _C

LARGE = 21_000_000  # float32: on two ranks more slices of 16 MiB than are on their way at a time


class OnDevice(Memory):
    """Tensors on one device, also inside others and beside their alignment."""

    device = None

    def copy(self, tensor):
        n = len(tensor)
        empty = {"dtype": tensor.dtype, "device": self.device}
        if self.layout == "strided":
            return self._within(torch.empty(2 * n, **empty), slice(0, 2 * n, 2), tensor)
        if self.layout == "inside":  # at another place on every rank
            begin = 1 + self.rank
            return self._within(torch.empty(n + 64, **empty), slice(begin, begin + n), tensor)
        return tensor.to(self.device, copy=True)

    def given(self, tensor):
        return super().given(tensor).to(self.device)


def table():
    for call in CALLS:
        usual = Case(call)
        yield from (Case(call, elems=elems) for elems in (0, 1, 17, 8_193, 200_003))
        yield from (Case(call, elems=5_003, layout=x) for x in ("strided", "inside", "negative"))
        yield from (Case(call, elems=elems, asynchronous=True) for elems in (4, 200_003))
        few = call not in ("all_reduce", "reduce_scatter_tensor")
        for dtype, ops in ALL_OPS.items():
            for op in ops if call in REDUCING and not few else ["sum"]:
                yield Case(call, dtype, op, usual.elems)


def values(rank, size, device, folder):
    OnDevice.device = device
    run_cases(rank, size, folder, table(), OnDevice)


def large_values(rank, size, device):
    """Exact in float32."""
    index = torch.arange(LARGE, device=device) % 1000
    total = size * (size + 1) // 2
    x = (index * (rank + 1)).float()
    dist.all_reduce(x)
    assert torch.equal(x, (index * total).float())
    parts = torch.empty(LARGE * size, device=device)
    dist.all_gather_into_tensor(parts, (index + rank).float())
    for r, part in enumerate(parts.split(LARGE)):
        assert torch.equal(part, (index + r).float())
    dist.reduce_scatter_tensor(x, parts)
    assert torch.equal(x, ((index + rank) * size).float())
    dist.broadcast(x, size - 1)
    assert torch.equal(x, ((index + size - 1) * size).float())


def through_the_cpu(rank, size, device):
    """Where GPUs cannot share their memory."""
    _C.set_share_device_memory(False)
    group = dist.new_group()
    x = torch.full((70_000,), rank + 1.0, device=device)
    dist.all_reduce(x, group=group)
    assert torch.equal(x, torch.full_like(x, size * (size + 1) / 2))
    work = dist.all_reduce(x, group=group, async_op=True)
    work.wait()
    assert torch.equal(x, torch.full_like(x, size * size * (size + 1) / 2))


def kernels_that_wait(rank, size, device):
    """For peers on the same GPU, which takes turns between the processes."""
    _C.set_wait_on_shared_gpus(True)
    group = dist.new_group()
    for elems in (5, 5_003, 200_003, 300_000):  # the last is more than goes at once
        for begin in (0, 1):  # at a vector, and beside it on rank 1
            x = torch.zeros(elems + 1, device=device)[begin * (rank == 1) :][:elems]
            for times in range(3):
                index = torch.arange(elems, device=device) % 1000
                x.copy_(index * (rank + 1) + times)
                dist.all_reduce(x, group=group)
                total = index * (size * (size + 1) // 2) + size * times
                assert torch.equal(x, total.float()), (elems, begin, times)
    dist.broadcast(x, 0, group=group)
    assert torch.equal(x, total.float())
    other = torch.ones(3 + (rank == size - 1), device=device)
    assert "want the same call" in raised(lambda: dist.all_reduce(other, group=group))
    for _ in range(3):  # after calls that differ kernels still wait
        x = torch.full((5_003,), rank + 1.0, device=device)
        dist.all_reduce(x, group=group)
        assert torch.equal(x, torch.full_like(x, size * (size + 1) / 2))


def in_stream_order(rank, size, device):
    """Inputs that are late, on a stream of their own, and results that are used at once."""
    on_gpu = device != "cpu"
    side = torch.cuda.Stream(device) if on_gpu else None
    for asynchronous in (False, True):
        for n in (100, 300_000):
            x = torch.zeros(n, device=device)
            with torch.cuda.stream(side):
                if on_gpu:
                    side.wait_stream(torch.cuda.default_stream())
                    torch.cuda._sleep(SLEEP_CYCLES)
                x += rank + 1
                work = dist.all_reduce(x, async_op=asynchronous)
                if asynchronous:
                    work.wait()
                y = x * 2
            if on_gpu:
                torch.cuda.default_stream().wait_stream(side)
            assert torch.equal(y, torch.full_like(y, size * (size + 1.0)))


def many_at_once(rank, size, device):
    """Asynchronous calls in two groups, whose futures are used too."""
    group = dist.new_group()
    xs = [torch.full((1000 * i + 1,), rank + 1.0, device=device) for i in range(20)]
    works = [
        dist.all_reduce(x, group=(None, group)[i % 2], async_op=True) for i, x in enumerate(xs)
    ]
    last = works.pop().get_future().then(lambda future: future.value()[0] + 1)
    for work in works:
        work.wait()
    for x in xs[:-1]:
        assert torch.equal(x, torch.full_like(x, size * (size + 1) / 2))
    assert torch.equal(last.wait(), torch.full_like(xs[-1], size * (size + 1) / 2 + 1))


def beside_a_capture(rank, size, device):
    """Another thread captures a graph, in the mode that forbids allocations in every thread.

    Meanwhile the calls' memory is allocated, the group's thread waits for the GPU, and the group
    ends. The thread that captures may make no call.
    """
    captured = torch.zeros(3, device=device).add_(1)
    group = dist.new_group()
    x = torch.full((300_000,), rank + 1.0, device=device)
    begins, ends = threading.Event(), threading.Event()

    def capture():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="global"):
            captured.add_(1)
            for waits in (True, False):  # and nothing breaks the capture
                with pytest.raises(RuntimeError, match="a CUDA graph is being captured"):
                    dist.all_reduce(captured, async_op=not waits)
            begins.set()
            assert ends.wait(60)
        graph.replay()
        torch.cuda.synchronize()

    with ThreadPoolExecutor(1) as other:
        capturing = other.submit(capture) if device != "cpu" else None
        assert capturing is None or begins.wait(60)
        work = dist.all_reduce(x, group=group, async_op=True)
        work.get_future().wait()
        work.wait()
        dist.destroy_process_group(group)
        del work, group
        ends.set()
        if capturing:
            capturing.result()
            assert captured.eq(2).all()
    assert torch.equal(x, torch.full_like(x, size * (size + 1) / 2))


def calls_that_differ(rank, size, device):
    """All raise the same, nothing is written, and all go on."""
    others = torch.ones(3, device=device)
    last = {
        "float32 [4]": torch.ones(4, device=device),
        "int32 [3]": torch.ones(3, dtype=torch.int32, device=device),
    }
    if device != "cpu":
        last["float32 [3] on rank"] = torch.ones(3)
    for words, of_last in last.items():
        x = of_last if rank == size - 1 else others
        said = raised(lambda x=x: dist.all_reduce(x))
        assert re.search(f"but .*{re.escape(words)}.*want the same call on all ranks", said), said
        assert x.eq(1).all()
        x = torch.ones(3, device=device)
        dist.all_reduce(x)
        assert torch.equal(x, torch.full_like(x, size))


def one_is_killed(rank, size, device, elems):
    """In a call; the others have a timeout longer than this test."""
    x = torch.ones(elems, device=device)
    dist.all_reduce(x)
    if rank == size - 1:
        dist.all_reduce(x, async_op=True)
        os.kill(os.getpid(), signal.SIGKILL)
    begin_s = time.monotonic()
    words = raised(lambda: [dist.all_reduce(x) for _ in range(2)])
    assert f"the process of rank {size - 1} has ended" in words, words
    assert time.monotonic() - begin_s < 20
    every_later_call_raises()
    assert torch.ones(5, device=device).sum() == 5  # the GPU still works


def one_is_stopped(rank, size, device):
    """The survivors' group has a timeout of six seconds."""
    x = torch.ones(5, device=device)
    dist.all_reduce(x)
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    words = raised(lambda: dist.all_reduce(x))
    assert f"reached its timeout of 6000 ms, waiting for rank {size - 1}: " in words, words
    assert "allreduce (sum) of float32 [5]" in words, words
    every_later_call_raises()


def train(model, rank, device, steps=4):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        X, y = (x.to(device) for x in batch(rank, step))
        optimizer.zero_grad()
        F.cross_entropy(model(X), y).backward()
        optimizer.step()


def assert_alike(parameters):
    for p in parameters:
        parts = [torch.empty_like(p) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, p.detach())
        assert all(torch.equal(part, p) for part in parts)


def alone(size, device):
    """What one process learns from all ranks' data."""
    module = Net().to(device)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    for step in range(4):
        optimizer.zero_grad()
        for rank in range(size):
            X, y = (x.to(device) for x in batch(rank, step))
            (F.cross_entropy(module(X), y) / size).backward()
        optimizer.step()
    return [p.detach() for p in module.parameters()]


def ddp(rank, size, device):
    for options in ({}, {"gradient_as_bucket_view": True, "bucket_cap_mb": 1 / 1024}):
        module = Net().to(device)
        train(DDP(module, **options), rank, device)
        assert_alike(module.parameters())
        for p, wanted in zip(module.parameters(), alone(size, device), strict=True):
            torch.testing.assert_close(p.detach(), wanted)


def fsdp(rank, size, device):
    module = Net().to(device)
    mesh = init_device_mesh(torch.device(device).type, (size,))
    fully_shard(module, mesh=mesh)
    train(module, rank, device)
    for p, wanted in zip(module.parameters(), alone(size, device), strict=True):
        torch.testing.assert_close(p.full_tensor().detach(), wanted)


def expandable_segments(rank, size, device):
    if device != "cpu":
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    x = torch.full((3_000_000,), rank + 1.0, device=device)
    dist.all_reduce(x)
    assert torch.equal(x, torch.full_like(x, size * (size + 1) / 2))


def groups_come_and_go(rank, size, device):
    """What one has staged in serves the next."""
    for _ in range(12):
        group = dist.new_group()
        x = torch.full((1000,), rank + 1.0, device=device)
        dist.all_reduce(x, group=group)
        assert torch.equal(x, torch.full_like(x, size * (size + 1) / 2))
        dist.destroy_process_group(group)
