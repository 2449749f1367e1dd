"""Several groups at once, and what the inner Gloo does."""

import os
import re
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from backend_cases import SIZES, Case
from backend_scenarios import check
from failure_scenarios import in_turn, raised
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _coalescing_manager

import fastreduce.distributed as fd

MAPS, SMAPS = Path("/proc/self/maps"), Path("/proc/self/smaps")
MEMORY = "/memfd:fastreduce"
FRONT_BYTES = 48 << 10  # of each rank, beside its two areas for staging


def groups_of_some(rank, size):
    """Every case in groups of neighbours and of all, their ranks counted anew."""
    for ranks in ([*range(size - 1)], [*range(1, size)], [size - 1]):
        group = dist.new_group(ranks)
        if rank in ranks:
            for call in ("all_reduce", "broadcast", "all_gather", "reduce_scatter_tensor"):
                check(Case(call, elems=9_001), len(ranks), group)
        dist.barrier()


def two_groups_at_once(rank, size):
    """Asynchronous calls of two groups, in another order on every second rank."""
    groups = [dist.new_group(), dist.new_group()]
    for elems in SIZES:
        xs = [torch.full((elems,), rank + 1.0) for _ in groups]
        order = [0, 1] if rank % 2 else [1, 0]
        works = [dist.all_reduce(xs[i], group=groups[i], async_op=True) for i in order]
        for work in works:
            work.wait()
        for x in xs:
            assert torch.equal(x, torch.full((elems,), size * (size + 1) / 2))


def the_algorithm_is_named_when_a_group_is_made(rank, size):
    before = dist.new_group()
    os.environ["FASTREDUCE_ALGORITHM"] = "rign"
    after = dist.new_group()
    with pytest.raises(ValueError, match="FASTREDUCE_ALGORITHM is 'rign'; known are"):
        dist.all_reduce(torch.ones(3), group=after)
    x = torch.ones(3)
    dist.all_reduce(x, group=before)
    del os.environ["FASTREDUCE_ALGORITHM"]
    dist.all_reduce(x, group=dist.new_group())
    assert torch.equal(x, torch.full((3,), size**2.0))


def asynchronous_calls_are_in_order(rank, size):
    x = torch.ones(20_011)
    works = [dist.all_reduce(x, async_op=True) for _ in range(20)]
    dist.all_reduce(x)
    assert all(work.is_completed() for work in works)
    assert torch.equal(x, torch.full((20_011,), float(size) ** 21))
    assert works[3].get_future().wait()[0] is not None
    for _ in range(200):
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        assert work.get_future().done()


def a_call_of_another_thread_is_after_those_before(rank, size):
    """Also while the thread that serves asynchronous calls is in one."""
    first, second = torch.ones(3), torch.ones(20_011)
    dist.all_reduce(torch.ones(1), async_op=True).wait()
    if rank == size - 1:
        time.sleep(0.2)
    work = dist.all_reduce(first, async_op=True)
    another = threading.Thread(target=dist.all_reduce, args=(second,))
    another.start()
    another.join()
    work.wait()
    assert torch.equal(first, torch.full((3,), float(size)))
    assert torch.equal(second, torch.full((20_011,), float(size)))


def memory_of_peers_is_opened_by_descriptor_0(rank, size):
    """It is free where a program was started without a standard input."""
    group, descriptor = dist.new_group(), Path("/proc/self/fd/0")
    x = fd.empty(9_001).fill_(1)
    os.close(0)
    dist.all_reduce(x, group=group)
    assert not descriptor.is_symlink()
    assert torch.equal(x, torch.full((9_001,), float(size)))
    os.open(os.devnull, os.O_RDONLY)


def as_much_shared_memory_as_was_said(rank, size):
    def mapped():
        spans = [x.split()[0].split("-") for x in MAPS.read_text().splitlines() if MEMORY in x]
        return sum(int(end, 16) - int(begin, 16) for begin, end in spans)

    before = mapped()
    group = dist.new_group(pg_options=fd.Options(shared_bytes=1 << 20))
    taken = mapped() - before
    assert (1 << 20) // 2 < taken < (1 << 20) + size * FRONT_BYTES, taken
    for call in ("all_reduce", "reduce_scatter_tensor"):
        check(Case(call, elems=1_000_003), size, group)
    # Each rank is told another size, and finds that of a peer, or that the peer has given up.
    with pytest.raises(RuntimeError, match="the invitation of rank"):
        dist.new_group(pg_options=fd.Options(shared_bytes=(rank + 1) << 20))


def memory_of_a_tensor_that_grows_goes_back(rank, size):
    """Also where peers have it mapped."""

    def resident_bytes():
        parts = re.findall(rf"{MEMORY}.*?\nRss: *(\d+) kB", SMAPS.read_text(), re.DOTALL)
        return sum(map(int, parts)) << 10

    before = resident_bytes()
    for elems in range(600_000, 3_000_000, 300_000):
        x = fd.empty(elems).fill_(rank)
        dist.all_reduce(x)
        assert x.eq(sum(range(size))).all()
        largest_bytes = x.nbytes
        del x
    assert resident_bytes() - before <= 2 * size * largest_bytes


def what_gloo_does(rank, size):
    mine, first = torch.full((3,), float(rank)), rank == 0
    all_of_them = [torch.full((3,), float(r)) for r in range(size)]
    outs = [torch.zeros(3) for _ in range(size)]
    dist.gather(mine, outs if first else None)
    assert not first or all(map(torch.equal, outs, all_of_them))
    out = torch.zeros(3)
    dist.scatter(out, all_of_them if first else None)
    assert torch.equal(out, mine)
    whole = torch.zeros(3 * size)
    dist.all_to_all_single(whole, mine.repeat(size))
    assert torch.equal(whole, torch.cat(all_of_them))
    if rank == 0:
        dist.send(torch.tensor([7.0]), size - 1)
    if rank == size - 1:
        dist.recv(got := torch.zeros(1), 0)
        assert got.item() == 7
    sparse = torch.eye(2).to_sparse()
    dist.all_reduce(sparse)
    assert torch.equal(sparse.to_dense(), size * torch.eye(2))
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": r} for r in range(size)]


def a_group_split_off(rank, size):
    """Of the last two ranks, which errors call by their numbers in the world."""
    members = [size - 2, size - 1]
    group = dist.group.WORLD.split_group(members, timeout=timedelta(seconds=5))
    if rank not in members:
        assert group is None
        return
    x = torch.full((3,), float(rank))
    group.allreduce([x]).wait()
    assert torch.equal(x, torch.full((3,), 2.0 * size - 3))
    words = raised(lambda: group.allreduce([torch.ones(rank + 1)]).wait())
    assert f"float32 [{size - 1}] on rank {size - 2} but" in words, words


def groups_split_off_by_name(rank, size):
    """torch.distributed.split_group, which takes groups without a GPU from torch 2.15 on."""
    if not hasattr(torch._C._distributed_c10d.Backend, "supports_completion_hooks"):
        return
    halves = [[0, size - 1], [*range(1, size - 1)]] if size > 2 else [[0, 1]]
    group = dist.split_group(None, halves, group_desc="half")
    mine = next(half for half in halves if rank in half)
    x = torch.full((3,), float(rank))
    dist.all_reduce(x, group=group)
    assert dist.get_process_group_ranks(group) == mine and x.tolist() == 3 * [float(sum(mine))]
    dist.destroy_process_group(group)


def tensors_of_inference(rank, size):
    """Of the caller's inference mode, in which the thread that serves the call is not."""
    with torch.inference_mode():
        for x in (torch.ones(3), torch.ones(3, 2).t()):
            dist.all_reduce(x)
            dist.all_reduce(x, async_op=True).wait()
            assert torch.equal(x, torch.full_like(x, float(size) ** 2))
    dist.all_reduce(x)
    assert torch.equal(x, torch.full_like(x, float(size) ** 3))


def a_factor_of_another_dtype(rank, size):
    x = torch.full((5,), 2.0, dtype=torch.float16)
    dist.all_reduce(x, dist._make_nccl_premul_sum(torch.tensor([0.5])))
    assert torch.equal(x, torch.full((5,), float(size), dtype=torch.float16))


def a_factor_of_a_sum_that_one_rank_gets(rank, size):
    """The others' tensors stay as they are, contiguous or not."""
    for x in (torch.full((4,), 2.0), torch.full((8,), 2.0)[::2], fd.empty(4).fill_(2)):
        dist.reduce(x, 1, dist._make_nccl_premul_sum(0.5))
        assert torch.equal(x, torch.full((4,), float(size) if rank == 1 else 2.0))


def outputs_over_inputs(rank, size):
    """Wherever an output lies in an input's memory, or the other way round, values are right."""
    for elems in (3, 200_003):  # for one slice and for many
        for empty in (torch.empty, fd.empty):
            for first in (0, elems // 2, (size - 1) * elems):
                a_shard_over_the_input(rank, size, elems, first, empty)
                the_input_over_all_shards(rank, size, elems, first, empty)
            outs = [empty(elems) for _ in range(size)]
            outs[0].fill_(rank)  # on rank 0 alone it is in its place
            dist.all_gather(outs, outs[0])
            assert torch.equal(torch.stack(outs), wanted_of_all(size, elems))
            outs = [empty(size * elems) for _ in range(2)]
            parts = [outs[1][:elems].fill_(rank), outs[0][:elems].fill_(rank)]
            with _coalescing_manager(dist.group.WORLD):
                for out, part in zip(outs, parts, strict=True):
                    dist.all_gather_into_tensor(out, part)
            for out in outs:
                assert torch.equal(out.view(size, elems), wanted_of_all(size, elems))


def wanted_of_all(size, elems):
    return torch.arange(float(size)).unsqueeze(1).expand(size, elems)


def a_shard_over_the_input(rank, size, elems, first, empty):
    x = empty(size, elems)
    x.copy_(torch.arange(size).unsqueeze(1) + 10 * rank)
    out = x.view(-1)[first : first + elems]
    dist.reduce_scatter_tensor(out, x.view(-1))
    assert torch.equal(out, torch.full((elems,), float(rank * size + 5 * size * (size - 1))))


def the_input_over_all_shards(rank, size, elems, first, empty):
    out = empty(size * elems)
    dist.all_gather_into_tensor(out, out[first : first + elems].fill_(rank))
    assert torch.equal(out.view(size, elems), wanted_of_all(size, elems))


def a_mesh_with_options(rank, size):
    override = {"one": ("fastreduce", fd.Options(shared_bytes=1 << 20))}
    names = {"mesh_dim_names": ("one", "other"), "backend_override": override}
    mesh = init_device_mesh("cpu", (size, 1), **names)
    x = torch.ones(3)
    dist.all_reduce(x, group=mesh["one"].get_group())
    assert x.eq(size).all()


def run(rank, size):
    scenarios = [
        *(groups_of_some, two_groups_at_once, asynchronous_calls_are_in_order),
        the_algorithm_is_named_when_a_group_is_made,
        a_call_of_another_thread_is_after_those_before,
        tensors_of_inference,
        memory_of_peers_is_opened_by_descriptor_0,
        *(as_much_shared_memory_as_was_said, memory_of_a_tensor_that_grows_goes_back),
        *(what_gloo_does, a_factor_of_another_dtype),
        *(a_factor_of_a_sum_that_one_rank_gets, a_group_split_off),
        groups_split_off_by_name,
        *(outputs_over_inputs, a_mesh_with_options),
    ]
    in_turn(scenarios, rank, size)
