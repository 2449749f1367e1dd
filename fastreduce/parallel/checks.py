"""Every rule about what `DataParallel` takes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, SupportsFloat

import torch
from torch import nn

from fastreduce.arguments import check_flags
from fastreduce.devices import usable_devices
from fastreduce.kinds import is_number, is_whole


def device_list(devices: Iterable[torch.device | str | int] | None) -> list[torch.device]:
    if devices is not None and (not isinstance(devices, Iterable) or isinstance(devices, str)):
        raise TypeError(
            f"DataParallel: found devices={devices!r}, wanted a list with one device per replica, "
            'such as ["cpu", "cpu"]'
        )
    named = usable_devices(
        None
        if devices is None
        else [f"cuda:{x}" if isinstance(x, int) else str(x) for x in devices]
    )
    if not named:
        raise ValueError("DataParallel: found no device, wanted one per replica")
    if len({device.type for device in named}) > 1:
        raise ValueError(
            f"DataParallel: found devices {', '.join(map(str, named))}; wanted all replicas on "
            "GPUs or all on the CPU"
        )
    return named


def check_keywords(unknown: Iterable[str]) -> None:
    """Those of torch's nn.DataParallel are what one types first."""
    theirs = {"device_ids": "devices", "dim": "batch_dim", "output_device": "devices[0]"}
    for name in unknown:
        ours = f", which is {theirs[name]} here" if name in theirs else ""
        raise TypeError(
            f"DataParallel: found the argument {name}{ours}; wanted devices, batch_dim, shares, "
            "reproducible, sync_batchnorm, overlap, at_once or record"
        )


def check_module(module: Any, parallel: type[nn.Module]) -> None:
    if not isinstance(module, nn.Module):
        raise TypeError(f"DataParallel: found {type(module).__name__}, wanted an nn.Module")
    if isinstance(module, parallel):
        raise ValueError("DataParallel: this module is wrapped already; use it as it is")
    kind = type(module).__name__
    if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise ValueError(f"DataParallel: found a {kind}; wanted the bare module: pass its .module")
    if any(vars(base).get("__slots__") for base in type(module).__mro__):
        raise ValueError(
            f"DataParallel: found a {kind}, whose class has __slots__; wanted attributes that are "
            "all in the module's __dict__, which the wrapped module shares: leave __slots__ out"
        )
    ours = [x for x in vars(parallel) if not x.startswith("__") and x != "forward"]
    for name in sorted(set(ours).intersection(dir(module))):
        raise ValueError(
            f"DataParallel: found a {kind} with an attribute {name}, which the wrapped module has "
            f"of its own; wanted another name: rename it, or wrap the part of the {kind} that is "
            "the network (self.net = DataParallel(net)), or a module that holds all of it, such as "
            "nn.Sequential(module)"
        )
    if isinstance(module, torch.jit.ScriptModule):
        raise ValueError(
            f"DataParallel: found a {kind}, which cannot be copied for each replica; "
            "wanted the nn.Module that it was compiled from"
        )


def check_not_traced() -> None:
    if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        raise RuntimeError(
            "DataParallel: torch.jit.trace cannot see how a batch is cut, which the example's size "
            "decides; trace the bare module: torch.jit.trace(model.module, example)"
        )


def refuse_to_be_scripted() -> NoReturn:
    raise RuntimeError(
        "DataParallel: torch.jit.script cannot compile what deals a batch to replicas; wanted the "
        "bare module: torch.jit.script(model.module)"
    )


def check_attribute(name: str) -> None:
    if name == "__class__":
        raise RuntimeError(
            "DataParallel: found another class for the wrapped module, as a parametrization sets "
            "it, which the replicas would not have; parametrize the module before it is wrapped"
        )


@dataclass(frozen=True)
class Settings:
    """What `DataParallel` is told beside the module, its devices and the record."""

    batch_dim: int
    shares: Sequence[float] | str | None
    reproducible: int | None
    sync_batchnorm: bool
    overlap: bool
    at_once: bool

    def check(self, k: int) -> None:
        """Raise TypeError or ValueError where they make no sense for ``k`` replicas."""
        if not (is_whole(self.batch_dim) and self.batch_dim >= 0):
            raise ValueError(
                f"DataParallel: found batch_dim={self.batch_dim!r}, wanted a whole number, 0 or "
                "more"
            )
        check_flags(
            "DataParallel",
            sync_batchnorm=self.sync_batchnorm,
            overlap=self.overlap,
            at_once=self.at_once,
        )
        shards = self.reproducible
        if shards is not None and self.shares is not None:
            raise ValueError(
                "DataParallel: found reproducible and shares; wanted one of them, because "
                "micro-shards are of one size whoever computes them"
            )
        if shards is not None and not (is_whole(shards) and shards >= max(k, 1)):
            raise ValueError(
                f"DataParallel: found reproducible={shards!r} micro-shards for {k} replicas, "
                "wanted a whole number, at least one per replica"
            )
        _check_shares(self.shares, k)


def _check_shares(shares: Any, k: int) -> None:
    # An array is compared with a string element by element.
    if shares is None or (isinstance(shares, str) and shares == "measured"):
        return
    if isinstance(shares, str) or not isinstance(shares, Sequence):
        raise ValueError(
            f'DataParallel: found shares={shares!r}, wanted "measured" or a list of one number '
            "per replica"
        )
    if len(shares) != k:
        raise ValueError(
            f"DataParallel: found {len(shares)} shares for {k} replicas, wanted as many"
        )
    for replica, share in enumerate(shares):
        if not (is_number(share) and _is_positive(share)):
            raise ValueError(
                f"DataParallel: found share {share!r} of replica {replica}, wanted a number above 0"
            )


def _is_positive(share: SupportsFloat) -> bool:
    """As a float, which some positive numbers are too small or too large for."""
    try:
        return 0 < float(share) < math.inf
    except OverflowError:
        return False
