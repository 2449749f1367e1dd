"""A short run of soak.py; for long, by hand."""

from dataclasses import replace

import pytest
import soak
from chaos_scenarios import TROUBLES
from soak_scenarios import MORE, leaks


@pytest.mark.sweep("processes")
def test_a_short_run(capsys):
    soak.main(["--calls", "600", "--chaos", str(len(TROUBLES)), "--processes", "3"])
    said = capsys.readouterr().out
    assert "600 calls, all values right" in said
    assert all(f"1 times {name}: no wrong value, no hang" in said for name in TROUBLES)


@pytest.mark.sweep("processes")
def test_an_error_that_names_another_rank_is_found():
    """The control."""
    other = replace(TROUBLES["aborts"], words="rank 7 called abort")
    with pytest.raises(AssertionError, match="rank 0 called abort"):
        soak.trouble(2, 1, 0, "aborts", other)


@pytest.mark.parametrize("name", MORE)
def test_a_leak_is_found(name):
    """The control."""
    usual = dict.fromkeys(MORE, 1 << 30)
    assert leaks([usual] * 3) == []
    assert leaks([usual, usual, usual | {name: usual[name] + MORE[name] + 1}]) == [name]
