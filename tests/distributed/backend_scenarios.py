"""What every rank of a group does; it keeps what failed, by name, and goes on."""

import hashlib
import traceback
from dataclasses import replace

import torch
import torch.distributed.tensor
from backend_calls import ALIKE, CALLS, Call, operation
from backend_cases import FACTOR, Case, Memory, inputs, result, sampled, short
from reference import OPS, assert_same, integer_bits, unsigned_zeros

import fastreduce


def cases(rank, size, folder, seed=None):
    run_cases(rank, size, folder, short() if seed is None else sampled(seed))


def cases_across(rank, size, folder):
    """Between machines, at most 4 KiB go along with the comparison of the call; larger sums are
    gathered, and those above 256 KiB are Gloo's."""
    sizes = (1_023, 1_024, 1_025, 8_193, 200_003)
    sums = [case for case in short() if case.call == "all_reduce"]
    larger = [replace(case, elems=elems) for case in sums for elems in sizes]
    edges = [Case(call, elems=elems) for call in CALLS for elems in (256, 257, 1_024, 1_025)]
    table = [replace(case, exact=True) for case in (*short(), *larger, *edges)]
    run_cases(rank, size, folder, table)


def run_cases(rank, size, folder, table, memory_of=Memory):
    """What failed, and the results' bits of those that shall be alike on all ranks."""
    failed, bits = {}, {}
    for case in table:
        try:
            outs = check(case, size, memory_of=memory_of)
        except BaseException:
            failed[case] = traceback.format_exc()
            continue
        if case.call in ALIKE:
            data = b"".join(integer_bits(out).numpy().tobytes() for out in outs)
            bits[case] = hashlib.sha1(data).hexdigest()
    torch.save((failed, bits), f"{folder}/found-{rank}")


def check(case, size, group=None, memory_of=Memory):
    xs, total = inputs(size, case), result(size, case)
    call = Call(operation(case.op, FACTOR), case.asynchronous, group)
    memory = memory_of(case.layout, call.rank)
    outs, wanted = CALLS[case.call](call, xs, total, memory)
    outs = [out.cpu() for out in outs]
    for out, value in zip(outs, wanted, strict=True):
        if case.op in ("min", "max"):
            out, value = unsigned_zeros(out), unsigned_zeros(value)
        assert_same(out, value)
    assert memory.untouched(), "memory beside the tensors was written"
    if case.call == "all_reduce" and case.op in OPS[case.dtype]:
        alone = [x.clone() for x in xs]
        fastreduce.allreduce(alone, op=case.op)
        assert_same(outs[0], alone[0])
    return outs
