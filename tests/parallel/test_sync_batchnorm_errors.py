"""With `sync_batchnorm=True` shards wait for each other: an error in one ends all of them."""

import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from fastreduce import DataParallel


class Uneven(nn.Module):
    """A shard with a negative first feature leaves a BatchNorm out."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)

    def forward(self, x):
        return self.norm(self.linear(x)) if x[0, 0] > 0 else self.linear(x)


class Raising(nn.Module):
    def __init__(self, after: bool) -> None:
        super().__init__()
        self.norm, self.after = nn.BatchNorm1d(3), after

    def forward(self, x):
        if not self.after and x[0, 0] < 0:
            raise KeyError("a shard's own error")
        x = self.norm(x)
        if self.after and x[0, 0] < 0:
            raise KeyError("a shard's own error")
        return x


class Checkpointed(nn.Module):
    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.norm, self.use_reentrant = nn.BatchNorm1d(3), use_reentrant

    def forward(self, x):
        x = x.detach().requires_grad_()
        return checkpoint(self.norm, x, use_reentrant=self.use_reentrant)


ERRORS = {
    "shards take other ways": (Uneven, ValueError, "shard 1 is at the end of forward, but shard 0"),
    "an error before": (lambda: Raising(False), KeyError, "a shard's own error"),
    "an error after": (lambda: Raising(True), KeyError, "a shard's own error"),
    "checkpoint": (lambda: Checkpointed(False), ValueError, "inside torch.utils.checkpoint"),
    "reentrant": (lambda: Checkpointed(True), ValueError, "inside torch.utils.checkpoint"),
    "one value": (lambda: nn.BatchNorm1d(3), ValueError, "1 value per channel in the whole batch"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_end_all_shards(case, way):
    make, kind, words = ERRORS[case]
    model = DataParallel(make(), ["cpu"] * 2, sync_batchnorm=True)
    X = torch.tensor([[1.0, 2, 3], [-1, -2, -4]])[: 1 if case == "one value" else 2]
    before = set(threading.enumerate())
    with pytest.raises(kind, match=words):
        model(X)
    kept = 2 if way == "at once" and len(X) > 1 else 0  # for the passes that follow
    assert len(set(threading.enumerate()) - before) == kept
    assert all(parameter.grad is None for parameter in model.parameters())
