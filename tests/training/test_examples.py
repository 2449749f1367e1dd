"""The examples in the docstrings run."""

import doctest
import importlib

import pytest

MODULES = [
    "cli",
    "devices",
    "training.data",
    "training.lenet",
    "training.parallel",
    "training.stopwatch",
    "training.trainer",
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_of(name):
    result = doctest.testmod(importlib.import_module(f"fastreduce.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
