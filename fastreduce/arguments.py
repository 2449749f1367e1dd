"""What callers may pass: lists of tensors or arrays, names of operations, and flags."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils.dlpack import from_dlpack

from fastreduce import _C
from fastreduce.names import listed

if TYPE_CHECKING:
    from torch.distributed import ReduceOp

Tensors: TypeAlias = "Iterable[Any] | Iterable[Iterable[Any]]"
Op: TypeAlias = "str | ReduceOp | ReduceOp.RedOpType"


def check_flags(where: str, **flags: object) -> None:
    """Raise TypeError for one that is not a bool: "no" would be taken for True."""
    for name, found in flags.items():
        if not isinstance(found, bool):
            raise TypeError(f"{where}: found {name}={found!r}, wanted True or False")


def copied(tensors: Any) -> Any:
    """The same tensors in lists of our own: callers may change theirs while a call is in flight."""
    if isinstance(tensors, torch.Tensor | str) or hasattr(tensors, "__dlpack__"):
        return tensors
    return [copied(x) for x in tensors] if isinstance(tensors, Iterable) else tensors


_CUDA = (2, 13)  # in dlpack.h: memory of a GPU, and memory that it shares with the CPU


def gpu_of(item: Any) -> torch.device | None:
    """The GPU on which a tensor or an array is; None if it is on none, or does not say."""
    if isinstance(item, torch.Tensor):
        return item.device if item.is_cuda else None
    try:
        kind, index = item.__dlpack_device__()
    except Exception:  # which the call itself will see, and say
        return None
    return torch.device("cuda", index) if kind in _CUDA else None


# By the name of a tensor subclass that only wraps other tensors: what to reduce instead.
_INSIDE = {
    "DTensor": "its .to_local(), which is this process's part",
    "NestedTensor": "its .values()",
}
_PLAIN = torch.Tensor.__torch_dispatch__  # also of subclasses that keep a tensor's own memory


# What an error says where nothing better is known.
NO_OPERATOR = (
    "a subclass of torch.Tensor, or a mode that is active (torch.overrides, "
    "torch.utils._python_dispatch), has no allreduce; pass plain tensors"
)


def about_subclasses(outputs: Tensors, inputs: Tensors | None) -> str | None:
    """What an error says of the first tensor whose class has no operator of ours, or None."""
    sides = {"": outputs} if inputs is None else {"the output of ": outputs, "": inputs}
    for side, tensors in sides.items():
        for rank, of_rank in enumerate(by_rank(tensors)):
            for index, tensor in enumerate(of_rank):
                if wraps_others(tensor):
                    name = type(tensor).__name__
                    instead = _INSIDE.get(name, "the plain tensors inside it")
                    return (
                        f"{side}rank {rank}, tensor {index} is {name}, a subclass without memory "
                        f"of its own; pass {instead}"
                    )
    return None


def wraps_others(value: Any) -> bool:
    """Whether it is a tensor whose values are in other tensors."""
    return isinstance(value, torch.Tensor) and type(value).__torch_dispatch__ != _PLAIN


def check_initialized(tensor: torch.Tensor, rank: int, index: int) -> None:
    """Raise ValueError for a parameter of a lazy module, which looks like an empty tensor."""
    if is_lazy(tensor):
        raise ValueError(
            f"rank {rank}, tensor {index} is an uninitialized parameter, which has no values yet; "
            "run one batch through its module first"
        )


def by_rank(tensors: Tensors) -> list[list[Any]]:
    """One list per rank, also where each rank gave one tensor or array."""
    ranks: list[list[Any]] = [
        [x] if isinstance(x, torch.Tensor) or hasattr(x, "__dlpack__") else list(x) for x in tensors
    ]
    if len({len(rank) for rank in ranks}) > 1:
        raise ValueError(
            f"ranks have {[len(rank) for rank in ranks]} tensors; want as many of each"
        )
    return ranks


def op_name(op: Op) -> str:
    """The name of an operation, also of a ``torch.distributed.ReduceOp`` member."""
    if isinstance(op, str):
        return op
    member = getattr(op, "op", op)  # a ReduceOp holds its member as .op
    name = getattr(member, "name", None)
    if not isinstance(name, str):
        if isinstance(op, torch.Tensor | list | tuple):
            raise ValueError(
                f"op is {type(op).__name__}; want a name such as 'sum'. Tensors of all ranks go "
                "into one list: allreduce([a, b])"
            )
        raise ValueError(
            f"unknown op {op!r}; want a name such as 'sum' or a torch.distributed.ReduceOp"
        )
    return "prod" if name == "PRODUCT" else name.lower()


def known_op(op: Op) -> str:
    """The name of an op that exists. The extension calls this where it does not know the name."""
    name = op_name(op)
    if name not in _C.ops():
        raise ValueError(f"unknown op {name!r}; known are {listed(_C.ops(), name)}")
    return name


def as_tensor(item: object, rank: int, index: int, written: bool = True) -> torch.Tensor:
    """A zero-copy view of an array. The extension calls this for items that are not tensors, and
    says whether results will be ``written`` to them."""
    if isinstance(item, torch.Tensor):
        return item
    where = f"rank {rank}, tensor {index}"
    if item is None:
        raise TypeError(
            f"{where} is None: rank {rank}, parameter {index} has no gradient; every rank must use "
            "every parameter, or leave it out on all ranks (fastreduce.grads names the parameter)"
        )
    if not hasattr(item, "__dlpack__"):
        raise TypeError(
            f"{where} is {type(item).__name__}; want a tensor, or an array with __dlpack__"
            + (" (fastreduce.grads(replicas) has those of modules)" * isinstance(item, nn.Module))
            + (" (of a dict, pass list(d.values()))" * isinstance(item, str))
        )
    if _is_masked(item):
        raise ValueError(
            f"{where} is a {type(item).__name__}, whose mask no call would see; pass its "
            ".filled(0) or its .data"
        )
    exported = _exported(item)
    if written and (_is_constant(item) or (exported and exported.read_only)):
        raise ValueError(
            f"{where} is a read-only {type(item).__name__}, and results are written in place; "
            "reduce a copy (np.array(x), torch.tensor(x)) and convert that back"
        )
    # Negative strides make torch end the process.
    strides = exported.strides if exported else []
    if any(stride < 0 for stride in strides):
        raise ValueError(
            f"{where} has negative strides, {strides} in elements; want a copy without them"
        )
    try:
        return from_dlpack(item)
    # A build of torch without CUDA raises AssertionError for an array on a GPU.
    except (AssertionError, BufferError, TypeError, RuntimeError) as error:
        raise ValueError(f"{where} cannot be taken through __dlpack__: {error}") from error


def _is_constant(item: Any) -> bool:
    """Whether the array must not be written to, whatever it exports.

    JAX's arrays are constants even if they are exported as writable, because other arrays and
    compiled functions share their memory. NumPy's have a flag.
    """
    if any(x.__module__.partition(".")[0] in ("jax", "jaxlib") for x in type(item).__mro__):
        return True
    return not getattr(getattr(item, "flags", None), "writeable", True)


def _is_masked(item: Any) -> bool:
    """Whether NumPy holds some of its elements for missing, of which DLPack knows nothing."""
    masked = sys.modules.get("numpy.ma")
    return masked is not None and isinstance(item, masked.MaskedArray)


def _exported(item: Any) -> _C.Exported | None:
    """What the array's DLPack capsule says; None if it has none, and from_dlpack says why."""
    for options in ({"max_version": (1, 0)}, {}):  # older libraries know no option
        try:
            return _C.look_at(item.__dlpack__(**options))
        except (BufferError, TypeError, ValueError, RuntimeError):
            continue
    return None
