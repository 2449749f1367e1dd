"""What ``fastreduce train`` has left in the folder of a run."""

import json
from pathlib import Path

import torch

from fastreduce.training.checkpoint import read


def metrics(out: Path) -> list[dict]:
    """One line about the run, then one for each epoch."""
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def reached(out: Path) -> list[tuple[float, float]]:
    """Loss and test accuracy of each epoch."""
    return [(x["loss"], x["test_accuracy"]) for x in metrics(out)[1:]]


def parameters(out: Path) -> list[torch.Tensor]:
    return list(read(out / "checkpoints").state["model"].values())
