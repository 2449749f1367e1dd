"""The module most tests here wrap, and two replicas of it."""

import pytest
from models import made

from fastreduce import DataParallel


@pytest.fixture
def net():
    return made("mlp")


@pytest.fixture
def model(net):
    return DataParallel(net, ["cpu"] * 2)
