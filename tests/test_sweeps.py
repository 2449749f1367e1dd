"""Which tests the short run leaves out, and what its last line says."""

import subprocess
import sys
from pathlib import Path

import pytest
from sweeps import one_in

TESTS = """
    import pytest

    @pytest.mark.sweep("many orders")
    @pytest.mark.parametrize("order", range(3))
    def test_order(order):
        pass

    @pytest.mark.sweep("mutants")
    def test_mutant():
        pass

    def test_short():
        pass
"""


@pytest.fixture
def last_lines(tmp_path, monkeypatch):
    """Of pytest with these options, in as many processes."""
    (tmp_path / "test_some.py").write_text("\n".join(line[4:] for line in TESTS.splitlines()))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)

    def run(*options):
        command = [sys.executable, "-m", "pytest", "-q", "--strict-markers", "-p", "sweeps"]
        done = subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True)
        return done.stdout.splitlines()[-2:]

    return run


@pytest.mark.parametrize("processes", one_in(2, ["2", "0"], "cases"))
def test_the_last_line_says_what_was_left_out(last_lines, processes):
    counts, last = last_lines("-n", processes)
    assert counts.startswith("1 passed")
    assert last == (
        "4 long tests left out (many orders 3, mutants 1): pytest --sweep runs them too"
    )


@pytest.mark.sweep("cases")
def test_what_was_not_asked_for_is_not_counted(last_lines):
    counts, last = last_lines("-k", "short or mutant")
    assert counts.startswith("1 passed")
    assert last == "1 long tests left out (mutants 1): pytest --sweep runs them too"


@pytest.mark.sweep("cases")
def test_all_run_with_sweep(last_lines):
    assert last_lines("--sweep")[-1].startswith("5 passed")
    assert last_lines("-k", "short")[-1].startswith("1 passed")
