"""A machine that is not tuned."""

import pytest

import fastreduce
from fastreduce.plan.table_files import _tuned


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    """Where tables are kept; what a test tuned is forgotten after it."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    _tuned.cache_clear()
    fastreduce._C.forget_schedules()
    yield tmp_path / "data" / "fastreduce"
    _tuned.cache_clear()
    fastreduce._C.forget_schedules()
