"""The module most tests here wrap, and two replicas of it."""

import pytest
import torch
from models import made

from fastreduce import DataParallel


@pytest.fixture(autouse=True)
def two_threads(one_thread):
    """With one, replicas would never run at the same time; ``one_thread`` sets back what was."""
    torch.set_num_threads(2)


@pytest.fixture
def net():
    return made("mlp")


@pytest.fixture
def model(net):
    return DataParallel(net, ["cpu"] * 2)
