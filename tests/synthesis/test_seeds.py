"""Seeds: rings opened into paths, and programs that pass on at once what they have."""

from collections import Counter

import numpy as np
import pytest

from fastreduce import Instruction, Program
from fastreduce.algorithms import registry, ring, tree
from fastreduce.plan.build import proven
from fastreduce.synthesis.estimate import _messages, shape_of
from fastreduce.synthesis.seeds import _opened, passed_on
from fastreduce.topology import preset, rings
from fastreduce.topology.traffic import Links


def messages(program):
    return Counter((x.shard, *pair) for x in program.instructions for pair in _messages(x))


@pytest.mark.parametrize("name", registry)
@pytest.mark.parametrize("k", [2, 5, 8])
def test_what_is_passed_on_moves_as_before(name, k):
    program = proven("allreduce", name, k)
    found = passed_on(program)
    found.verify()
    assert messages(found) == messages(program)
    assert max(found.steps()) <= max(program.steps())


@pytest.mark.parametrize("program, steps", [(ring(8), 10), (tree(8), 4)], ids=["ring", "tree"])
def test_it_takes_fewer_steps(program, steps):
    assert 1 + max(passed_on(program).steps()) == steps < 1 + max(program.steps())


def test_a_buffer_that_is_still_read_is_not_written():
    first = Instruction(0, 0, (0, 1), (0,))
    reads = Instruction(2, 0, (1, 2), (2,))
    copies = Instruction(1, 0, (0,), (1,))
    assert len(passed_on(Program(3, 1, [first, reads, copies])).instructions) == 3
    assert len(passed_on(Program(3, 1, [first, copies, reads])).instructions) == 2


def test_opened_rings_load_all_links_alike_in_half_the_steps():
    topology = preset("dgx1")
    program = _opened(8, rings(topology))
    program.verify()
    links = Links(topology, 8)
    for found, steps in ((program, 8), (passed_on(program), 6)):
        busy_s = shape_of(found, links).busy_s
        assert len(busy_s) == steps < 14
        for step in busy_s:
            assert np.allclose(step[step > 0], step.max())
