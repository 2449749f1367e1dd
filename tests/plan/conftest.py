"""A machine that is not tuned."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def untuned(home: Path) -> None:
    pass
