"""What mutation.py changes, and the tests that it runs then, are there."""

import pytest
from doc_pages import ROOT
from mutated_files import EXTENSION, MODES, PROCESSES, PYTHON

SOURCES = [*PYTHON, *EXTENSION, *MODES, *PROCESSES]
TESTS = {
    test for tests in (PYTHON, EXTENSION, PROCESSES) for each in tests.values() for test in each
}


@pytest.mark.parametrize("path", [*SOURCES, *(f"tests/{test}" for test in sorted(TESTS))])
def test_is_there(path):
    assert (ROOT / path).exists()
