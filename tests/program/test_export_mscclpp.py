"""MSCCL++'s JSON, read back by an interpreter: every rank gets every contribution once."""

import json
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import right_program

from fastreduce import Instruction, Program
from fastreduce.algorithms import leader, names, registry, ring
from fastreduce.program.export_mscclpp import OPERATIONS, PEERS, PEERS_OF_ONE, mscclpp


class Machine:
    """What each chunk of each GPU's buffers holds, and how often each channel was signaled."""

    def __init__(self, plan):
        self.gpus = plan["gpus"]
        self.holds = [
            {"i": [Counter([gpu["id"]]) for _ in range(gpu["input_chunks"])]}
            | {"s": [Counter() for _ in range(gpu["scratch_chunks"])]}
            for gpu in self.gpus
        ]
        self.signals = Counter()
        self.other_end = {}
        for gpu in self.gpus:
            connected = gpu["channels"][0]["connected_to"]
            for channel, peer in enumerate(connected):
                number = connected[:channel].count(peer)
                theirs = self.gpus[peer]["channels"][0]["connected_to"]
                [end] = [
                    i
                    for i, x in enumerate(theirs)
                    if x == gpu["id"] and theirs[:i].count(x) == number
                ]
                self.other_end[gpu["id"], channel] = (peer, end)


class Block:
    """A thread block as the executor runs it. Without a barrier of its threads ("nop") nothing is
    known of what they did before it, so nothing else may stand there."""

    def __init__(self, machine, gpu, block):
        self.machine, self.gpu = machine, gpu
        self.channels = block["channels"][0]["channel_ids"]
        [refs] = block["remote_buffer_refs"]
        self.remote = [gpu["remote_buffers"][x] for x in refs["remote_buffer_ids"]]
        self.ops = list(block["ops"])
        assert len(self.ops) <= OPERATIONS
        assert len(self.channels) <= PEERS
        apart = all((op["name"] == "nop") == (i % 2 == 1) for i, op in enumerate(self.ops))
        assert apart, "no barrier between two operations"

    def at(self, ref):
        """The buffer and the index that a reference names."""
        assert ref["size"] == 1
        if "type" in ref:
            return self.machine.holds[self.gpu["id"]][ref["type"]], ref["index"]
        remote = self.remote[ref["buffer_id"]]
        assert remote["rank"] != self.gpu["id"]
        return self.machine.holds[remote["rank"]][remote["type"]], ref["index"]

    def advance(self):
        op = self.ops[0]
        run = getattr(self, op["name"])
        if run(op) is False:
            return False
        self.ops.pop(0)
        return True

    def nop(self, op):
        pass

    def signal(self, op):
        for channel in op["channel_ids"]:
            self.machine.signals[
                self.machine.other_end[self.gpu["id"], self.channels[channel]]
            ] += 1

    def wait(self, op):
        ours = [(self.gpu["id"], self.channels[channel]) for channel in op["channel_ids"]]
        if not all(self.machine.signals[x] for x in ours):
            return False
        self.machine.signals.subtract(ours)
        return True

    def read(self, refs):
        assert all("buffer_id" in ref for ref in refs[1:])
        assert len(refs) <= 1 + PEERS_OF_ONE
        return [buffer[index] for buffer, index in map(self.at, refs)]

    def write(self, ref, value):
        buffer, index = self.at(ref)
        buffer[index] = value

    def get(self, op):
        [source], [target] = op["src_buff"], op["dst_buff"]
        assert "buffer_id" in source and target["index"] == source["index"]
        self.write(target, self.read([source])[0])

    def put(self, op):
        assert len(op["src_buff"]) == len(op["dst_buff"]) <= PEERS_OF_ONE
        for source, target in zip(op["src_buff"], op["dst_buff"], strict=True):
            assert "type" in source and "buffer_id" in target
            self.write(target, self.read([source])[0])

    def rre(self, op):
        assert op["reduce_op"] == "sum"
        [target] = op["dst_buff"]
        self.write(target, sum(self.read(op["src_buff"]), Counter()))


def check(text, rng):
    """Thread blocks go on in any legal order."""
    plan = json.loads(text)
    assert (plan["min_message_size"], plan["max_message_size"]) == (0, 2**64 - 1)  # any
    machine = Machine(plan)
    left = [Block(machine, gpu, block) for gpu in plan["gpus"] for block in gpu["threadblocks"]]
    left = [block for block in left if block.ops]
    while left:
        rng.shuffle(left)
        assert any(block.advance() for block in left), "no thread block can go on"
        left = [block for block in left if block.ops]
    assert not +machine.signals, "more signals than waits"
    everyone = Counter(range(len(machine.holds)))
    assert all(found == everyone for gpu in machine.holds for found in gpu["i"]), "not the sum"


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("name", sorted({*names()} - {"host", "by-parameter"}))
def test_every_algorithm_survives(name, k):
    for seed in range(3):
        check(mscclpp(registry[name](k)), random.Random(seed))


@given(st.randoms(use_true_random=False))
@settings(deadline=None)
def test_so_does_any_program(randoms):
    program = right_program(randoms, randoms.randint(2, 5), randoms.randint(1, 4))
    check(mscclpp(program), randoms)


def test_more_sources_than_one_operation_takes():
    check(mscclpp(leader(2 * PEERS_OF_ONE)), random.Random(0))


# Rank 2 sums what ranks 0 and 1 hold, which it has not and gets not.
BESIDE = Program(
    3,
    1,
    [
        Instruction(2, 0, (0, 1), (0, 1)),
        Instruction(2, 0, (1, 2), (0, 1, 2)),
    ],
)


def test_a_rank_sums_what_it_does_not_hold():
    plan = json.loads(mscclpp(BESIDE))
    assert [gpu["scratch_chunks"] for gpu in plan["gpus"]] == [0, 0, 1]
    check(mscclpp(BESIDE), random.Random(0))


def changed(text, change):
    """With a change to the operations of every thread block but at its two ends, which all meet."""
    plan = json.loads(text)
    for gpu in plan["gpus"]:
        for block in gpu["threadblocks"]:
            block["ops"][4:-4] = change(block["ops"][4:-4])
    return json.dumps(plan)


def test_control_lost_meetings_are_found():
    def without_meetings(ops):
        kept = [x for x in ops if x["name"] not in ("signal", "wait", "nop")]
        return [y for x in kept for y in (x, {"name": "nop"})][:-1]

    text = changed(mscclpp(ring(4)), without_meetings)
    with pytest.raises(AssertionError, match="not the sum"):
        for seed in range(20):
            check(text, random.Random(seed))


def test_control_a_lost_barrier_of_threads_is_found():
    with pytest.raises(AssertionError, match="no barrier between"):
        check(changed(mscclpp(ring(4)), lambda ops: ops[1:]), random.Random(0))


LONG = Program(2, 1, [*leader(2).instructions, *[Instruction(0, 0, (0,), (1,))] * OPERATIONS])


@pytest.mark.parametrize(
    "program, message",
    [
        (LONG, "too long for MSCCL\\+\\+: with 1 thread blocks one has "),
        (leader(PEERS + 2), "reaches 17 other GPUs, where 64 and 16 fit"),
    ],
)
def test_the_room_of_mscclpp_is_kept(program, message):
    with pytest.raises(ValueError, match=message):
        mscclpp(program)
