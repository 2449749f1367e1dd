"""Tests marked ``gpu`` run where there is one, and say elsewhere what is missing."""

from collections.abc import Iterator

import pytest
from places import ON_GPU, Place, missing, place_named


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        reason = missing("tiles")
        if reason:
            pytest.skip(reason)


@pytest.fixture(params=["cpu", *(pytest.param(name, marks=pytest.mark.gpu) for name in ON_GPU)])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    reason = missing(request.param) if request.param != "cpu" else None
    if reason:
        pytest.skip(reason)
    with place_named(request.param) as chosen:
        yield chosen
