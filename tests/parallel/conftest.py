"""The module most tests here wrap, and two replicas of it."""

import pytest
import torch
from models import made

from fastreduce import DataParallel

sweep = pytest.mark.sweep("replicas at the same time")


@pytest.fixture(autouse=True, params=["", pytest.param("at once", marks=sweep)])
def at_once(request, one_thread, monkeypatch):
    """Replicas run at the same time wherever they may, from the second pass on or the first.

    ``one_thread`` sets back the number of threads.
    """
    torch.set_num_threads(2)
    monkeypatch.setattr("fastreduce.parallel.at_once.LEAST_ELEMENTS", 0)
    if request.param:
        known = {True: False, False: False}
        monkeypatch.setattr("fastreduce.parallel.at_once.KNOWN_TO_DRAW", known)


@pytest.fixture
def net():
    return made("mlp")


@pytest.fixture
def model(net):
    return DataParallel(net, ["cpu"] * 2)
