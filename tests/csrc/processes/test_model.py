"""The protocol of csrc/processes as a model, of which spin visits every interleaving."""

import shutil
import subprocess
from pathlib import Path

import pytest

MODEL = Path(__file__).parent / "flags.pml"

pytestmark = [
    pytest.mark.skipif(not shutil.which("spin"), reason="no spin (Debian: apt install spin)"),
    pytest.mark.sweep("protocol"),
]


def errors(folder, *defined):
    """What spin finds wrong, in its own words; empty if every interleaving is right."""
    options = [f"-D{name}" for name in defined]
    done = subprocess.run(
        ["spin", *options, "-run", "-safety", MODEL],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "State-vector" in done.stdout, done.stdout + done.stderr
    return "".join(line for line in done.stdout.splitlines() if line.startswith("pan:1"))


@pytest.mark.parametrize("defined", [(), ("PULL",), ("RANKS=3",), ("RANKS=3", "PULL")], ids=str)
def test_every_interleaving_is_right(defined, tmp_path):
    assert not errors(tmp_path, *defined)


MUTANTS = [
    ("DROP_SLOT_WAIT", "PULL"),  # without PULL, copying out waits for the same
    ("DROP_COPIED_WAIT",),
    ("DROP_DONE_WAIT",),
    ("DROP_MEETING",),
    ("DROP_PARITY",),
    ("PUBLISH_EARLY",),
    ("SLOTS=2",),
]


@pytest.mark.parametrize("defined", MUTANTS, ids=str)
def test_mutants_are_found(defined, tmp_path):
    assert errors(tmp_path, *defined)
