"""DistributedDataParallel with `fastreduce.distributed.comm_hook`."""

import ddp_programs as ddp
import pytest
import torch
import torch.distributed as dist
from processes import in_a_group
from torch.nn.parallel import DistributedDataParallel as DDP

from fastreduce.distributed import comm_hook


def gradients(rank, step, *hooked):
    """Those of one backward pass; with a group, by the hook."""
    module = ddp.Net()
    model = DDP(module, bucket_cap_mb=1 / 1024)
    if hooked:
        model.register_comm_hook(*hooked, comm_hook)
    X, y = ddp.batch(rank, step)
    torch.nn.functional.cross_entropy(model(X), y).backward()
    return [p.grad for p in module.parameters()]


def own_gradients(rank, step):
    module = ddp.Net()
    X, y = ddp.batch(rank, step)
    torch.nn.functional.cross_entropy(module(X), y).backward()
    return [p.grad.double() for p in module.parameters()]


def beside_gloo(rank, size):
    group = dist.new_group(backend="fastreduce")
    largest = 0.0
    for step in range(3):
        found, plain = gradients(rank, step, group), gradients(rank, step)
        for own, hooked, without in zip(own_gradients(rank, step), found, plain, strict=True):
            assert hooked.dtype == torch.float32
            of_all = [torch.empty_like(own) for _ in range(size)]
            dist.all_gather(of_all, own)
            mean, scale = torch.stack(of_all).mean(0), torch.stack(of_all).abs().mean(0)
            torch.testing.assert_close(without.double(), mean, rtol=1e-5, atol=1e-7)
            off = ((hooked.double() - mean).abs() / scale)[scale > 0]
            assert off.le(2**-7).all()
            largest = max(largest, off.max().item())
            same = [torch.empty_like(hooked) for _ in range(size)]
            dist.all_gather(same, hooked)
            assert all(torch.equal(x, hooked) for x in same)
    # The control: the bound is not far above what is found, so bfloat16 it was.
    assert largest > 2**-9


@pytest.mark.parametrize("size", [2, 3])
def test_as_near_to_the_mean_as_it_says(tmp_path, size):
    in_a_group(beside_gloo, (size,), size, tmp_path)


def a_peer_that_does_something_else(rank):
    group, (X, y) = dist.new_group(backend="fastreduce"), ddp.batch(rank, 0)
    model = DDP(ddp.Net())
    model.register_comm_hook(group, comm_hook)
    with pytest.raises((ValueError, RuntimeError), match="want the same call on all ranks"):
        if rank == 0:
            torch.nn.functional.cross_entropy(model(X), y).backward()
        else:
            dist.broadcast(torch.ones(3), 0, group=group)


def test_what_goes_wrong_is_raised_by_backward(tmp_path):
    in_a_group(a_peer_that_does_something_else, (), 2, tmp_path)


def of_all_ranks(rank):
    ddp.train(DDP(ddp.Net()), rank)
    gradients(rank, 0, None)
    gloo = dist.new_group(backend="gloo")
    with pytest.raises(ValueError, match="found a group of gloo, wanted one of fastreduce"):
        gradients(rank, 0, gloo)


def test_the_group_of_all_ranks_or_one_that_cannot_be(tmp_path):
    in_a_group(of_all_ranks, (), 2, tmp_path, backend="fastreduce")
