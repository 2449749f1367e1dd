"""A model's parameters as tensors without memory: of a known model, of a file, or of a module."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from fastreduce.files import readable
from fastreduce.kinds import is_whole
from fastreduce.names import listed
from fastreduce.plan import models

Source: TypeAlias = "str | PathLike[str] | nn.Module | Iterable[Tensor]"

DTYPES = {
    **{"fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16},
    **{"bf16": torch.bfloat16, "float64": torch.float64, "float32": torch.float32},
    **{"float16": torch.float16, "bfloat16": torch.bfloat16},
}

# What a BatchNorm keeps beside its parameters. It has no gradients.
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")

NESTED = ("state_dict", "model")  # where training scripts put a model's entries in a file


def parameters(source: Source, dtype: torch.dtype | str | None = None) -> list[Tensor]:
    """The parameters in the order of the model or file, on the device "meta".

    Args:
        source: a name that `fastreduce.plan.models.names` lists; a file: ``.safetensors`` (only its
            header is read), ``.json`` (a list of shapes, or the index of several ``.safetensors``
            files beside it), or what `torch.save` made of a ``state_dict``; a module; or tensors.
        dtype: of the gradients, such as "bf16" or `torch.bfloat16`. Default: each parameter's own;
            float32 for a list of shapes.

    Of a module, and of parameters, those that are frozen are left out: they have no gradients. Of a
    file, BatchNorm's statistics and whole numbers are left out, and what shares memory is counted
    once.

    Raises:
        OSError: the file cannot be read.
        TypeError: the source is none of these.
        ValueError: an unknown model or dtype, a file of another kind, or nothing in it.

    >>> found = parameters("gpt2", "bf16")
    >>> found[0].shape, sum(x.nbytes for x in found)
    (torch.Size([50257, 768]), 248879616)
    """
    wanted = dtype_of(dtype)
    found = [torch.empty_like(x, device="meta", dtype=wanted) for x in _tensors(source)]
    if not sum(x.nbytes for x in found):
        raise ValueError(
            f"{_title(source)}: found no parameters to train, want at least one with elements"
        )
    return found


def dtype_of(found: torch.dtype | str | None) -> torch.dtype | None:
    """
    >>> dtype_of("bf16"), dtype_of(torch.float16)
    (torch.bfloat16, torch.float16)
    """
    if isinstance(found, str) and found in DTYPES:
        return DTYPES[found]
    if found is None or (isinstance(found, torch.dtype) and found.is_floating_point):
        return found
    raise ValueError(f"unknown dtype {found!r}; known are {listed(DTYPES, found)}")


def _title(source: Source) -> str:
    return str(source) if isinstance(source, str | PathLike) else type(source).__name__


def _tensors(source: Source) -> list[Tensor]:
    if isinstance(source, nn.Module):
        source = source.parameters()
    if isinstance(source, str | PathLike):
        return list(_named(source))
    tensors = list(source) if isinstance(source, Iterable) else [source]
    if not all(isinstance(x, Tensor) for x in tensors):
        raise TypeError(
            f"found {type(source).__name__}; want a model's name, a file, a module, or its "
            "parameters"
        )
    return [x for x in tensors if x.requires_grad or not isinstance(x, nn.Parameter)]


def _named(source: str | PathLike[str]) -> Iterator[Tensor]:
    if source in models.names():
        known = models.model(str(source))
        return (torch.empty(x, dtype=known.dtype, device="meta") for x in known.shapes)
    path = Path(source)
    if str(source) and path.is_dir():
        raise ValueError(f"{str(source)!r} is a folder, want one file with a model's parameters")
    if not path.is_file():
        raise ValueError(
            f"unknown model {str(source)!r}: no such file, and known are "
            f"{listed(models.names(), source)}"
        )
    if path.suffix.lower() == ".safetensors":
        return _of_header(path)
    return _of_json(path) if path.suffix.lower() == ".json" else _of_state_dict(path)


def _of_header(path: Path) -> Iterator[Tensor]:
    from safetensors import SafetensorError, safe_open

    try:
        with readable(path) as name_of_file, safe_open(name_of_file, "pt") as file:
            for name in file.offset_keys():
                part = file.get_slice(name)
                kind = part.get_dtype()
                if kind.startswith(("I", "U", "BOOL")) or name.endswith(STATISTICS):
                    continue
                if kind not in _SAFETENSORS:
                    raise ValueError(
                        f"{path}: {name} has type {kind}, which no gradient has; want "
                        f"{', '.join(_SAFETENSORS)}: the model before it was made smaller"
                    )
                yield torch.empty(part.get_shape(), dtype=_SAFETENSORS[kind], device="meta")
    except SafetensorError as error:
        raise ValueError(f"{path} is no safetensors file: {error}") from None


_SAFETENSORS = {
    **{"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16},
    **{"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2},
}


def _of_json(path: Path) -> Iterator[Tensor]:
    want = "want a list of shapes, such as [[768, 768], [768]], or an index of .safetensors files"
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no JSON ({error}), {want}") from None
    if isinstance(found, dict) and isinstance(found.get("weight_map"), dict):
        files = dict.fromkeys(map(str, found["weight_map"].values()))
        return (x for file in files for x in _of_header(path.parent / file))
    if not isinstance(found, list):
        raise ValueError(f"{path}: found {type(found).__name__}, {want}")
    return _of_shapes(path, found, want)


def _of_shapes(path: Path, found: list[Any], want: str) -> Iterator[Tensor]:
    for number, shape in enumerate(found):
        dims: list[Any] = shape if isinstance(shape, list) else [None]
        if not all(is_whole(x) and x >= 0 for x in dims):
            raise ValueError(f"{path}: shape {number} is {str(shape)[:60]}, {want}")
        try:
            yield torch.empty(dims, device="meta")
        except (RuntimeError, OverflowError, TypeError):  # more elements than 63 bits count
            raise ValueError(f"{path}: shape {number} is too large: {str(shape)[:60]}") from None


def _of_state_dict(path: Path) -> Iterator[Tensor]:
    want = (
        "want a .safetensors file, a .json list of shapes, or a state_dict as torch.save writes it "
        "since torch 1.6"
    )
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} holds no model, {want}")
    try:
        # Tensors stay in the file; nothing but tensors and containers is unpickled.
        with readable(path) as name_of_file:
            found = torch.load(name_of_file, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError, ValueError):
        raise ValueError(f"{path} holds more than tensors by name, or is damaged, {want}") from None
    entries = _entries(found)
    if entries is None:
        raise ValueError(f"{path}: found {type(found).__name__} without tensors by name, {want}")
    once: dict[Any, Tensor] = {}
    for name, tensor in entries.items():
        if tensor.layout != torch.strided:
            raise ValueError(f"{path}: {name} is {tensor.layout}, want dense tensors; {want}")
        if tensor.is_floating_point() and not str(name).endswith(STATISTICS):
            # Without memory nothing can be shared.
            where = name if tensor.is_meta else tensor.data_ptr()
            once.setdefault((where, tensor.shape, tensor.dtype), tensor)
    return iter(once.values())


def _entries(found: Any) -> dict[Any, Tensor] | None:
    """The tensors by name, of the file or of the model in it."""
    if not isinstance(found, Mapping):
        return None
    tensors = {name: x for name, x in found.items() if isinstance(x, Tensor)}
    nested = [_entries(found[name]) for name in NESTED if name in found]
    return next(filter(None, [*nested, tensors]), None)
