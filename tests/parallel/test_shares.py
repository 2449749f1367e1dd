"""`shares`: what is given, and "measured", by which batches are cut by the replicas' speed."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from fastreduce import DataParallel
from fastreduce.parallel import shares
from fastreduce.parallel.shares import MEASURED_BATCHES, WARM_UP_BATCHES, MeasuredShares

BATCHES = WARM_UP_BATCHES + MEASURED_BATCHES
CPU = torch.device("cpu")


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on only when `advance` is called."""
    now = [0.0]
    monkeypatch.setattr(shares.time, "perf_counter", lambda: now[0])

    def advance(seconds):
        now[0] += seconds

    return advance


@pytest.mark.parametrize(
    ("seconds_per_row", "wanted"),
    [([1, 1], [1, 1]), ([1, 2], [2, 1]), ([3, 1, 2], [1, 3, 1.5]), ([1, 1.04], [1, 1])],
)
def test_shares_are_speeds_relative_to_the_slowest(clock, seconds_per_row, wanted):
    measured = MeasuredShares([CPU] * len(wanted))
    sizes = [4] * len(wanted)
    for batch in range(BATCHES):
        assert measured.shares == [1] * len(wanted)
        for replica, seconds in enumerate(seconds_per_row):
            with measured.lap(replica):
                clock(seconds * 4 if batch >= WARM_UP_BATCHES else 1000 * replica)
        measured.end(range(len(wanted)), sizes)
    assert measured.shares == wanted


def test_an_idle_replica_leaves_the_shares_equal(clock):
    measured = MeasuredShares([CPU] * 2)
    for _ in range(BATCHES):
        with measured.lap(0):
            clock(1)
        measured.end([0], [1])
    assert measured.shares == [1, 1]


def test_shares_of_numpy_and_a_list_that_changes_later():
    given = [np.float32(2), np.int64(1)]
    model = DataParallel(nn.Linear(2, 2), ["cpu"] * 2, shares=given)
    given.append(7)
    assert model.shares == copy.deepcopy(model).shares == [2, 1]
    assert all(type(x) is float for x in model.shares)


def test_numbers_of_numpy_as_other_settings():
    numbers = {"batch_dim": np.int64(1), "reproducible": np.int64(4)}
    model = DataParallel(nn.Linear(2, 2), ["cpu"] * 2, **numbers)
    assert model(torch.randn(3, 8, 2)).shape == (3, 8, 2)


def test_a_model_deals_by_what_it_measured(clock):
    seen = []
    owners = []

    class Net(nn.Linear):
        def forward(self, x):
            first = self is owners[0]
            clock(len(x) * (1 if first else 2))
            seen.append(len(x))
            return super().forward(x)

    net = Net(2, 1)
    owners.append(net)
    model = DataParallel(net, ["cpu"] * 2, shares="measured")
    for _ in range(BATCHES + 1):
        model(torch.ones(6, 2))
    assert seen == [3, 3] * BATCHES + [4, 2] and model.shares == [2, 1]
