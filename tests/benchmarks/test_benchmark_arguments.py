"""Arguments that make no sense end a benchmark with words, before it measures or writes."""

import sys

import allreduce
import predict
import published
import pytest
import torch
from expected import contribution
from measure import at_least, bandwidth, parser_of_sizes, sizes_bytes

WRONG = {
    "-b 0": "argument -b: found 0, wanted 1 or more",
    "-e 0K": "argument -e: found 0, wanted 1 or more",
    "-b 64X": "argument -b: invalid size_bytes value: '64X'",
    "-f 1": "argument -f: found 1, wanted 2 or more",
    "-n 0": "argument -n: found 0, wanted 1 or more",
    "-k 2 0": "argument -k: found 0, wanted 1 or more",
    "-t 0": "argument -t: found 0, wanted 1 or more",
    "-n x": "argument -n: invalid whole_number value: 'x'",
    "--out /dev/null/all": "argument --out: /dev/null is a file, want a folder to write all.json",
    "--out h100.2": "argument --out: found 'h100.2', wanted a name without '.2'",
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


def parsed(monkeypatch, flags):
    monkeypatch.setattr(sys, "argv", ["allreduce.py", *flags.split()])
    return allreduce.arguments()


def test_a_size_without_an_element_is_refused(capsys, monkeypatch):
    """There is nothing to measure: it was a failure of what is measured."""
    with pytest.raises(SystemExit):
        parsed(monkeypatch, "-b 3 -d int8 float16 float32")
    assert "found -b 3, wanted at least 4, of one float32" in capsys.readouterr().err
    assert parsed(monkeypatch, "-b 3 -d int8 float16").b == 3


@pytest.mark.parametrize(("dtype", "most"), [("bfloat16", 13), ("float16", 53)])
def test_ranks_whose_sums_are_rounded_are_refused(dtype, most, capsys, monkeypatch):
    """Right results would be counted as wrong."""
    assert parsed(monkeypatch, f"-d int8 {dtype} -k 2 {most}").k == [2, most]
    with pytest.raises(SystemExit):
        parsed(monkeypatch, f"-d int8 {dtype} -k 2 {most + 1}")
    assert f"found -d {dtype} with -k {most + 1}: sums of so many" in capsys.readouterr().err
    assert parsed(monkeypatch, f"-d {dtype} -k {most + 1} -o max").k == [most + 1]


@pytest.mark.parametrize(("dtype", "most"), [(torch.bfloat16, 13), (torch.float16, 53)])
def test_the_bound_is_that_of_the_dtype(dtype, most):
    def largest(k):
        return int(sum(contribution("sum", rank, torch.empty(13)) for rank in range(k)).max())

    def has_all_up_to(n):
        numbers = torch.arange(n + 1)
        return torch.equal(numbers.to(dtype).long(), numbers)

    assert has_all_up_to(largest(most)) and not has_all_up_to(largest(most + 1))


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
    for name in ("all", "all.json", "all.png"):
        assert parser_of_sizes("What?", rounds=3).parse_args(["--out", name]).out.stem == "all"


def test_one_rank_moves_nothing_over_a_bus():
    """As in nccl-tests, whose factor is then 0; JSON has no infinity."""
    assert bandwidth(1000, 1e-6, 1)["busbw_gb_per_s"] == 0
    assert bandwidth(1000, 1e-6, 4)["busbw_gb_per_s"] == pytest.approx(1.5)
