"""The gradients of k replicas of one model, as `fastreduce.allreduce` takes them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fastreduce.names import ranks_named

Replica: TypeAlias = "nn.Module | Iterable[Tensor] | Iterable[tuple[str, Tensor]]"
Named: TypeAlias = "list[tuple[str, Tensor]]"


def grads(replicas: Iterable[Replica]) -> list[list[Tensor]]:
    """Collect the gradients of k replicas of one model: one list per replica, for `allreduce`.

    Args:
        replicas: one per rank, each an `nn.Module`, its parameters (``model.parameters()``) or its
            named parameters (``model.named_parameters()``). All have the same parameters, in the
            same order.

    Returns one list of gradients per rank, in the order of the parameters. They are the ``.grad``
    tensors themselves, not copies: after `allreduce` every optimizer sees the sum (or the mean,
    with ``op="avg"``). Left out, on all ranks alike, are frozen parameters
    (``requires_grad=False``) and those that no rank has used (``.grad`` is None on every rank).

    Raises:
        TypeError: ``replicas`` is a single model, or one of them is not of the kinds above.
        ValueError, with the parameter's name and the ranks: the ranks' parameters have different
            names, orders, shapes or dtypes; a parameter of a lazy module has no values yet, is
            frozen on some ranks only, or has a gradient on some ranks only; or no gradient is
            found at all.

    >>> import copy, torch, fastreduce
    >>> model = torch.nn.Linear(2, 1)
    >>> replicas = [model, copy.deepcopy(model)]
    >>> for replica, x in zip(replicas, torch.tensor([[1.0, 2.0], [10.0, 20.0]])):
    ...     replica(x).sum().backward()
    >>> fastreduce.allreduce(grads(replicas))
    >>> replicas[1].weight.grad
    tensor([[11., 22.]])
    """
    one = isinstance(replicas, nn.Module) and not isinstance(replicas, nn.ModuleList)
    if one or not isinstance(replicas, Iterable):
        raise TypeError(
            f"grads: found one {type(replicas).__name__}, wanted a list of replicas, one per rank"
        )
    ranks = [_named_parameters(replica, rank) for rank, replica in enumerate(replicas)]
    _check_names(ranks)
    collected = [_of_one_parameter(same) for same in zip(*ranks, strict=True)]
    used = [gradients for gradients in collected if gradients]
    if not used:
        raise ValueError(
            f"grads: found no gradient on any of {len(ranks)} ranks, wanted at least one; "
            "call backward() on every replica's loss first"
        )
    return [list(own) for own in zip(*used, strict=True)]


def _named_parameters(replica: Any, rank: int) -> Named:
    if isinstance(replica, nn.Module):
        return list(replica.named_parameters())
    if isinstance(replica, Tensor) or not isinstance(replica, Iterable):
        raise TypeError(
            f"grads: rank {rank}: found {type(replica).__name__}, wanted an nn.Module, a list of "
            "parameters or one of named parameters"
        )
    named: Named = []
    for index, item in enumerate(replica):
        # A parameter without a name is named by its index.
        pair = isinstance(item, tuple) and len(item) == 2
        name, parameter = item if pair else (str(index), item)
        if not isinstance(parameter, Tensor):
            raise TypeError(
                f"grads: rank {rank}, parameter {index}: found {type(parameter).__name__}, wanted "
                "a tensor, or a name and a tensor"
            )
        named.append((str(name), parameter))
    return named


def _check_names(ranks: Sequence[Named]) -> None:
    for rank, parameters in enumerate(ranks):
        pairs = itertools.zip_longest(*([name for name, _ in x] for x in (parameters, ranks[0])))
        for index, pair in enumerate(pairs):
            own, first = ("no parameter" if name is None else name for name in pair)
            if pair[0] != pair[1]:
                raise ValueError(
                    f"grads: parameter {index}: found {own} on rank {rank} and {first} on rank 0, "
                    "wanted replicas of one model, with the same parameters in the same order"
                )


def _of_one_parameter(same: Sequence[tuple[str, Tensor]]) -> list[Tensor]:
    """Return one parameter's gradient per rank; an empty list if it is frozen or unused."""
    name, parameters = same[0][0], [parameter for _, parameter in same]
    model = "replicas of one model"
    for rank, parameter in enumerate(parameters):
        if is_lazy(parameter):
            raise ValueError(
                f"grads: parameter {name}: found it uninitialized on rank {rank}, wanted one with "
                "values; run one batch through the module first"
            )
    _check_alike(name, "shape", [tuple(p.shape) for p in parameters], model)
    _check_alike(name, "dtype", [p.dtype for p in parameters], model)
    frozen = [not p.requires_grad for p in parameters]
    _check_alike(name, "frozen:", frozen, "it frozen on all ranks or on none")
    if frozen[0]:
        return []
    _check_alike(
        name,
        "gradient",
        ["None" if p.grad is None else "a tensor" for p in parameters],
        "a tensor on all ranks or on none; where a rank does not use the parameter, set its "
        ".grad to torch.zeros_like(parameter)",
    )
    return [p.grad for p in parameters if p.grad is not None]


def _check_alike(name: str, what: str, found_by_rank: Sequence[Any], wanted: str) -> None:
    ranks_with: dict[Any, list[str]] = {}
    for rank, found in enumerate(found_by_rank):
        ranks_with.setdefault(found, []).append(str(rank))
    if len(ranks_with) > 1:
        listed = "; ".join(
            f"{found} on {ranks_named(those)}" for found, those in ranks_with.items()
        )
        raise ValueError(f"grads: parameter {name}: found {what} {listed}; wanted {wanted}")
