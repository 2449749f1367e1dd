"""Finds what would lose the gradient of a shard: a module that runs again in the backward pass, and
parameters that are not read from their module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointFunction

from fastreduce.parallel.structure import refuse_placeholder
from fastreduce.parallel.trees import is_leaf
from fastreduce.parallel.untraced import untraced

_CHECKPOINT: Any = CheckpointFunction._backward_cls


@untraced
def check_graph(outputs: Sequence[Any]) -> None:
    """Raise ValueError for a `torch.autograd.Function` that takes parameters and keeps a module,
    RuntimeError for a leaf that only stands in the place of a parameter.

    The function's backward pass runs the module again, and differentiates with respect to the
    parameters that it took, as adjoint methods do. By then the first replica, which is the module
    itself, has its own parameters back, on which nothing that was taken depends. torch's reentrant
    checkpoints run it on copies of what they took instead, and parameters get their gradients
    directly.
    """
    leaves = pytree.tree_leaves(outputs, is_leaf=is_leaf)
    left = [leaf.grad_fn for leaf in leaves if isinstance(leaf, Tensor)]
    seen: set[Any] = set()
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        below = [node for node, _ in node.next_functions]
        by_user = isinstance(node, BackwardCFunction) and not isinstance(node, _CHECKPOINT)
        if by_user and any(map(_is_sum, below)):
            held = [getattr(value, "__self__", value) for value in vars(node).values()]
            if any(isinstance(value, nn.Module) for value in held):
                name = type(node).__name__.removesuffix("Backward")
                raise ValueError(
                    f"DataParallel: forward has called {name}, a torch.autograd.Function that "
                    "takes parameters and keeps a module, as torchdiffeq.odeint_adjoint does. Its "
                    "backward pass would run the module again when the first shard's parameters "
                    "are gone, and that shard's gradient would be zero. Use what autograd follows, "
                    "such as torchdiffeq.odeint; torch.utils.checkpoint with use_reentrant=False "
                    "saves memory, too"
                )
        refuse_placeholder(getattr(node, "variable", None))
        left += below


def _is_sum(node: Any) -> bool:
    return node is not None and node.name().startswith("SumOfReplicas")
