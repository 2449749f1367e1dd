"""Arguments that make no sense end a benchmark with words, before it measures or writes."""

import sys

import allreduce
import predict
import published
import pytest
from measure import at_least, parser_of_sizes, sizes_bytes

WRONG = {
    "-b 0": "argument -b: found 0, wanted 1 or more",
    "-e 0K": "argument -e: found 0, wanted 1 or more",
    "-b 64X": "argument -b: invalid size_bytes value: '64X'",
    "-f 1": "argument -f: found 1, wanted 2 or more",
    "-n 0": "argument -n: found 0, wanted 1 or more",
    "-k 2 0": "argument -k: found 0, wanted 1 or more",
    "-t 0": "argument -t: found 0, wanted 1 or more",
    "-n x": "argument -n: invalid whole_number value: 'x'",
}


@pytest.mark.parametrize("flags", WRONG)
def test_of_sizes(flags, capsys):
    with pytest.raises(SystemExit):
        parser_of_sizes("What?", rounds=3).parse_args(flags.split())
    assert WRONG[flags] in capsys.readouterr().err


def test_sizes_that_are_none():
    with pytest.raises(SystemExit, match="found sizes from 2048 to 1024 bytes, wanted -b up to -e"):
        list(sizes_bytes(2048, 1024, 4))


@pytest.mark.parametrize("flags", ["-o mean", "--sets 0", "-w -1"])
def test_of_allreduce(flags, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["allreduce.py", *flags.split()])
    with pytest.raises(SystemExit):
        allreduce.arguments()
    assert f"argument {flags.split()[0]}: " in capsys.readouterr().err


@pytest.mark.parametrize(("script", "first"), [(predict, "predicted"), (published, "read")])
def test_scripts_that_take_none(script, first, monkeypatch, capsys):
    monkeypatch.setattr(script, first, lambda *_: pytest.fail("it has begun"))
    monkeypatch.setattr(sys, "argv", ["script.py", "--help"])
    with pytest.raises(SystemExit):
        script.main()
    assert "usage: script.py" in capsys.readouterr().out


def test_control_the_least_is_taken():
    assert (at_least(0)("0"), at_least(2)("2")) == (0, 2)
    assert list(sizes_bytes(1024, 1024, 2)) == [1024]
