"""The state of a training run as tensors and JSON, and back: nothing is ever pickled."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import safetensors.torch
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from fastreduce.kvstore import KVStore
from fastreduce.kvstore.arguments import dense
from fastreduce.names import shown

Made = TypeVar("Made")

# JSON has one kind of list, and dicts whose keys are strings only.
SEQUENCES: dict[str, Any] = {"list": list, "tuple": tuple}
MAPPINGS: dict[str, Any] = {"counter": Counter, "dict": dict}
# What a group of an optimizer has beside settings: of a scheduler, and names of parameters.
NOT_SETTINGS = {"initial_lr", "param_names"}
PLAIN = (str, int, float, bool, type(None))
# How deep lists and dicts may be in each other: what reads JSON goes three levels down for each,
# and Python's stack has a thousand.
DEEPEST = 100


def state_of(part: Any) -> Any:
    """What of ``part`` is to be kept: ``state_dict()``, a generator's state, or itself."""
    if isinstance(part, torch.Generator):
        return part.get_state()
    return part.state_dict() if hasattr(part, "state_dict") else part


def shapes_of(part: Any) -> list[list[list[int] | None]] | None:
    """Of an optimizer, the shapes of its parameters by group, which its state does not tell.

    A parameter that no batch has initialized yet has none. None for what is no optimizer.
    """
    if not isinstance(part, torch.optim.Optimizer):
        return None
    return [
        [None if is_lazy(x) else list(x.shape) for x in group["params"]]
        for group in part.param_groups
    ]


def restorer(part: Any) -> Callable[[Any], object] | None:
    """What puts a state into ``part``; None where it is no object that has one."""
    if isinstance(part, torch.Generator):
        return part.set_state
    return getattr(part, "load_state_dict", None)


def on_all_ranks(parts: Mapping[str, Any], checked: Callable[[], Made]) -> Made:
    """What ``checked`` returns; what it raises, all ranks of the stores among ``parts`` raise.

    Without it a rank that goes no further leaves the others waiting, because all ranks put back the
    state of a store together.
    """
    for part in parts.values():
        if isinstance(part, KVStore):
            checked = functools.partial(part.agreed, "load", checked)
    return checked()


def flatten(value: Any, path: str, tensors: dict[str, Tensor], depth: int = 0) -> Any:
    """Return ``value`` for JSON, and put copies of its tensors into ``tensors``, by their paths.

    Raises TypeError, which names the path, for what is no tensor, number, string, bool, None, list,
    tuple or dict, and for lists and dicts that have no end.

    >>> import torch
    >>> tensors = {}
    >>> flatten({"lr": 0.1, "step": torch.tensor(3)}, "optimizer", tensors)
    {'dict': [['lr', 0.1], ['step', {'tensor': 'optimizer.step'}]]}
    >>> list(tensors)
    ['optimizer.step']
    """
    if isinstance(value, Tensor):
        if words := _without_values(value):
            raise TypeError(
                f"{path}: found {words}, wanted a dense tensor with values, of a dtype that "
                "safetensors can write"
            )
        while path in tensors or path == "__metadata__":  # of keys 1 and "1"; of the file itself
            path += "'"
        # A copy, because files of tensors may hold no memory twice.
        tensors[path] = value.detach().to("cpu", copy=True).contiguous()
        return {"tensor": path}
    if isinstance(value, PLAIN):
        return value
    if depth > DEEPEST:
        raise TypeError(
            f"{path[:40]}...: found lists or dicts in each other, more than {DEEPEST} deep, wanted "
            "fewer; does one contain itself?"
        )
    for kind in MAPPINGS:
        if isinstance(value, MAPPINGS[kind]):
            others = [key for key in value if not isinstance(key, PLAIN)]
            if others:
                found = shown(others[0])
                raise TypeError(f"{path}: found the key {found}, wanted strings or numbers")
            items = value.items()
            return {
                kind: [[key, flatten(x, f"{path}.{key}", tensors, depth + 1)] for key, x in items]
            }
    for kind in SEQUENCES:
        if isinstance(value, SEQUENCES[kind]):
            items = enumerate(value)
            return {kind: [flatten(x, f"{path}.{i}", tensors, depth + 1) for i, x in items]}
    raise TypeError(
        f"{path}: found a {type(value).__name__}, wanted tensors, numbers, strings, bools, None, "
        "and lists, tuples and dicts of them; checkpoints hold nothing that would run code"
    )


def _without_values(tensor: Tensor) -> str | None:
    """What keeps a tensor out of a file; None if nothing does."""
    if is_lazy(tensor):
        return "a parameter that no batch has initialized yet"
    if tensor.is_meta:
        return "a tensor on meta"
    if tensor.is_nested:
        return "a nested tensor"
    if tensor.layout != torch.strided:
        return "a sparse tensor"
    return None if _storable(tensor.dtype) else f"a tensor of {tensor.dtype}"


@functools.cache
def _storable(dtype: torch.dtype) -> bool:
    """Whether safetensors can write this dtype; which ones depends on its version."""
    try:
        safetensors.torch.save({"x": torch.empty(0, dtype=dtype)})
    except Exception:
        return False
    return True


def unflatten(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """What `flatten` was given; raises KeyError or ValueError if ``value`` is not what it made."""
    if isinstance(value, PLAIN):
        return value
    [(kind, content)] = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind in MAPPINGS:
        return MAPPINGS[kind]({key: unflatten(x, tensors) for key, x in content})
    return SEQUENCES[kind](unflatten(x, tensors) for x in content)


def misfit(part: Any, found: Any, shapes: Any = None) -> str | None:
    """Why ``found``, a state, cannot be put into ``part``; None if it can be.

    ``shapes`` is what `shapes_of` said of the part that had the state.
    """
    if isinstance(part, KVStore):
        return part.misfit(found)
    own = state_of(part)
    if isinstance(own, Mapping) and not isinstance(found, Mapping):
        return f"found {type(found).__name__}, wanted a dict, as this one's state_dict() returns"
    if isinstance(part, torch.optim.Optimizer):
        if not _of_optimizer(found):
            return "found the state of something else, wanted that of an optimizer"
        words = _misfit_of_optimizer(own["param_groups"], found["param_groups"])
        return words or _misfit_of_shapes(shapes_of(part), shapes)
    if isinstance(part, torch.Generator):
        return _misfit_of_generator(part, own, found)
    if isinstance(own, Tensor) or isinstance(found, Tensor):
        return _misfit_of_tensor(own, found)
    if not isinstance(own, Mapping):
        return None
    tensors = {key: x for key, x in own.items() if isinstance(x, Tensor)}
    missing = [key for key in own if key not in found]
    unknown = [key for key in found if key not in own]
    if missing or unknown:
        lacks = f"found no {', '.join(map(repr, missing[:3]))}" if missing else ""
        extra = f"found {', '.join(map(repr, unknown[:3]))}" if unknown else ""
        return f"{' and '.join(filter(None, (lacks, extra)))}, wanted the names of this one"
    for key, tensor in tensors.items():
        if words := _misfit_of_tensor(tensor, found[key]):
            return f"{key}: {words}"
    return None


def _of_optimizer(found: Mapping[str, Any]) -> bool:
    groups = found.get("param_groups")
    return (
        isinstance(found.get("state"), Mapping)
        and isinstance(groups, list)
        and all(isinstance(x, Mapping) and isinstance(x.get("params"), list) for x in groups)
    )


def _misfit_of_optimizer(own: list[Any], found: list[Any]) -> str | None:
    wanted, counts = (
        {f"group {i}": len(group["params"]) for i, group in enumerate(x)} for x in (own, found)
    )
    if counts != wanted:
        return f"found parameters {counts}, wanted {wanted}"
    for mine, other in zip(own, found, strict=True):
        # Settings that are missing only are those of a later torch, which fills them in.
        missing, unknown = mine.keys() - other.keys(), other.keys() - mine.keys() - NOT_SETTINGS
        if missing and unknown:
            return (
                f"found the settings {', '.join(sorted(unknown))} of another optimizer, wanted "
                f"{', '.join(sorted(missing))}"
            )
    return None


def _misfit_of_shapes(own: Any, found: Any) -> str | None:
    """The tensors of an optimizer's state may have other shapes than its parameters, so these are
    compared. They are not known where no optimizer was saved, but a state alone."""
    for number, groups in enumerate(zip(own, found or [], strict=False)):
        for index, (mine, other) in enumerate(zip(*groups, strict=True)):
            if None not in (mine, other) and mine != other:
                return (
                    f"group {number}: found the state of a parameter {index} of shape "
                    f"{tuple(other)}, wanted {tuple(mine)}"
                )
    return None


def _misfit_of_generator(part: torch.Generator, own: Tensor, found: Any) -> str | None:
    if words := _misfit_of_tensor(own, found):
        return f"{words}, the state of a generator on {part.device}"
    try:
        torch.Generator(part.device).set_state(found)
    except RuntimeError as error:
        return f"found no state of a generator on {part.device} ({error}), wanted one"
    return None


def _misfit_of_tensor(own: Any, found: Any) -> str | None:
    def about(x: Any) -> str:
        return dense(x.dtype, x.shape) if isinstance(x, Tensor) else type(x).__name__

    return None if about(own) == about(found) else f"found {about(found)}, wanted {about(own)}"
