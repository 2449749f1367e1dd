"""The command ``fastreduce synthesize``."""

import pytest

from fastreduce import Program
from fastreduce.cli import main


def test_writes_a_program_that_proves(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr", None)  # as a daemon's may be
    path = tmp_path / "new" / "mine.json"
    assert main(["synthesize", "book-pcie4", "--size", "1MiB", "-o", str(path)]) == 0
    out = capsys.readouterr().out
    assert "made of: " in out and f"written: {path}" in out
    assert Program.load(path).k == 4


@pytest.mark.parametrize(
    "name, words",
    [
        ("xml", 'coll="allreduce"'),
        ("XML", 'coll="allreduce"'),
        ("mscclpp.json", '"collective": "allreduce"'),
    ],
)
def test_exports_for_msccl(name, words, tmp_path):
    path = tmp_path / f"mine.{name}"
    assert main(["synthesize", "book-pcie4", "--size", "1MiB", "-o", str(path)]) == 0
    assert words in path.read_text()


def test_a_program_that_cannot_be_exported_is_not_lost(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("fastreduce.program.export.BLOCKS", 1)
    path = tmp_path / "mine.xml"
    assert main(["synthesize", "book-pcie4", "--size", "1MiB", "-o", str(path)]) == 1
    error = capsys.readouterr().err
    kept = tmp_path / "mine.xml.json"
    assert "is too long for MSCCL" in error and f"this program was saved to {kept}" in error
    assert not path.exists()
    assert Program.load(kept).k == 4


def test_takes_machines_and_slow_links(capsys):
    line = "synthesize book-pcie4 --machines 2 --gbit 50 --size 1KB --slow m0/nic0-network=0.5"
    assert main(line.split()) == 0
    assert "Program(k=8" in capsys.readouterr().out


@pytest.mark.parametrize(
    "line, message",
    [
        ("book-pcie4", "--size"),
        ("dgx9 --size 1MB", "unknown topology 'dgx9'"),
        ("dgx1 --size much", "much"),
        ("dgx1 --size 1MB --nics 2", "--nics and --gbit describe the network between machines"),
        (". --size 1MB", "error: topology '.' is a folder"),
        ("dgx1 --size 1MB --seconds -1", "want seconds above zero"),
        ("dgx1 --size 1MB -o mine.txt", "want a name that ends in .json or .xml"),
    ],
)
def test_wrong_arguments_are_named(line, message, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["synthesize", *line.split()])
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err
