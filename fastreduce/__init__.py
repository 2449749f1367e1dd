"""Allreduce over lists of PyTorch tensors in one process.

>>> import torch, fastreduce
>>> x = [torch.ones(3), torch.ones(3)]
>>> fastreduce.allreduce(x)
>>> x[1]
tensor([2., 2., 2.])
"""

from importlib import import_module
from pkgutil import extend_path
from typing import TYPE_CHECKING, Any

import torch  # the extension links against it

# Before there is a process group: its functions have the group of that moment as a default, and
# keep it when the program has destroyed it; Gloo's threads, still about to free tensors, may then
# abort an interpreter that ends (pytorch#190489). Without this line the first optimizer imports it.
import torch.distributed.nn

# When Python is started in a clone of the repository, it finds these sources first, but the
# extension is only in the installed package.
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
from fastreduce.drawing import draw
from fastreduce.gradients import grads
from fastreduce.instruction import HOST, Instruction
from fastreduce.program import Program

if TYPE_CHECKING:
    from fastreduce import (  # noqa: F401
        bits,
        cli,
        colors,
        devices,
        distributed,
        doctor,
        folders,
        kvstore,
        parallel,
        plan,
        simulation,
        synthesis,
        topology,
        training,
        units,
    )
    from fastreduce.kvstore import KVStore
    from fastreduce.parallel import DataParallel, Whole
    from fastreduce.plan.explain import explain
    from fastreduce.simulation.simulate import simulate
    from fastreduce.synthesis.search import synthesize

__version__ = "0.1.0"  # pyproject.toml reads it from here

__all__ = [
    "HOST",
    "DataParallel",
    "Instruction",
    "KVStore",
    "Program",
    "Whole",
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
    "synthesize",
]

# Loaded when first asked for: an allreduce needs none of them, and networkx alone takes 0.14 s to
# import (AMD EPYC, family 26 model 2, 2026-11-27).
_LAZY_NAMES = {
    "DataParallel": "fastreduce.parallel",
    "KVStore": "fastreduce.kvstore",
    "Whole": "fastreduce.parallel",
    "explain": "fastreduce.plan.explain",
    "simulate": "fastreduce.simulation",
    "synthesize": "fastreduce.synthesis",
}
_LAZY_MODULES = {
    *("bits", "cli", "colors", "devices", "distributed", "doctor", "folders", "kvstore"),
    *("parallel", "plan", "simulation", "synthesis", "topology", "training", "units"),
}


def __getattr__(name: str) -> Any:
    if name in _LAZY_NAMES:
        found = getattr(import_module(_LAZY_NAMES[name]), name)
        globals()[name] = found  # the next time, Python finds it without asking here
        return found
    if name in _LAZY_MODULES:
        return import_module(f"fastreduce.{name}")
    raise AttributeError(f"module 'fastreduce' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY_NAMES, *_LAZY_MODULES})
