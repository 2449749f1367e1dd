"""Programs as files: what was saved is what runs, and a file that is wrong says why."""

import json
import os

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from programs import right_program

import fastreduce
from fastreduce import Instruction, Program, explain, simulate
from fastreduce.algorithms import by_parameter, host, leader, ring, sharded, tree
from fastreduce.algorithms.registration import find
from fastreduce.cli import main
from fastreduce.plan.choose import VARIABLE, choose


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "mine.json"
    ring(4).save(path)
    return path


def ranks(k):
    return [torch.full((5,), float(10**rank)) for rank in range(k)]


def replaced(path, **keys):
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


@given(randoms=st.randoms(use_true_random=False))
def test_what_was_saved_is_loaded(randoms, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "any.json"
    program = right_program(randoms, randoms.randint(1, 5), randoms.randint(1, 4))
    program.save(path)
    assert Program.load(path) == program


@pytest.mark.parametrize(
    "program", [by_parameter(3), host(3), Program(2, 2, sharded(2).instructions, sliced=3)]
)
def test_so_are_other_forms(program, tmp_path):
    program.save(tmp_path / "form.json")
    assert Program.load(tmp_path / "form.json") == program


def test_numbers_of_numpy(tmp_path):
    """As an algorithm that computes with arrays has them."""
    two, zero = np.int64(2), np.int64(0)
    program = Program(two, 1, [Instruction(zero, 0, (zero, 1), (0, zero + 1))], sliced=two)
    program.save(tmp_path / "numpy.json")
    assert Program.load(tmp_path / "numpy.json") == program


def test_it_runs_under_its_name(saved):
    x = ranks(4)
    fastreduce.allreduce(x, algorithm=f"file:{saved}")
    assert all(tensor.eq(1111).all() for tensor in x)


def test_a_file_that_changed_is_read_again(saved, monkeypatch):
    name = f"file:{saved}"
    fastreduce.allreduce(ranks(4), algorithm=name)
    leader(3).save(saved)
    x = ranks(3)
    fastreduce.allreduce(x, algorithm=name)
    assert x[0].eq(111).all()
    with pytest.raises(ValueError, match=r"its program is for 3 ranks .* the call has 4 ranks"):
        fastreduce.allreduce(ranks(4), algorithm=name)


def by_variable(x, name):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FASTREDUCE_ALGORITHM", name)
        fastreduce.allreduce(x)


def by_operator(x, name):
    torch.ops.fastreduce.collective_("allreduce", x, [], len(x), "sum", 0, name)


@pytest.mark.parametrize("call", [by_variable, by_operator])
def test_a_file_that_changed_is_read_again_by_every_way(saved, call):
    for order, total in [((0, 1, 2), 0.0), ((0, 2, 1), 1.0)]:
        Program(3, 1, [Instruction(0, 0, order, (0, 1, 2))]).save(saved)
        for _ in range(2):  # what the first builds is kept, except where the file has just changed
            x = [torch.tensor([value]) for value in (1e8, 1.0, -1e8)]
            call(x, f"file:{saved}")
            assert x[1].item() == total


@pytest.fixture
def two_alike(tmp_path):
    """Files of one name, one size and one modification time, whose programs are not the same."""
    paths = [tmp_path / folder / "mine.json" for folder in ("one", "other")]
    for rank, path in enumerate(paths):
        path.parent.mkdir()
        Program(2, 1, [Instruction(rank, 0, (0, 1), (0, 1))]).save(path)
        os.utime(path, (1e9, 1e9))
    assert paths[0].stat().st_size == paths[1].stat().st_size
    return paths


def test_another_file_of_the_same_size_and_time_is_read(two_alike):
    one, other = two_alike
    assert find(f"file:{one}")(2).instructions[0].rank == 0
    os.replace(other, one)
    assert find(f"file:{one}")(2).instructions[0].rank == 1


def test_a_file_that_was_written_over_with_its_old_time_is_read_again(two_alike):
    one, other = two_alike
    assert find(f"file:{one}")(2).instructions[0].rank == 0
    before = one.stat().st_ctime_ns
    one.write_bytes(other.read_bytes())
    while one.stat().st_ctime_ns == before:  # some systems count in steps of milliseconds
        os.utime(one, (1e9, 1e9))
    assert find(f"file:{one}")(2).instructions[0].rank == 1


def test_a_relative_path_is_that_of_the_folder_now(two_alike, monkeypatch):
    for rank, path in enumerate(two_alike):
        monkeypatch.chdir(path.parent)
        assert find("file:mine.json")(2).instructions[0].rank == rank


def test_a_file_that_did_not_change_is_not(saved, monkeypatch):
    name = f"file:{saved}"
    fastreduce.allreduce(ranks(4), algorithm=name)
    monkeypatch.setattr("fastreduce.program.files.load", lambda path: pytest.fail("read again"))
    fastreduce.allreduce(ranks(4), algorithm=name)


def test_it_is_taken_wherever_a_name_is(saved, monkeypatch, capsys):
    name = f"file:{saved}"
    assert simulate(name, "book-pcie4", "1MB") == simulate(ring(4), "book-pcie4", "1MB")
    plan = explain("1MB", topology="book-pcie4", algorithm=name)
    assert plan.candidate(name).prediction == plan.candidate("ring").prediction
    assert explain("1MB", k=4, algorithm=name).candidate(name).program == ring(4)
    assert main(["plan", "--topology", "book-pcie4", "--algorithm", name]) == 0
    assert name in capsys.readouterr().out
    monkeypatch.setenv(VARIABLE, name)
    assert choose("cpu", 4, 1000) == name


def test_no_other_algorithm_has_such_a_name():
    with pytest.raises(ValueError, match="without 'file:'"):
        fastreduce.algorithm("file:mine")(leader)


LONG = [1] * 300_000

WRONG = {
    "of another version": (dict(version=2), "version is 2, want 1; write it again"),
    "of something else": (
        dict(format="fastreduce topology"), "is 'fastreduce topology', want 'fastreduce program'"),
    "with a key too many": (dict(colour="red"), "the file is with 'colour'"),
    "with words for a number": (dict(k="4"), "k is '4', want a whole number"),
    "with a flag for a number": (dict(shards=True), "shards is True, want a whole number"),
    "with an instruction that is none": (
        dict(instructions=[[0, 0, [0]]]), r"instruction 0 is \[0, 0, \[0\]\], want \[rank, shard"),
    "with sources that are words": (
        dict(instructions=[[0, 0, ["a"], [1]]]), "instruction 0 .* in whole numbers"),
    "with a rank that is words": (
        dict(instructions=[["a", 0, [0], [1]]]), "instruction 0 .* in whole numbers"),
    "with a rank that is none": (dict(instructions=[[9, 0, [0], [1]]]), "rank 9 is not one of 4"),
    "of no shards": (dict(shards=0), "want at least one of each"),
    "of more ranks than it writes": (
        dict(k=10**6), "1000000 ranks of 4 shards: want every .* but the instructions write 24"),
    "of more shards than it writes": (dict(shards=10**6), "want every shard of every rank written"),
    "of far more ranks than it uses": (
        dict(k=10**9), "1000000000 ranks, 4 shards: want each of them read .* write 60 shards"),
    "of far more shards than it uses": (dict(shards=10**9), "4 ranks, 1000000000 shards: want ea"),
    "of ranks that nobody counts": (dict(k=10**30), "want at least one of each, at most 1,073,74"),
    "of slices that nobody counts": (dict(sliced=10**30), "sliced is 1000.*at most 1,073,741,824"),
    "of no slices": (dict(sliced=0), "sliced is 0, want 1 or more"),
    "that no longer proves": (
        dict(instructions=[]), "the program is no allreduce: rank 0 ends with shard 0"),
}  # fmt: skip


@pytest.mark.parametrize("keys, message", WRONG.values(), ids=WRONG)
def test_a_wrong_file_says_what_is_wrong(saved, keys, message):
    replaced(saved, **keys)
    with pytest.raises(ValueError, match=message) as error:
        Program.load(saved)
    assert str(error.value).startswith(f"{saved}: ")


@pytest.mark.parametrize(
    "keys",
    [
        dict(k=LONG),
        dict(instructions=[LONG]),
        dict(instructions=[[0, 0, LONG, [1]]]),
        dict(colour=1) | {"a" * 300_000: 1},
    ],
)
def test_an_error_shows_only_the_beginning_of_what_is_long(saved, keys):
    replaced(saved, **keys)
    with pytest.raises(ValueError) as error:
        Program.load(saved)
    assert len(str(error.value)) < 800


@given(kept=st.floats(0, 0.999))
def test_a_file_cut_short_is_refused(kept, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "short.json"
    tree(5).save(path)
    content = path.read_bytes().rstrip()
    path.write_bytes(content[: int(len(content) * kept)])
    with pytest.raises(ValueError, match="this is not JSON, or not all of it"):
        Program.load(path)


@pytest.mark.parametrize(
    "program",
    [
        Program(2, 1, [Instruction(0, 0, (0, 1), (0,))]),
        Program(2, 1, [Instruction(0, 0, (0, 1), (0, 1, 2, 3))], buffers=4),
        Program(2, 1, [], buffers=-1),
        Program(2, 1, [Instruction(0, 0, (0, 1), (0, 1))], sliced=True),
    ],
)
def test_a_wrong_program_is_not_saved(saved, program):
    before = saved.read_bytes()
    with pytest.raises(ValueError, match="no allreduce"):
        program.save(saved)
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == [saved.name]


@pytest.mark.parametrize("write", [Program.save, Program.export])
@pytest.mark.parametrize("name", ["none/mine.xml", "folder.xml", "file/mine.xml"])
def test_an_error_names_the_file_that_was_asked_for(write, name, tmp_path):
    (tmp_path / "folder.xml").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(OSError) as error:
        write(ring(2), tmp_path / name)
    assert error.value.filename == str(tmp_path / name) and error.value.filename2 is None
    assert sorted(os.listdir(tmp_path)) == ["file", "folder.xml"]


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.json"):
        fastreduce.allreduce(ranks(2), algorithm=f"file:{tmp_path}/none.json")
