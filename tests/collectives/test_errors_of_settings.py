"""An op, algorithm, engine or root that cannot be: what is raised, what it says, and that nothing
was written."""

from functools import partial

import pytest
import torch
from bad_inputs import assert_refused, f32, i32, of, ones
from reference import OPS
from torch.distributed import ReduceOp

from fastreduce import _C, allreduce, broadcast, reduce
from fastreduce.algorithms.registration import INTERNAL

KNOWN = ", ".join(sorted(_C.ops()))

mean, small = partial(allreduce, op="mean"), partial(allreduce, op="SUM")
no_op = partial(allreduce, op=3)
premultiplied = partial(allreduce, op=ReduceOp.PREMUL_SUM)
avg = partial(allreduce, op="avg")
rnig = partial(allreduce, algorithm="rnig")
no_name = partial(allreduce, algorithm=3)
to_2, to_text = partial(reduce, root=2), partial(reduce, root="0")
to_2_to_70 = partial(reduce, root=2**70)
from_minus_1 = partial(broadcast, root=-1)

T, V = TypeError, ValueError
# id: the call, its arguments, the exception, words of its message
# fmt: off
ROWS = {
    "unknown op": (mean, lambda: [of(f32)], V, "unknown op 'mean'", f"known are {KNOWN}"),
    "op in capitals": (small, lambda: [of(f32)], V, "unknown op 'SUM'", "did you mean 'sum'?"),
    "op of another type": (no_op, lambda: [of(f32)], V, "unknown op 3"),
    "op of NCCL only": (premultiplied, lambda: [of(f32)], V, "unknown op 'premul_sum'"),
    **{
        f"{op} of {dtype}": (
            partial(allreduce, op=op), lambda dtype=dtype: [of(dtype)], V,
            f"op '{op}' is not defined for", "tensor 0")
        for dtype, ops in OPS.items() for op in sorted(_C.ops().keys() - ops)
    },
    "average of a counter": (
        avg, lambda: [[[ones(3), torch.tensor(7)] for _ in range(2)]], V,
        "int64 (tensor 1)", "num_batches_tracked", "broadcast the buffers"),
    "dtype without arithmetic": (
        allreduce, lambda: [of(torch.float8_e8m0fnu)], V, "float8_e8m0fnu", "cannot be reduced"),
    "op of a later dtype": (
        avg, lambda: [[[ones(3), ones(3, dtype=i32)] for _ in range(2)]], V,
        "op 'avg' is not defined for int32 (tensor 1)"),
    "unknown algorithm": (
        rnig, lambda: [of(f32)], V, "unknown algorithm 'rnig'", "known are auto, ",
        "did you mean 'ring'?"),
    **{
        f"algorithm {name}, which is for other calls": (
            partial(allreduce, algorithm=name), lambda: [of(f32)], V,
            f"unknown algorithm {name!r}", "known are auto, ")
        for name in INTERNAL
    },
    "algorithm of another type": (no_name, lambda: [of(f32)], T, "algorithm"),
    "unknown engine": (
        partial(allreduce, engine="flag"), lambda: [of(f32)], V,
        "unknown engine 'flag'; known are auto, flags"),
    "flags on the CPU": (
        partial(allreduce, engine="flags"), lambda: [of(f32)], V,
        "for ranks on several GPUs, but all are on cpu"),
    "engine of another type": (
        partial(allreduce, engine=None), lambda: [of(f32)], T, "want 'auto' or 'flags'"),
    "root too large": (to_2, lambda: [of(f32)], V, "root 2", "there are 2"),
    "root beyond 64 bits": (to_2_to_70, lambda: [of(f32)], V, "is not a rank: there are 2"),
    "root below 0": (from_minus_1, lambda: [of(f32)], V, "root -1"),
    "root of another type": (to_text, lambda: [of(f32)], T, "root"),
}
# fmt: on


@pytest.mark.parametrize("row", ROWS)
def test_bad_setting(row):
    assert_refused(*ROWS[row])
