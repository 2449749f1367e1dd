"""Settings of the whole run."""

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

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

import fastreduce
from fastreduce.plan.table_files import _tuned

# The tests do not depend on whether this machine is tuned, and leave that as it was.
DATA_HOME = tempfile.TemporaryDirectory()
os.environ["XDG_DATA_HOME"] = DATA_HOME.name
# Nor on what the user's shell sets for programs.
for name in ("ALGORITHM", "CHAOS", "CPU", "DATA", "GRAPHS"):
    os.environ.pop(f"FASTREDUCE_{name}", None)

# A shell leaves it ignored in what it starts in the background, and tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)

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


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Where tables are kept, of a machine that is not tuned; what a test tuned is forgotten."""

    def forget() -> None:
        _tuned.cache_clear()
        fastreduce._C.forget_schedules()

    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    forget()
    yield tmp_path / "data" / "fastreduce"
    forget()
