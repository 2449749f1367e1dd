"""The public calls. Each is one call into the extension.

All take a list with one tensor per rank, or one list of tensors per rank (the gradients of a whole
model in one call), and return None, or with ``async_op=True`` the work to wait for: results are
written in place. Where the ranks' shapes or dtypes differ, one rank's tensors lie on two devices,
some ranks are on GPUs and others on the CPU, or tensors share memory, a ValueError says which rank
and tensor, and nothing has been written. While a call runs, Python cannot react to Ctrl-C:
KeyboardInterrupt is raised when it returns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from fastreduce import _C
from fastreduce.algorithms import Algorithm
from fastreduce.arguments import (
    NO_OPERATOR,
    Op,
    Tensors,
    about_subclasses,
    by_rank,
    check_flags,
    copied,
    gpu_of,
    op_name,
)
from fastreduce.program import Program
from fastreduce.work import Work, begin, finish, in_flight


def allreduce(
    tensors: Tensors,
    op: Op = "sum",
    *,
    algorithm: str | Program | Algorithm = "auto",
    engine: str = "auto",
    async_op: bool = False,
) -> Work | None:
    """Leave the reduction of all ranks' tensors in every one of them, in place.

    Args:
        tensors: a list with one tensor per rank, or one list of tensors per rank; tensor i has the
            same shape and dtype on every rank. torch tensors in CPU memory, or in CUDA memory with
            all tensors of a rank on one device; or arrays with ``__dlpack__`` over a writable
            buffer (NumPy, CuPy), which are used without a copy. Any strides, views, 0-dim and empty
            tensors.
        op: "sum", "avg", "prod", "min", "max" (NaN wins), "band", "bor", "bxor", or the
            `torch.distributed.ReduceOp` of that name. float16, bfloat16, float32 and float64 take
            the first five; float8 (e4m3fn, e5m2 and their fnuz forms) takes those without prod;
            complex32, complex64 and complex128 take sum and avg; integers of 8 to 64 bits, signed
            or not, and bool take all but avg (for bool, sum is "or" and prod is "and").
            ``fastreduce._C.ops()`` has the table.
        algorithm: "auto"; a name of `fastreduce.algorithms`: "leader", "sharded", "by-parameter",
            "host", "ring", "bidirectional", "multi-ring", "tree", "halving-doubling",
            "hierarchical", "naive", or one registered by `fastreduce.algorithm`; a
            `fastreduce.Program` for as many ranks; "file:PATH" for one that `Program.save` wrote
            (read again when the file has changed); or a function from the number of ranks to a
            program. Under `torch.compile` only names. "auto" chooses by size, ranks and devices:
            ``FASTREDUCE_ALGORITHM`` if it is set, else the fastest that `fastreduce tune` measured,
            else the documented default (`fastreduce.explain` shows the choice).
        engine: "auto", or for ranks on several GPUs "flags": for small calls (to about 1 MiB per
            rank), one kernel on each GPU, and these wait for each other by flags in the GPUs'
            memory, with no event or graph in between. Larger calls, calls by way of the host, and
            GPUs that do not reach each other take what "auto" takes. The same bits. **Never run on
            several GPUs** (docs/cuda.md).
        async_op: return a `fastreduce.work.Work` at once, and do the work meanwhile (in a thread
            on the CPU). The tensors must be left alone until its ``wait()`` has returned, which
            also raises the errors below. Other collectives wait until what is in flight is done;
            where 32 calls are in flight, the next one waits for room.

    Bits: ranks are summed in ascending order, beginning with rank 0's value, so leader, sharded,
    by-parameter, host and the defaults on the CPU, on one GPU and over NVLink give, in float32 and
    float64, exactly the bits of the loop ``for x in tensors[1:]: tensors[0] += x``, for any size
    and number of threads (where the loop gives a NaN, they give a NaN, perhaps with other bits).
    16- and 8-bit floats accumulate in float32 and are rounded once. The other algorithms sum in
    other orders. With every algorithm all ranks end with the same bits, run after run.

    Streams: work on CUDA tensors comes after what is on each device's current stream and before
    what is put on it next. A call can be captured by `torch.cuda.graph`; over several GPUs, after
    it was made once outside a capture. There, a current stream that has waited for a captured
    stream is part of the capture; a GPU whose current stream is not part of it must be synchronized
    with the graph by hand.

    Raises:
        TypeError: something is not a tensor (with rank and index), such as None for a missing
            gradient.
        ValueError: shapes, dtypes, devices, layouts or list lengths differ; tensors share memory or
            are read-only; unknown op or algorithm, a wrong program, or an op that the dtype does
            not have.
        RuntimeError: a tensor requires grad while grad mode is on.

    >>> import torch
    >>> x = [torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0])]
    >>> allreduce(x)
    >>> x
    [tensor([11., 22.]), tensor([11., 22.])]
    """
    return _run("allreduce", tensors, None, op, 0, algorithm, engine, async_op=async_op)


def reduce(
    tensors: Tensors, root: int = 0, op: Op = "sum", *, async_op: bool = False
) -> Work | None:
    """Leave the reduction of all ranks' tensors in rank ``root``'s; the others stay as they are.

    Arguments, bits and errors as for `allreduce`; a ``root`` that is no rank is a ValueError.

    >>> import torch
    >>> x = [torch.tensor([1.0]), torch.tensor([10.0])]
    >>> reduce(x, root=1)
    >>> x
    [tensor([1.]), tensor([11.])]
    """
    return _run("reduce", tensors, None, op, root, "auto", async_op=async_op)


def broadcast(tensors: Tensors, root: int = 0, *, async_op: bool = False) -> Work | None:
    """Copy rank ``root``'s tensors into every other rank's. Any dense dtype.

    Errors as for `allreduce`; a ``root`` that is no rank is a ValueError.

    >>> import torch
    >>> x = [torch.tensor([1.0]), torch.tensor([10.0])]
    >>> broadcast(x, root=1)
    >>> x
    [tensor([10.]), tensor([10.])]
    """
    return _run("broadcast", tensors, None, "sum", root, "auto", async_op=async_op)


def reduce_scatter(
    outputs: Tensors, tensors: Tensors, op: Op = "sum", *, async_op: bool = False
) -> Work | None:
    """Leave shard r of the reduction of all ranks' tensors in rank r's output.

    Args:
        outputs: as in `allreduce`; each has one k-th of the elements of its rank's tensor.
        tensors: as in `allreduce`; read, not written. Rank r's output may be its own shard of its
            own tensor (in place, as NCCL allows), if both are contiguous.
        op: as in `allreduce`.

    Errors as for `allreduce`, and a ValueError where the element counts do not fit.

    >>> import torch
    >>> x = [torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0])]
    >>> out = [torch.empty(1), torch.empty(1)]
    >>> reduce_scatter(out, x)
    >>> out
    [tensor([11.]), tensor([22.])]
    """
    return _run("reduce_scatter", outputs, tensors, op, 0, "auto", async_op=async_op)


def all_gather(outputs: Tensors, tensors: Tensors, *, async_op: bool = False) -> Work | None:
    """Leave all ranks' tensors, one after the other, in every rank's output. Any dense dtype.

    Args:
        outputs: as in `allreduce`; each has k times the elements of its rank's tensor.
        tensors: as in `allreduce`; read, not written. Rank r's tensor may be its own shard of its
            own output (in place, as NCCL allows), if both are contiguous.

    Errors as for `allreduce`, and a ValueError where the element counts do not fit.

    >>> import torch
    >>> out = [torch.empty(2), torch.empty(2)]
    >>> all_gather(out, [torch.tensor([1.0]), torch.tensor([10.0])])
    >>> out
    [tensor([ 1., 10.]), tensor([ 1., 10.])]
    """
    return _run("all_gather", outputs, tensors, "sum", 0, "auto", async_op=async_op)


def _run(
    collective: str,
    outputs: Tensors,
    inputs: Tensors | None,
    op: Op,
    root: int,
    algorithm: str | Program | Algorithm,
    engine: str = "auto",
    *,
    async_op: bool = False,
) -> Work | None:
    if async_op is not False:
        check_flags(collective, async_op=async_op)
    if torch.compiler.is_compiling():
        if async_op:
            raise ValueError(
                "async_op=True is not possible under torch.compile; leave it out there"
            )
        _run_compiled(collective, outputs, inputs, op, root, algorithm, engine)
        return None
    if async_op:
        return _begin(collective, outputs, inputs, op, root, algorithm, engine)
    if in_flight:
        finish()  # the tensors may be the same
    try:
        _C.run(collective, outputs, inputs, op, root, algorithm, engine)
    except (NotImplementedError, TypeError) as error:
        if isinstance(error, TypeError) and "__torch_dispatch__" not in str(error):
            raise
        # A tensor subclass raises either, depending on how it says that it has no allreduce.
        raise ValueError(about_subclasses(outputs, inputs) or NO_OPERATOR) from error
    except RuntimeError as error:  # also DTensor's, beside plain tensors
        if about := about_subclasses(outputs, inputs):
            raise ValueError(about) from error
        raise
    return None


def _run_compiled(
    collective: str,
    outputs: Tensors,
    inputs: Tensors | None,
    op: Op,
    root: int,
    algorithm: str | Program | Algorithm,
    engine: str,
) -> None:
    """Under torch.compile: an operator that it can place in a graph, over flat lists.

    This code is only traced, so the operator itself waits for what is in flight (`_finish_first`).
    """
    if not isinstance(algorithm, str):
        raise TypeError(
            f"algorithm is {type(algorithm).__name__}; under torch.compile want a name: register "
            "it with fastreduce.algorithm"
        )
    rank_outputs, rank_inputs = by_rank(outputs), by_rank(inputs or [])
    flat_outputs = [tensor for rank in rank_outputs for tensor in rank]
    flat_inputs = [tensor for rank in rank_inputs for tensor in rank]
    if flat_outputs:
        torch.ops.fastreduce.collective_(
            collective,
            flat_outputs,
            flat_inputs,
            len(rank_outputs),
            op_name(op),
            root,
            algorithm,
            engine,
        )


def _begin(collective: str, outputs: Tensors, inputs: Tensors | None, *how: Any) -> Work:
    results, read = copied(outputs), copied(inputs)
    gpus = {gpu for x in pytree.tree_leaves(results) if (gpu := gpu_of(x))}
    return begin(lambda: _run(collective, results, read, *how), gpus, results)


def _finish_first(keys: torch._C.DispatchKeySet, *call: Any) -> None:
    """Wait for what is in flight, where the operator is run and not traced; then go on to it."""
    finish()
    below = keys.remove(torch._C.DispatchKey.BackendSelect)
    torch.ops.fastreduce.collective_.default.redispatch(below, *call)


# BackendSelect is the last stop before the devices' own code. The object must live on: the
# registration ends with it.
_operator = torch.library.Library("fastreduce", "IMPL")  # type: ignore[no-untyped-call]
_operator.impl(  # type: ignore[no-untyped-call]
    "collective_", _finish_first, "BackendSelect", with_keyset=True
)
