"""Users' programs with DistributedDataParallel: each returns what it has trained."""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS = 4


class Net(torch.nn.Module):
    """With ``branches``, one of two layers is used, by turns; the other one gets no gradient."""

    def __init__(self, branches=1):
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(20, 64)
        self.branches = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(branches))
        self.last = torch.nn.Linear(64, 5)

    def forward(self, X, branch=0):
        return self.last(F.relu(self.branches[branch](F.relu(self.first(X)))))


def batch(rank, step):
    generator = torch.Generator().manual_seed(1000 * rank + step)
    y = torch.randint(5, (16,), generator=generator)
    return torch.randn(16, 20, generator=generator) + y[:, None], y


def train(model, rank, steps=STEPS, **forward):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        X, y = batch(rank, step)
        optimizer.zero_grad()
        F.cross_entropy(model(X, **forward), y).backward()
        optimizer.step()


def parameters(module):
    return {name: p.detach().clone() for name, p in module.named_parameters()}


def in_shared_memory(tensor):
    """Whether its first element lies in memory of the backend, as the kernel lists it."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(text, 16) for text in line.split()[0].split("-"))
        if begin <= tensor.data_ptr() < end:
            return "/memfd:fastreduce" in line
    return False


# ---- the programs: (rank, size), and the names of the tests


def plain(rank, size):
    module = Net()
    train(DDP(module), rank)
    return parameters(module)


def bucket_views(rank, size):
    module = Net()
    # 1 KiB: several buckets, which are rebuilt in the order of the gradients after the first step.
    train(DDP(module, gradient_as_bucket_view=True, bucket_cap_mb=1 / 1024), rank)
    shared = dist.get_backend() == "fastreduce"
    assert all(in_shared_memory(p.grad) == shared for p in module.parameters())
    return parameters(module)


class Complex(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.weight = torch.nn.Parameter(torch.randn(20, 5, dtype=torch.complex64))
        self.bias = torch.nn.Parameter(torch.randn(5, dtype=torch.complex64))

    def forward(self, X):
        return (X.to(torch.complex64) @ self.weight + self.bias).abs()


def complex_parameters(rank, size):
    """DDP's buckets hold their real and imaginary parts, as real numbers."""
    module = Complex()
    train(DDP(module, gradient_as_bucket_view=True), rank)
    shared = dist.get_backend() == "fastreduce"
    assert all(in_shared_memory(p.grad) == shared for p in module.parameters())
    return parameters(module)


def unused_parameters(rank, size):
    module = Net(branches=2)
    model = DDP(module, find_unused_parameters=True)
    train(model, rank, branch=rank % 2)
    train(model, rank, branch=0)  # and now nobody uses one of them
    return parameters(module)


def static_graph(rank, size):
    module = Net(branches=2)
    train(DDP(module, static_graph=True), rank, branch=1)
    return parameters(module)


def no_sync(rank, size):
    module = Net()
    model = DDP(module)
    with model.no_sync():
        F.cross_entropy(model(batch(rank, 9)[0]), batch(rank, 9)[1]).backward()
    alone = module.last.bias.grad.clone()
    F.cross_entropy(model(batch(rank, 10)[0]), batch(rank, 10)[1]).backward()
    # One rank's own gradient, and then the mean of all that have gathered.
    gathered = [torch.empty_like(alone) for _ in range(size)]
    dist.all_gather(gathered, alone)
    assert not torch.equal(gathered[0], gathered[-1])
    return {name: p.grad.clone() for name, p in module.named_parameters()}


def uneven_inputs(rank, size):
    module = Net()
    model = DDP(module)
    with model.join():
        train(model, rank, steps=STEPS + 2 * rank)
    return parameters(module)


def _hooked(rank, state, hook):
    module = Net()
    model = DDP(module)
    model.register_comm_hook(state, hook)
    train(model, rank)
    return parameters(module)


def fp16_hook(rank, size):
    return _hooked(rank, dist.group.WORLD, default_hooks.fp16_compress_hook)


def bf16_hook(rank, size):
    def hook(group, bucket: dist.GradBucket):  # DDP itself refuses that of torch, by its name
        return default_hooks.bf16_compress_hook(group, bucket)

    return _hooked(rank, dist.group.WORLD, hook)


def power_sgd_hook(rank, size):
    state = powerSGD_hook.PowerSGDState(dist.group.WORLD, 2, start_powerSGD_iter=2)
    return _hooked(rank, state, powerSGD_hook.powerSGD_hook)


def power_sgd_hook_of_several_buckets(rank, size):
    """Its callbacks make calls, and so does DDP: for the next bucket, and of what was unused."""
    state = powerSGD_hook.PowerSGDState(dist.group.WORLD, 2, start_powerSGD_iter=2)

    def hook(state, bucket: dist.GradBucket):
        done = powerSGD_hook.powerSGD_hook(state, bucket)
        done.wait()  # or the order of these calls is not the same on all ranks
        if rank == 1:
            time.sleep(0.01)  # as where this rank is slower
        return done

    module = Net(branches=2)
    model = DDP(module, bucket_cap_mb=1 / 1024, find_unused_parameters=True)
    model.register_comm_hook(state, hook)
    train(model, rank)
    return parameters(module)


def calls_from_callbacks(rank, size):
    """As PowerSGD makes them: the callback of one call waits for two others."""

    def then(future):
        total = torch.full((3,), 10.0 * rank)
        dist.all_reduce(total)
        again = dist.all_reduce(total, async_op=True).get_future().wait()[0]
        return again + future.value()[0]

    x = torch.full((1_000_000,), float(rank))
    work = dist.all_reduce(x, async_op=True)
    found = work.get_future().then(lambda future: [x[:1]]).then(then).wait()
    dist.all_reduce(x)  # from here again
    return {"found": found, "x": x[:1].clone()}


def compiled(rank, size):
    module = Net()
    train(torch.compile(DDP(module)), rank)
    return parameters(module)


# ---- and one for the backend alone


def where_buckets_are(rank, variable, shared):
    """Also the first ones, which are made before the order of the gradients is known."""
    os.environ["DDP_DISABLE_COMM_MEM"] = variable
    seen = []

    def hook(state, bucket: dist.GradBucket):
        seen.append(in_shared_memory(bucket.buffer()))
        return default_hooks.allreduce_hook(dist.group.WORLD, bucket)

    module = Net()
    model = DDP(module, bucket_cap_mb=1 / 1024)
    model.register_comm_hook(None, hook)
    train(model, rank)
    assert len(seen) > 2 * STEPS and set(seen) == {shared}
    # Each rank's memory for staging; and the buckets, own ones and those of the peer, as they lie.
    mapped = Path("/proc/self/maps").read_text().count("/memfd:fastreduce")
    assert mapped > 2 if shared else mapped == 2
