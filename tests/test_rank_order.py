"""The order in which a program sums: auto's promise of bits rests on ascending rank order."""

import itertools

import pytest
import torch
from reference import assert_same, noise, reduced

from fastreduce import Instruction, Program, allreduce
from fastreduce.algorithms.collectives import program as collective
from fastreduce.plan.defaults import DEFAULTS

I = Instruction  # noqa: E741


def move(src, *dsts):
    return I(0, 0, (src,), dsts)


# For three ranks; whether its sums have the bits of a loop over the ranks.
IN_RANK_ORDER = {
    "all in order": ([I(0, 0, (0, 1, 2), (0, 1, 2))], True),
    "by any rank": ([I(2, 0, (0, 1, 2), (1,)), move(1, 0, 2)], True),
    "by the host": ([I(-1, 0, (0, 1, 2), (0, 1, 2))], True),
    "copies only": ([move(0, 1, 2)], True),
    "nothing": ([], True),
    "backwards": ([I(0, 0, (2, 1, 0), (0, 1, 2))], False),
    "the last two swapped": ([I(0, 0, (0, 2, 1), (0, 1, 2))], False),
    "beginning with its own": ([I(1, 0, (1, 0, 2), (0, 1, 2))], False),
    "two and then the third": ([I(0, 0, (0, 1), (0,)), I(0, 0, (0, 2), (0, 1, 2))], False),
    "one missing": ([I(0, 0, (0, 1), (0, 1, 2))], False),
    "in one shard only": ([I(0, 0, (0, 1, 2), (0,)), I(0, 1, (0, 2, 1), (0,))], False),
}


@pytest.mark.parametrize("name", IN_RANK_ORDER)
def test_is_known(name):
    steps, wanted = IN_RANK_ORDER[name]
    assert Program(3, 2, steps).in_rank_order() == wanted


@pytest.mark.parametrize("order", [*itertools.permutations(range(4))], ids=str)
def test_sources_are_summed_in_the_order_given(order):
    tensors = noise(4, (500,), torch.float32)
    wanted = reduced("sum", [tensors[rank] for rank in order])
    ascending = reduced("sum", tensors)
    allreduce(tensors, algorithm=Program(4, 1, [I(0, 0, order, tuple(range(4)))]))
    for tensor in tensors:
        assert_same(tensor, wanted)
    if sorted(order[:2]) != [0, 1] or order[2] != 2:  # a + b is b + a
        with pytest.raises(AssertionError):
            assert_same(wanted, ascending)


@pytest.mark.parametrize("collective_name", ["reduce", "reduce_scatter"])
@pytest.mark.parametrize("k", [1, 2, 5, 8])
def test_of_the_collectives(collective_name, k):
    for root in range(k if collective_name == "reduce" else 1):
        for algorithm in ("direct", "pull"):
            program = collective(collective_name, k, root=root, algorithm=algorithm)
            assert program.in_rank_order()


def test_what_auto_means_in_one_memory_and_over_nvlink():
    for place in ("cpu", "gpu", "nvlink", "processes"):
        for _, name in DEFAULTS[place]:
            assert collective("allreduce", 8, algorithm=name).in_rank_order()
