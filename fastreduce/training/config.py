"""The settings of a training run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import torch

import fastreduce
from fastreduce.arguments import check_flags
from fastreduce.kinds import is_number, is_whole
from fastreduce.kvstore.arguments import check_store
from fastreduce.names import listed, shown

from .lenet import INITS
from .models import MODELS

LARGEST_COUNT = 2**63 - 1  # that torch takes, of rows and as a seed
LARGEST_LR = torch.finfo(torch.float32).max  # the parameters' type
PRECISIONS = ("fp32", "bf16")
LR_SCHEDULES = ("constant", "linear")
BACKENDS = ("fastreduce", "gloo")

# What suits a model on the whole set: batch and learning rate of the book's sections on LeNet, on
# ResNet-18 and on multilayer perceptrons.
SETTINGS: dict[str, dict[str, Any]] = {
    "lenet": {"batch_size": 256, "lr": 0.2, "epochs": 10},
    "resnet18": {"batch_size": 256, "lr": 0.1, "epochs": 10},
    "mlp": {"batch_size": 256, "lr": 0.1, "epochs": 10},
}
# On the shipped sample, which has only 40 batches of the whole set's size. LeNet: measured with
# seeds 0 to 6, two replicas on one CPU core, 2026-11-21: test accuracy 0.805 to 0.848, 20 to 30 s
# of CPU time.
SAMPLE_SETTINGS: dict[str, dict[str, Any]] = {
    "lenet": {"batch_size": 16, "lr": 0.08, "epochs": 3},
    "resnet18": {"batch_size": 32, "lr": 0.05, "epochs": 1},
    "mlp": {"batch_size": 16, "lr": 0.1, "epochs": 3},
}

# By the annotation of a setting, as the text that it is here: what is taken, and what it becomes.
NUMBERS: dict[str, tuple[Callable[[Any], bool], Callable[[Any], object], str]] = {
    "int": (is_whole, int, "a whole number"),
    "float": (is_number, float, "a number"),
}


def check_replicas_fit(replicas: int, batch_size: int) -> None:
    """Raise ValueError for more replicas than a batch has examples."""
    if replicas > batch_size:
        raise ValueError(
            f"replicas: found {replicas} for a batch of {batch_size} examples, wanted at least one "
            "example per replica"
        )


@dataclass(frozen=True)
class Config:
    """The settings of a training run. Two runs of equal configs on one machine give the same bits.

    ``devices`` names one device per replica, the same one several times if need be.
    ``batch_size`` counts the examples of all replicas together. ``steps`` bounds the steps of an
    epoch. ``lr_schedule`` is as in `lr_of_epoch`, ``init`` as in `initial_params`. ``model`` is one
    of `models.MODELS`, trained by `fastreduce.DataParallel` and `torch.optim.SGD` with ``momentum``
    and ``weight_decay``; ``precision`` is "fp32" or "bf16" (autocast), ``compile`` says whether
    `torch.compile` compiles it, ``graph`` whether a whole step is one CUDA graph
    (`fastreduce.DataParallel.graphed`), ``overlap`` and ``reproducible`` are DataParallel's, and
    ``skip_nonfinite`` leaves a step out whose loss is not finite, where the run would end.

    ``kvstore`` is the kind of a `fastreduce.KVStore` that keeps the parameters and updates them;
    its ``staleness``, too. Each process of a "dist" kind has ``devices`` of its own, and takes an
    equal part of every batch.

    ``backend``, "fastreduce" or "gloo", is that of a torch.distributed group, each of whose
    processes has one replica and takes its part of every batch.

    With ``allreduce``, "auto", "loop" or the name of an algorithm, the book's own functions train
    LeNet instead (`train_batch`), and this sums their gradients.

    Raises ValueError for a setting that makes no sense.

    >>> Config(devices=(torch.device("cpu"),) * 2, model="mlp").batch_size
    256
    """

    devices: tuple[torch.device, ...]
    batch_size: int = 256
    lr: float = 0.2
    epochs: int = 10
    model: str = "lenet"
    allreduce: str | None = None
    seed: int = 0
    steps: int | None = None
    init: str = "kaiming"
    precision: str = "fp32"
    compile: bool = False
    graph: bool = False
    overlap: bool = True
    reproducible: int | None = None
    skip_nonfinite: bool = False
    kvstore: str | None = None
    staleness: int | None = None
    backend: str | None = None
    lr_schedule: str = "constant"
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        self._check_kinds()
        self._check_numbers()
        self._check_replicas()
        self._check_graph()
        self._check_names()
        self._check_store()
        self._check_backend()
        self._check_what_the_book_has_not()

    def _check_kinds(self) -> None:
        flags = [setting.name for setting in fields(self) if setting.type == "bool"]
        check_flags("Config", **{name: getattr(self, name) for name in flags})
        devices = self.devices
        if not isinstance(devices, tuple) or not all(isinstance(x, torch.device) for x in devices):
            raise ValueError(f"devices: found {devices!r}, wanted a tuple of torch.device")
        for setting in fields(self):
            kind, _, none = str(setting.type).partition(" | ")
            found = getattr(self, setting.name)
            if kind not in NUMBERS or (none and found is None):
                continue
            is_taken, converted, words = NUMBERS[kind]
            if not is_taken(found):
                name = setting.name.replace("_", "-")
                raise ValueError(f"{name}: found {found!r}, wanted {words}")
            # NumPy's, for example, cannot be written as JSON. What overflows is above all bounds.
            with contextlib.suppress(OverflowError):
                object.__setattr__(self, setting.name, converted(found))

    def _check_numbers(self) -> None:
        counts = {
            "replicas": len(self.devices),
            "batch size": self.batch_size,
            "epochs": self.epochs,
            "steps": 1 if self.steps is None else self.steps,
            "reproducible": 1 if self.reproducible is None else self.reproducible,
        }
        for name, count in counts.items():
            if count < 1:
                raise ValueError(f"{name}: found {count}, wanted at least 1")
            if count > LARGEST_COUNT:
                raise ValueError(f"{name}: found {count}, wanted at most 2**63 - 1")
        if not 0 <= self.seed <= LARGEST_COUNT:
            raise ValueError(f"seed: found {self.seed}, wanted 0 to 2**63 - 1")
        if not 0 < self.lr <= LARGEST_LR:
            raise ValueError(
                f"lr: found {self.lr}, wanted a number above 0, and at most {LARGEST_LR:.1e}"
            )
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum: found {self.momentum}, wanted at least 0 and below 1")
        if not 0 <= self.weight_decay <= LARGEST_LR:
            raise ValueError(
                f"weight-decay: found {self.weight_decay}, wanted a number from 0 to "
                f"{LARGEST_LR:.1e}"
            )

    def _check_replicas(self) -> None:
        check_replicas_fit(len(self.devices), self.batch_size)
        if (self.reproducible or 1) > self.batch_size:
            raise ValueError(
                f"reproducible: found {self.reproducible} micro-shards for a batch of "
                f"{self.batch_size} examples, wanted at least one example per micro-shard"
            )
        if len(self.devices) > (self.reproducible or len(self.devices)):
            raise ValueError(
                f"reproducible: found {self.reproducible} micro-shards for {len(self.devices)} "
                "replicas, wanted at least one per replica"
            )

    def _check_graph(self) -> None:
        if self.graph and any(device.type != "cuda" for device in self.devices):
            found = ", ".join(map(str, self.devices))
            raise ValueError(f"graph: found devices {found}, wanted GPUs for a CUDA graph")
        if self.graph and self.skip_nonfinite:
            raise ValueError(
                "skip-nonfinite: found with graph, which has updated the parameters before anyone "
                "can look at the loss; leave one of the two out"
            )

    def _check_names(self) -> None:
        names: list[tuple[str, Any, tuple[str, ...]]] = [
            ("model", self.model, tuple(MODELS)),
            ("init", self.init, tuple(INITS)),
            ("precision", self.precision, PRECISIONS),
            ("lr-schedule", self.lr_schedule, LR_SCHEDULES),
        ]
        if self.allreduce is not None:
            algorithms = ("auto", "loop", *fastreduce.algorithms.names())
            names.append(("allreduce", self.allreduce, algorithms))
        if self.backend is not None:
            names.append(("backend", self.backend, BACKENDS))
        for name, found, known in names:
            if found not in known:
                raise ValueError(f"{name}: found {found!r}, wanted one of {listed(known, found)}")

    def lr_of_epoch(self, epoch: int) -> float:
        """The rate of an epoch, the first of which is 0.

        "linear" falls in equal steps from ``lr`` in the first epoch to ``lr / epochs`` in the last.

        >>> config = Config(devices=(torch.device("cpu"),), lr=0.4, lr_schedule="linear", epochs=4)
        >>> [round(config.lr_of_epoch(epoch), 1) for epoch in range(4)]
        [0.4, 0.3, 0.2, 0.1]
        """
        return self.lr * (1 - epoch / self.epochs) if self.lr_schedule == "linear" else self.lr

    def _check_store(self) -> None:
        if self.kvstore is not None:
            self._refuse(("lr_schedule",), f"kvstore {self.kvstore!r}, which updates at one rate")
            why = f"kvstore {self.kvstore!r}, which updates by SGD without either"
            self._refuse(("momentum", "weight_decay"), why)
            check_store(self.kvstore, "sum", self.staleness)
            for name in ("skip_nonfinite", "graph"):
                if getattr(self, name):
                    raise ValueError(
                        f"{name.replace('_', '-')}: found with kvstore {self.kvstore!r}, whose "
                        "steps are not this process's alone; leave one of the two out"
                    )
        elif self.staleness is not None:
            raise ValueError(
                f"staleness: found {self.staleness} without a kvstore, wanted kvstore dist_async"
            )

    def _check_backend(self) -> None:
        if self.backend is None:
            return
        if len(self.devices) > 1:
            raise ValueError(
                f"replicas: found {len(self.devices)} with backend {self.backend!r}, whose "
                "processes have one replica each; start more processes instead"
            )
        self._refuse(
            ("graph", "overlap", "reproducible", "kvstore"),
            f"backend {self.backend!r}, which trains by DistributedDataParallel",
        )

    def _check_what_the_book_has_not(self) -> None:
        if self.allreduce is not None:
            self._refuse(
                (
                    *("model", "lr_schedule", "momentum", "weight_decay", "precision", "compile"),
                    *("graph", "overlap", "reproducible", "skip_nonfinite", "kvstore", "backend"),
                ),
                f"allreduce {self.allreduce!r}, which the book's functions use, and they train "
                "LeNet as the book does",
            )

    def _refuse(self, names: tuple[str, ...], why: str) -> None:
        for name in names:
            found, wanted = getattr(self, name), type(self).__dataclass_fields__[name].default
            if found != wanted:
                raise ValueError(
                    f"{name.replace('_', '-')}: found {found!r} with {why}; leave one of the two "
                    "out"
                )

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "devices": [str(device) for device in self.devices]}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Config:
        """The config of `to_json`. Raises ValueError if ``values`` is none."""
        if unknown := values.keys() - cls.__dataclass_fields__.keys():
            raise ValueError(
                f"config: found the settings {', '.join(sorted(unknown))}, which this fastreduce "
                "does not have; use the one that wrote them"
            )
        found = values.get("devices")
        try:
            devices = tuple(map(torch.device, found or ()))
        except (TypeError, RuntimeError):
            devices = ()
        if not devices:
            raise ValueError(
                f"config: found devices {shown(found)}, wanted a list of names such as "
                "['cpu', 'cpu']; use what Config.to_json returns"
            )
        return cls(**{**values, "devices": devices})

    def changed(self, **changes: Any) -> Config:
        return replace(self, **changes)
