"""Collectives of torch.distributed as functions that give what is found and what is wanted.

``xs`` are all ranks' inputs, ``total`` their reduction; ``memory.copy`` makes a tensor to pass,
``memory.given`` one that is only read. Each rank checks what the call has left on it.
"""

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager


def operation(op, factor):
    if op == "premul_sum":
        return dist._make_nccl_premul_sum(factor)
    return getattr(dist.ReduceOp, {"prod": "PRODUCT"}.get(op, op.upper()))


def finish(work):
    if work is not None:
        work.wait()


def cut(tensor):
    """A list of tensors, an empty one among them."""
    n = len(tensor)
    return tensor.split([n // 3, 0, n - n // 3 - n // 7, n // 7])


class Call:
    """How a case is called, and the group."""

    def __init__(self, op, asynchronous, group=None):
        self.op, self.how = op, {"group": group, "async_op": asynchronous}
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.group = group or dist.group.WORLD

    def root(self):
        return self.size - 1


def all_reduce(call, xs, total, memory):
    out = memory.copy(xs[call.rank])
    finish(dist.all_reduce(out, call.op, **call.how))
    return [out], [total]


def all_reduce_coalesced(call, xs, total, memory):
    outs = [memory.copy(x) for x in cut(xs[call.rank])]
    finish(dist.all_reduce_coalesced(outs, call.op, **call.how))
    return outs, cut(total)


def all_reduces_in_the_manager(call, xs, total, memory):
    outs = [memory.copy(x) for x in cut(xs[call.rank])]
    with _coalescing_manager(call.group, async_ops=call.how["async_op"]) as manager:
        for out in outs:
            dist.all_reduce(out, call.op, group=call.group)
    if call.how["async_op"]:
        manager.wait()
    return outs, cut(total)


def reduce(call, xs, total, memory):
    out = memory.copy(xs[call.rank])
    finish(dist.reduce(out, group_dst=call.root(), op=call.op, **call.how))
    return [out], [total if call.rank == call.root() else xs[call.rank]]


def broadcast(call, xs, total, memory):
    out = memory.copy(xs[call.rank])
    finish(dist.broadcast(out, group_src=call.root(), **call.how))
    return [out], [xs[call.root()]]


def all_gather(call, xs, total, memory):
    outs = [memory.copy(torch.zeros_like(x)) for x in xs]
    finish(dist.all_gather(outs, memory.given(xs[call.rank]), **call.how))
    return outs, xs


def all_gather_into_tensor(call, xs, total, memory):
    out = memory.copy(torch.zeros_like(torch.cat(xs)))
    finish(dist.all_gather_into_tensor(out, memory.given(xs[call.rank]), **call.how))
    return [out], [torch.cat(xs)]


def all_gather_coalesced(call, xs, total, memory):
    outs = [[memory.copy(torch.zeros_like(part)) for part in cut(x)] for x in xs]
    own = [memory.given(part) for part in cut(xs[call.rank])]
    finish(dist.all_gather_coalesced(outs, own, **call.how))
    return [out for of_rank in outs for out in of_rank], [part for x in xs for part in cut(x)]


def all_gathers_in_the_manager(call, xs, total, memory):
    own = [memory.given(part) for part in cut(xs[call.rank])]
    outs = [memory.copy(torch.zeros_like(x).repeat(call.size)) for x in own]
    with _coalescing_manager(call.group, async_ops=call.how["async_op"]) as manager:
        for out, x in zip(outs, own, strict=True):
            dist.all_gather_into_tensor(out, x, group=call.group)
    if call.how["async_op"]:
        manager.wait()
    return outs, [torch.cat(parts) for parts in zip(*(cut(x) for x in xs), strict=True)]


def shards(tensor, size):
    """One for each rank; what is left over is cut off."""
    part = len(tensor) // size
    return list(tensor[: part * size].split(part)) if part else [tensor[:0]] * size


def reduce_scatter(call, xs, total, memory):
    own = [memory.given(x) for x in shards(xs[call.rank], call.size)]
    wanted = shards(total, call.size)[call.rank]
    out = memory.copy(torch.zeros_like(wanted))
    finish(dist.reduce_scatter(out, own, call.op, **call.how))
    return [out], [wanted]


def reduce_scatter_tensor(call, xs, total, memory):
    wanted = shards(total, call.size)[call.rank]
    out = memory.copy(torch.zeros_like(wanted))
    own = memory.given(torch.cat(shards(xs[call.rank], call.size)))
    finish(dist.reduce_scatter_tensor(out, own, call.op, **call.how))
    return [out], [wanted]


def reduce_scatters_in_the_manager(call, xs, total, memory):
    own = [memory.given(torch.cat(shards(x, call.size))) for x in cut(xs[call.rank])]
    wanted = [shards(x, call.size)[call.rank] for x in cut(total)]
    outs = [memory.copy(torch.zeros_like(x)) for x in wanted]
    with _coalescing_manager(call.group, async_ops=call.how["async_op"]) as manager:
        for out, x in zip(outs, own, strict=True):
            dist.reduce_scatter_tensor(out, x, call.op, group=call.group)
    if call.how["async_op"]:
        manager.wait()
    return outs, wanted


REDUCING = {
    x.__name__: x
    for x in [
        *(all_reduce, all_reduce_coalesced, all_reduces_in_the_manager, reduce),
        *(reduce_scatter, reduce_scatter_tensor, reduce_scatters_in_the_manager),
    ]
}
CALLS = REDUCING | {
    x.__name__: x
    for x in [
        *(broadcast, all_gather, all_gather_into_tensor),
        *(all_gather_coalesced, all_gathers_in_the_manager),
    ]
}
# These leave the same on every rank.
ALIKE = [x for x in CALLS if x.startswith(("all_reduce", "all_gather", "broadcast"))]
