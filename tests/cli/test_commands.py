"""The command line as a whole: one file per command, each with its help, and errors in words."""

import io
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import fastreduce
import fastreduce.cli
from fastreduce.cli import main
from fastreduce.topology import preset, save

NAMES = ("train", "plan", "synthesize", "tune", "calibrate", "diff", "doctor")


def test_each_command_has_a_file():
    files = {x.name for x in pkgutil.iter_modules(fastreduce.cli.__path__)}
    assert files >= {*NAMES}
    assert [x.__name__ for x in fastreduce.cli.COMMANDS] == [f"fastreduce.cli.{x}" for x in NAMES]


@pytest.mark.parametrize("name", NAMES)
def test_each_command_has_its_help(capsys, name):
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert f"usage: fastreduce {name}" in capsys.readouterr().out


def test_help_that_needs_a_package_that_is_missing(monkeypatch, capsys):
    """The help of a plan lists the presets, which are graphs."""

    def fail():
        raise ModuleNotFoundError("No module named 'networkx'")

    monkeypatch.setattr(fastreduce.topology, "names", fail)
    assert main(["plan", "--help"]) == 1
    said = capsys.readouterr().err
    assert said == "fastreduce: error: No module named 'networkx'; see `fastreduce doctor`\n"


def test_version(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"fastreduce {fastreduce.__version__}\n"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (FileNotFoundError(2, "No such file or directory", "x.json"), "x.json: No such file or"),
        (OSError("no space left"), "no space left"),
        (RuntimeError("rank 1 is lost"), "rank 1 is lost"),
        (ModuleNotFoundError("No module named 'networkx'"), "No module named 'networkx'; see"),
    ],
)
def test_errors_on_the_way_are_a_line_without_numbers(monkeypatch, capsys, error, words):
    def fail():
        raise error

    monkeypatch.setattr(fastreduce.doctor, "report", fail)
    assert main(["doctor"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"fastreduce: error: {words}")
    assert "Errno" not in said and len(said.splitlines()) == 1


def of_ascii():
    return io.TextIOWrapper(io.BytesIO(), encoding="ascii")


@pytest.mark.parametrize("stdout", [of_ascii(), io.StringIO(), None])
def test_words_that_the_output_cannot_show_are_no_error(monkeypatch, stdout):
    monkeypatch.setattr(fastreduce.doctor, "report", lambda: "ünï")
    monkeypatch.setattr("sys.stdout", stdout)
    assert main(["doctor"]) == 0
    if isinstance(stdout, io.TextIOWrapper):
        stdout.flush()
        assert stdout.buffer.getvalue() == rb"\xfcn\xef" + b"\n"


def ended_with(stdout):
    command = [sys.executable, "-m", "fastreduce", "plan", "--topology", "book-pcie4"]
    done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stderr


def test_a_reader_that_has_read_enough_is_no_error():
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "w") as stdout:
        assert ended_with(stdout) == (141, "")
    assert ended_with(subprocess.PIPE) == (0, "")


def test_output_that_does_not_fit_on_the_disk_is_an_error_in_words():
    with open("/dev/full", "w") as stdout:
        assert ended_with(stdout) == (1, "fastreduce: error: No space left on device\n")


def test_control_a_mistake_of_ours_is_not_hidden(monkeypatch):
    monkeypatch.setattr(fastreduce.doctor, "report", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["doctor"])


@pytest.mark.parametrize(
    "line",
    [
        "plan --topology mine.json --trace ./mine.json",
        "plan --ranks 4 --algorithm file:mine.json --topology book-pcie4 --trace mine.json",
        "synthesize mine.json --size 1KB -o mine.json",
        "calibrate mine.json -o other.json",
    ],
)
def test_what_a_command_reads_is_not_written_over(capsys, tmp_path, monkeypatch, line):
    """Found when the topology that a program was searched for was lost to the program."""
    monkeypatch.chdir(tmp_path)
    save(preset("book-pcie4"), "mine.json")
    Path("other.json").symlink_to("mine.json")
    before = Path("mine.json").read_bytes()
    try:
        status = main(line.split())
    except SystemExit as ended:
        status = ended.code
    assert status in (1, 2)
    assert "json is what is read, want another name to write to" in capsys.readouterr().err
    assert Path("mine.json").read_bytes() == before
