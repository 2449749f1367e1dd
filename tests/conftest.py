"""Settings of the whole run."""

import os
import tempfile
from collections.abc import Iterator

import pytest
from reference import threads

# Hooks, which pytest finds here.
from sweeps import (  # noqa: F401
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_testnodedown,
    pytest_unconfigure,
)

# The tests do not depend on whether this machine is tuned, and leave that as it was.
DATA_HOME = tempfile.TemporaryDirectory()
os.environ["XDG_DATA_HOME"] = DATA_HOME.name

try:
    from hypothesis import settings
except ImportError:
    pass  # tests/gpu needs pytest alone
else:
    # No deadline: the machine may be busy, and no test here is about time.
    settings.register_profile("fastreduce", deadline=None, print_blob=True)
    settings.load_profile("fastreduce")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tests that are about threads ask for them: elsewhere, on a busy machine, they only wait."""
    with threads(1):
        yield
