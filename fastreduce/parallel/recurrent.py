"""Keeps recurrent layers from moving the parameters that a replica has while it runs.

On GPUs `nn.LSTM` and its kind put their weights into one block of memory wherever they find new
ones, and many models ask for that in forward (``flatten_parameters``). A replica has new ones in
every pass, in the memory of the module's, where cuDNN reads them as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

# Where a layer keeps its weights a second time. Those of a pass would hold its autograd graph.
_HELD = ("_flat_weights", "_flat_weight_refs")
_MOVES = "flatten_parameters"


def _nothing() -> None:
    """In the place of flatten_parameters."""


def _layers(module: nn.Module) -> list[nn.Module]:
    return [layer for layer in module.modules() if isinstance(layer, nn.RNNBase)]


def _kept(layer: nn.Module, *names: str) -> dict[str, Any]:
    return {name: vars(layer)[name] for name in names if name in vars(layer)}


class RecurrentLayers:
    """Those of a module, and of its copies, which stay as they are here also between passes:
    checkpoints run them again in the backward pass."""

    def __init__(self, modules: Sequence[nn.Module]):
        net, *copies = modules
        self._layers = _layers(net)
        self._before: dict[nn.Module, Any] = {}  # what `enter` has replaced
        self._of_copies = {x: _kept(x, *_HELD) for module in copies for x in _layers(module)}
        for layer in self._of_copies:
            vars(layer)[_MOVES] = _nothing

    def enter(self) -> None:
        self._before = {layer: _kept(layer, *_HELD, _MOVES) for layer in self._layers}
        for layer in self._before:
            vars(layer)[_MOVES] = _nothing

    def leave(self) -> None:
        """Undo what `enter` has done, if only in part, and forget the weights of the pass."""
        for layer, kept in self._before.items():
            vars(layer).pop(_MOVES, None)
            vars(layer).update(kept)
        self._before = {}
        self.forget()

    def forget(self) -> None:
        """Have copies forget those that they found in a backward pass, too."""
        for layer, kept in self._of_copies.items():
            vars(layer).update(kept)
