"""Tests marked ``gpu`` run where there is one, and say elsewhere what is missing."""

from collections.abc import Iterator

import pytest
from places import ON_GPU, Place, missing, place_named


@pytest.hookimpl(tryfirst=True)  # before sweeps are left out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On the CPU, where tests/collectives asks more, these tests only try themselves: the short
    run takes every tenth, the sweep every second."""
    places = [
        item.callspec.params.get("place") if hasattr(item, "callspec") else None for item in items
    ]
    on_cpu = [item for item, place in zip(items, places, strict=True) if place == "cpu"]
    for i, item in enumerate(on_cpu):
        if i % 10:
            item.add_marker(pytest.mark.sweep("GPU tests on the CPU"))
    never = {*on_cpu[1::2]}
    config.hook.pytest_deselected(items=[*never])
    items[:] = [item for item in items if item not in never]


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
