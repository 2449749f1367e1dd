"""Simulations without overheads, where a test asks for round numbers."""

from collections.abc import Iterator

import pytest
from networks import overheads_of_nothing


@pytest.fixture
def no_overheads() -> Iterator[None]:
    with overheads_of_nothing():
        yield
