"""The module most tests here wrap, and two replicas of it."""

import pytest
import torch
from models import made

from fastreduce import DataParallel

sweep = pytest.mark.sweep("replicas one by one")


@pytest.fixture(params=["at once", pytest.param("one by one", marks=sweep)])
def way(request):
    """In which replicas run, where they may do both."""
    return request.param


@pytest.fixture(autouse=True)
def two_cores(way, one_thread, monkeypatch):
    """Also for small models; ``one_thread`` sets back the number of threads."""
    torch.set_num_threads(2)
    monkeypatch.setattr("fastreduce.parallel.at_once.LEAST_PARAMETERS", 0)
    if way == "one by one":
        monkeypatch.setattr("fastreduce.parallel.at_once._is_free", lambda: False)


@pytest.fixture
def net():
    return made("mlp")


@pytest.fixture
def model(net):
    return DataParallel(net, ["cpu"] * 2)
