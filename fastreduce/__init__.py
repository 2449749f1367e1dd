"""Allreduce over lists of PyTorch tensors in one process.

>>> import torch, fastreduce
>>> x = [torch.ones(3), torch.ones(3)]
>>> fastreduce.allreduce(x)
>>> x[1]
tensor([2., 2., 2.])
"""

from pkgutil import extend_path

import torch  # the extension links against it

# Started in a clone of the repository, Python finds these sources first and the extension only in
# the installed package.
__path__ = extend_path(__path__, __name__)

try:
    from fastreduce import _C  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"fastreduce's extension does not load with torch {torch.__version__}: it is not built, or "
        "was built for another minor version. Reinstall it beside this torch: "
        "pip install --force-reinstall --no-deps fastreduce's folder"
    ) from error

from fastreduce import algorithms
from fastreduce.algorithms import algorithm
from fastreduce.collectives import all_gather, allreduce, broadcast, reduce, reduce_scatter
from fastreduce.gradients import grads
from fastreduce.plan.explain import explain
from fastreduce.program import HOST, Instruction, Program
from fastreduce.simulation import draw, simulate

__version__ = "0.1.0"

__all__ = [
    "HOST",
    "Instruction",
    "Program",
    "algorithm",
    "algorithms",
    "all_gather",
    "allreduce",
    "broadcast",
    "draw",
    "explain",
    "grads",
    "reduce",
    "reduce_scatter",
    "simulate",
]
