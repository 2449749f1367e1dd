"""MSCCL's XML, read back by an interpreter of its own: every rank gets every contribution once."""

import random
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict, deque
from importlib import import_module

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import right_program

from fastreduce import Instruction, Program
from fastreduce.algorithms import by_parameter, host, leader, names, registry, ring
from fastreduce.program.export import BLOCKS, STEPS, msccl
from fastreduce.program.export_mscclpp import mscclpp


class Block:
    """A thread block as MSCCL runs it: its steps in order, each after the one that it waits for."""

    def __init__(self, gpu, element):
        self.gpu, self.done = gpu, 0
        self.peer = {way: int(element.get(way)) for way in ("send", "recv")}
        self.channel = element.get("chan")
        self.steps = [dict(step.attrib) for step in element]
        assert [int(step["s"]) for step in self.steps] == list(range(len(self.steps)))
        assert self.peer["send"] != gpu != self.peer["recv"]


def run(text, rng):
    """What each chunk of each GPU holds in the end; thread blocks go on in any legal order."""
    root = ET.fromstring(text)
    chunks = int(root.get("nchunksperloop"))
    blocks = {
        (int(gpu.get("id")), int(tb.get("id"))): Block(int(gpu.get("id")), tb)
        for gpu in root
        for tb in gpu
    }
    holds = [[Counter([gpu]) for _ in range(chunks)] for gpu in range(int(root.get("ngpus")))]
    wires = defaultdict(deque)

    def advance(block):
        step = block.steps[block.done]
        wait = blocks.get((block.gpu, int(step["depid"])))
        if wait:
            assert wait.steps[int(step["deps"])]["hasdep"] == "1"
            if wait.done <= int(step["deps"]):
                return False
        if step["type"] == "s":
            wire = wires[block.gpu, block.peer["send"], block.channel]
            wire.append(holds[block.gpu][int(step["srcoff"])])
        elif step["type"] != "nop":
            wire = wires[block.peer["recv"], block.gpu, block.channel]
            if not wire:
                return False
            mine = holds[block.gpu][int(step["srcoff"])]
            found = wire.popleft() + (mine if step["type"] == "rrc" else Counter())
            holds[block.gpu][int(step["dstoff"])] = found
        else:
            assert (step["srcoff"], step["dstoff"], step["cnt"]) == ("-1", "-1", "0")
        block.done += 1
        return True

    left = [block for block in blocks.values() if block.steps]
    while left:
        rng.shuffle(left)
        moved = [advance(block) for block in left]
        assert any(moved), "no thread block can go on"
        left = [block for block in left if block.done < len(block.steps)]
    assert not any(wires.values())
    return holds


def check(text, rng):
    holds = run(text, rng)
    everyone = Counter(range(len(holds)))
    assert all(found == everyone for gpu in holds for found in gpu)


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("name", sorted({*names()} - {"host", "by-parameter"}))
def test_every_algorithm_survives(name, k):
    check(msccl(registry[name](k)), random.Random(k))


@given(st.randoms(use_true_random=False))
@settings(deadline=None)
def test_so_does_any_program(randoms):
    program = right_program(randoms, randoms.randint(2, 5), randoms.randint(1, 4))
    check(msccl(program), randoms)


@pytest.mark.parametrize("name", ["ring", "tree"])
def test_a_step_that_does_not_wait_names_no_step(name):
    steps = [*ET.fromstring(msccl(registry[name](4))).iter("step")]
    assert {step.get("deps") for step in steps if step.get("depid") == "-1"} == {"-1"}


def waits_dropped(text):
    root = ET.fromstring(text)
    for step in root.iter("step"):
        step.set("depid", "-1")
    return ET.tostring(root, encoding="unicode")


def test_the_interpreter_finds_a_lost_wait():
    text = waits_dropped(msccl(ring(4)))
    with pytest.raises(AssertionError):
        for seed in range(20):
            check(text, random.Random(seed))


def test_the_interpreter_finds_a_copy_in_place_of_a_sum():
    with pytest.raises(AssertionError):
        check(msccl(ring(3)).replace('"rrc"', '"r"', 1), random.Random(0))


def test_the_room_of_msccl_is_kept():
    root = ET.fromstring(msccl(ring(16)))
    assert root.get("nchannels") == "1"
    root = ET.fromstring(msccl(ring(40)))
    assert root.get("nchannels") == "2"
    for gpu in root:
        assert len(gpu) <= BLOCKS
        assert all(len(tb) <= STEPS for tb in gpu)


# After the sum, the result goes from rank 0 to rank 1 again and again.
LONG = Program(2, 1, [*leader(2).instructions, *[Instruction(0, 0, (0,), (1,))] * STEPS])


@pytest.mark.parametrize(
    "program, message",
    [
        (host(2), "MSCCL has no host"),
        (by_parameter(2), "cannot say whole_tensors"),
        (Program(2, 4, []), "without the contribution"),
        (Program(2, 1, [Instruction(0, 0, (0, 1), (0, 1, 2, 3))], 4), "one buffer for each rank"),
        (LONG, "too long for MSCCL"),
    ],
)
@pytest.mark.parametrize("name", ["mine.xml", "mine.mscclpp.json"])
def test_what_it_cannot_say_is_refused(program, message, name, tmp_path):
    with pytest.raises(ValueError, match=message):
        program.export(tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "name, write, tries", [("export", msccl, "_gpus"), ("export_mscclpp", mscclpp, "_blocks")]
)
def test_what_is_far_too_long_is_refused_at_the_first_try(name, write, tries, monkeypatch):
    """Programs that were found by search may take seconds for each."""
    module, calls = import_module(f"fastreduce.program.{name}"), []
    real = getattr(module, tries)
    monkeypatch.setattr(module, tries, lambda *args: calls.append(args) or real(*args))
    steps = [Instruction(0, shard, (0,), (1,)) for _ in range(STEPS + 1) for shard in range(32)]
    with pytest.raises(ValueError, match=r"too long for MSCCL.* with 32 "):
        write(Program(2, 32, steps))
    assert len(calls) == 1


def test_the_kind_of_file_follows_its_name(tmp_path):
    kinds = (("ring.xml", msccl), ("ring.mscclpp.json", mscclpp), ("RING.XML", msccl))
    for name, text in kinds:
        ring(2).export(tmp_path / name)
        assert (tmp_path / name).read_text() == text(ring(2))
    with pytest.raises(ValueError, match=r"want a name that ends in \.xml or \.mscclpp\.json"):
        ring(2).export(tmp_path / "ring.json")
