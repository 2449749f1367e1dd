"""A batch with fewer examples than replicas: what those that are left out do not miss."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fastreduce import DataParallel


class CountsInAll(nn.Linear):
    """What it returns depends on how often it was called."""

    def __init__(self):
        super().__init__(3, 3)
        self.number, self.tensor, self.listed = 0, torch.zeros(()), [0]
        self.state = SimpleNamespace(scale=0)
        self.in_place = torch.zeros(())

    def forward(self, x):
        self.number += 1
        self.tensor = self.tensor + 1
        self.in_place += 1
        self.listed[0] += 1
        self.state.scale += 1
        counts = self.number + self.tensor + self.in_place + self.listed[0] + self.state.scale
        return super().forward(x) * counts


@pytest.mark.parametrize("shares", [None, [1, 9, 9]], ids=["last idle", "first almost"])
def test_a_replica_that_was_idle_takes_over_what_forward_has_counted(shares):
    model = DataParallel(CountsInAll(), ["cpu"] * 3, shares=shares)
    net = copy.deepcopy(model.module)
    for rows in (7, 1, 2, 7):
        X = torch.randn(rows, 3)
        torch.testing.assert_close(model(X), net(X))
