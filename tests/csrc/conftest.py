"""Object files, which all processes of a session share."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def object_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for those of the unchanged sources."""
    mine = tmp_path_factory.getbasetemp()
    return (mine.parent if "PYTEST_XDIST_WORKER" in os.environ else mine) / "objects"
