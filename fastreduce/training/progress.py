"""How far a training run has come."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Epoch:
    """One epoch: the mean loss while training, the accuracy after it, and the seconds of each part.

    ``epoch_s`` is the time of the training steps, including ``allreduce_s`` (None where it is not
    measured) but neither ``evaluation_s`` nor that of writing checkpoints. ``skipped`` counts the
    steps left out for their losses.
    """

    epoch: int
    loss: float
    test_accuracy: float
    epoch_s: float
    allreduce_s: float | None
    evaluation_s: float
    skipped: int = 0

    @property
    def allreduce_share(self) -> float | None:
        return None if self.allreduce_s is None else self.allreduce_s / self.epoch_s


@dataclass
class Progress:
    """How far a run has come: what a checkpoint keeps beside the learner."""

    epochs: list[Epoch] = field(default_factory=list)  # those that ended
    step: int = 0  # steps of this epoch that were taken
    losses: list[float] = field(default_factory=list)  # of these, summed over a step's examples
    images: int = 0  # in these
    skipped: int = 0
    epoch_s: float = 0.0
    allreduce_s: float | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Progress:
        return cls(**{**values, "epochs": [Epoch(**epoch) for epoch in values["epochs"]]})
