"""A program as text: whole, and on one line."""

import pytest

from fastreduce import Instruction, Program
from fastreduce.algorithms import by_parameter, leader, ring
from fastreduce.algorithms.collectives import program as collective

I = Instruction  # noqa: E741
BOTH = (0, 1)


@pytest.mark.parametrize(
    ("program", "lines"),
    [
        (
            Program(3, 1, [I(0, 0, (0, 1, 2), (0,)), I(1, 0, (0,), (1, 2))]),
            [
                "3 ranks, 1 shard, 2 instructions",
                "   0 rank 0 reduces shard 0 of [0, 1, 2] into [0]",
                "   1 rank 1 copies shard 0 of [0] into [1, 2]",
            ],
        ),
        (
            Program(2, 2, [I(-1, 1, BOTH, BOTH)], whole_tensors=True),
            [
                "2 ranks, 2 shards of whole tensors, 1 instruction",
                "   0 the host reduces shard 1 of [0, 1] into [0, 1]",
            ],
        ),
        (Program(1, 1, []), ["1 rank, 1 shard, 0 instructions"]),
    ],
)
def test_as_lines(program, lines):
    assert str(program).split("\n") == lines


@pytest.mark.parametrize(
    ("program", "text"),
    [
        (ring(64), "Program(k=64, shards=64, 8,064 instructions)"),
        (leader(2), "Program(k=2, shards=1, 1 instruction)"),
        (collective("all_gather", 2), "Program(k=2, shards=2, buffers=4, 2 instructions)"),
        (by_parameter(2), "Program(k=2, shards=2, whole_tensors=True, 2 instructions)"),
    ],
)
def test_on_one_line(program, text):
    assert repr(program) == text
    assert len(repr(program.instructions)) < 600
