"""The settings of a run of ``fastreduce train``, from what was given and what suits it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from fastreduce.training import Config

SETTINGS = (
    *("model", "batch_size", "lr", "lr_schedule", "momentum", "weight_decay", "steps"),
    *("init", "seed", "allreduce", "precision", "compile", "graph", "overlap"),
    *("reproducible", "skip_nonfinite", "kvstore", "staleness", "backend"),
)
# What a run that goes on may change: the two answers to a loss that was not finite. The checkpoint
# depends on most of the others, and init and seed have no effect any more.
CHANGEABLE = ("lr", "skip_nonfinite")


def given(args: argparse.Namespace) -> dict[str, Any]:
    """The settings of a run that have been asked for."""
    return {x: getattr(args, x) for x in SETTINGS if getattr(args, x) is not None}


def new_config(args: argparse.Namespace, is_sample: bool) -> Config:
    """The settings that were given, else those that suit the model and the data.

    Raises ValueError.
    """
    from fastreduce.devices import default_replicas
    from fastreduce.training import config
    from fastreduce.training.processes import started

    here, settings = started(), given(args)
    if here.size > 1 and not settings.keys() & {"kvstore", "allreduce"}:
        settings.setdefault("backend", "fastreduce")
    suited = config.SAMPLE_SETTINGS if is_sample else config.SETTINGS
    defaults = suited.get(settings.get("model", "lenet"), {})
    settings = {**defaults, **_epochs(args), **settings}
    batch_size = settings.get("batch_size", config.Config.batch_size)
    backend = settings.get("backend")
    devices = here.devices(args.devices, backend)
    default = default_replicas(devices) if here.size == 1 and not backend else len(devices)
    found = config.Config(_dealt(devices, args, default, batch_size), **settings)
    if args.scale_batch:
        replicas = len(found.devices) * here.size
        found = found.changed(batch_size=found.batch_size * replicas)
    here.check(found)
    return found


def resumed_config(args: argparse.Namespace, before: Any) -> Config:
    """The settings of a run that goes on. Raises ValueError if others were given."""
    from fastreduce.devices import usable_devices
    from fastreduce.training import Config
    from fastreduce.training.processes import started

    others = ("scale_batch", "out", "compare", "lr_sweep")
    fixed = [name for name in SETTINGS if name not in CHANGEABLE]
    names = [name for name in (*fixed, *others) if getattr(args, name) is not None]
    if names:
        flags = ", ".join("--" + name.replace("_", "-") for name in names)
        raise ValueError(
            f"{flags}: found together with --resume {args.resume}, but a run that goes on keeps "
            "its settings, all but those that --help lists for --resume; leave them out, or start "
            "another run"
        )
    if not isinstance(before, Mapping):
        raise ValueError(
            f"--resume {args.resume}: found checkpoints without settings, wanted those of a run of "
            "fastreduce train"
        )
    config = Config.from_json(before).changed(**_epochs(args), **given(args))
    here = started()
    here.check(config)
    if args.devices or args.replicas is not None or config.backend:
        # What is not given stays; but processes of a backend are dealt the devices of this machine.
        kept = None if config.backend else list(map(str, dict.fromkeys(config.devices)))
        devices = here.devices(args.devices or kept, config.backend)
        default = max(len(devices), len(config.devices))
        return config.changed(devices=_dealt(devices, args, default, config.batch_size))
    usable_devices([str(device) for device in config.devices])
    return config


def _epochs(args: argparse.Namespace) -> dict[str, Any]:
    return {} if args.epochs is None else {"epochs": args.epochs}


def _dealt(
    devices: Sequence[torch.device], args: argparse.Namespace, default: int, batch_size: int
) -> tuple[torch.device, ...]:
    """The device of each of ``--replicas``, or of as many as the default says."""
    from fastreduce.devices import deal_devices
    from fastreduce.training.config import check_replicas_fit

    if args.replicas is not None:
        check_replicas_fit(args.replicas, batch_size)  # before a list of so many is made
    return deal_devices(devices, default if args.replicas is None else args.replicas)
