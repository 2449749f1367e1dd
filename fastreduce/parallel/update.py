"""An optimizer's step as a part of a CUDA graph.

Replays repeat kernels, not Python: numbers are those of the capture, and tensors stay where they
were.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


class Update:
    """The step of ``optimizer``, which can be captured.

    Raises ValueError for an optimizer that is not capturable, TypeError for what is none.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(
                f"graphed: found {type(optimizer).__name__} as optimizer, wanted one of torch.optim"
            )
        self._optimizer = optimizer
        self.name = type(optimizer).__name__
        if any(group.get("capturable") is False for group in optimizer.param_groups):
            raise ValueError(
                f"graphed: found {self.name} with capturable=False, wanted capturable=True: a CUDA "
                "graph repeats its step"
            )
        self.params: list[Tensor] = [p for x in optimizer.param_groups for p in x["params"]]
        self._captured: tuple[dict[str, Any], list[Any]] = ({}, [])

    def __call__(self) -> None:
        self._optimizer.step()

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Leaves parameters and state as they were; raises ValueError where no graph can hold it.

        A graph can hold a state that a step changes in place, on the device of its parameter.
        """
        state = self._optimizer.state
        before = {p: dict(of_p) for p, of_p in state.items()}
        kept = [
            (x, x.detach().clone())
            for x in (*self.params, *(x for of_p in before.values() for x in of_p.values()))
            if isinstance(x, Tensor)
        ]
        try:
            yield
            self._check_state(before)
        finally:
            state.clear()
            state.update(before)
            with torch.no_grad():
                for tensor, values in kept:
                    tensor.copy_(values)

    def _check_state(self, before: dict[Tensor, dict[str, Any]]) -> None:
        for p, of_p in self._optimizer.state.items():
            for name, value in of_p.items():
                if name not in before.get(p, {}):
                    raise ValueError(
                        f"graphed: found {self.name} without its state {name!r}, which its first "
                        "step makes; call optimizer.step() once before model.graphed"
                    )
                if value is not before[p][name] or getattr(value, "device", p.device) != p.device:
                    raise ValueError(
                        f"graphed: found {self.name}, whose state {name!r} is no tensor on "
                        f"{p.device} that a step changes in place; leave the optimizer out, and "
                        "call optimizer.step() after each step"
                    )

    def keep(self) -> None:
        """Take note of what has been captured."""
        self._captured = self._held()

    def check(self) -> None:
        """Raise RuntimeError if the optimizer is no longer as it was captured."""
        (own, own_state), (new, new_state) = self._captured, self._held()
        changed = [name for name in new if name not in own or own[name] != new[name]]
        if len(own_state) != len(new_state) or any(
            x is not y for x, y in zip(own_state, new_state, strict=True)
        ):
            changed.append("state")
        if changed:
            raise RuntimeError(
                f"graphed: {self.name} has another {', '.join(changed)} than when its step was "
                "captured; call model.graphed again"
            )

    def _held(self) -> tuple[dict[str, Any], list[Any]]:
        """The settings, numbers by value and tensors on GPUs by their place; and the state."""
        settings = {
            f"{name} (group {i})": _held_as(x)
            for i, group in enumerate(self._optimizer.param_groups)
            for name, x in group.items()
            if name != "params"
        }
        return settings, [x for of_p in self._optimizer.state.values() for x in of_p.values()]


def _held_as(x: Any) -> Any:
    if not isinstance(x, Tensor):
        return x
    return x.data_ptr() if x.is_cuda else x.tolist()
