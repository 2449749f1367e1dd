"""Which program serves a call, and that each collective's reaches its goal."""

import os
import random

import pytest
import torch
from programs import sums
from reference import assert_same, noise

from fastreduce import _C, Instruction, Program, allreduce, explain
from fastreduce.algorithms import leader, names, registry
from fastreduce.algorithms.collectives import goal, program
from fastreduce.plan.build import build, proven
from fastreduce.plan.choose import choose
from fastreduce.plan.defaults import DEFAULTS, default

COLLECTIVES = ("allreduce", "reduce", "broadcast", "reduce_scatter", "all_gather")
CASES = [
    (collective, k, root)
    for collective in COLLECTIVES
    for k in (1, 2, 3, 8, 17)
    for root in ({0, k // 2, k - 1} if collective in ("reduce", "broadcast") else {0})
]


def wanted(collective, k, root, values):
    """What each (buffer, shard) must hold in the end, said again without goal()."""
    everyone = {(b, s): sum(values[:k]) * (s + 1) for b in range(2 * k) for s in range(k)}
    own = {(b, s): values[b] * (s + 1) for b in range(k) for s in range(k)}
    shard = {(k + r, r): everyone[k + r, r] for r in range(k)}
    gathered = {(k + r, s): values[s] * (s + 1) for r in range(k) for s in range(k)}
    return {
        "allreduce": {(b, 0): everyone[b, 0] for b in range(k)},
        "reduce": {(b, 0): everyone[b, 0] if b == root else own[b, 0] for b in range(k)},
        "broadcast": {(b, 0): own[root, 0] for b in range(k)},
        "reduce_scatter": own | shard,
        "all_gather": own | gathered,
    }[collective]


@pytest.mark.parametrize(("collective", "k", "root"), CASES)
class TestProgram:
    def test_is_proven(self, collective, k, root):
        program(collective, k, root=root).verify(goal(collective, k, root))

    def test_is_right_by_brute_force(self, collective, k, root):
        choose = random.Random(k)
        values = [choose.getrandbits(64) for _ in range(2 * k)]
        found = sums(program(collective, k, root=root), values)
        for cell, value in wanted(collective, k, root, values).items():
            assert found[cell] == value

    def test_can_be_built_for_the_engine(self, collective, k, root):
        assert isinstance(build(collective, "auto", k, root), _C.Schedule)

    def test_between_processes_each_rank_writes_its_own(self, collective, k, root):
        choose = random.Random(k)
        values = [choose.getrandbits(64) for _ in range(2 * k)]
        algorithm = "pulled-leader" if collective == "allreduce" else "pull"
        pulled = proven(collective, algorithm, k, root)
        assert all(dst % k == x.rank for x in pulled.instructions for dst in x.dsts)
        found = sums(pulled, values)
        for (buffer, shard), value in wanted(collective, k, root, values).items():
            outputs = pulled.buffers - k if collective == "allreduce" else 0
            assert found[buffer + outputs, shard] == value

    def test_control_the_goal_refuses_less(self, collective, k, root):
        chosen = program(collective, k, root=root)
        fewer = Program(k, chosen.shards, chosen.instructions[:-1], chosen.buffers)
        if k > 1 or chosen.buffers > k:
            with pytest.raises(ValueError, match=r"rank .* ends with shard"):
                fewer.verify(goal(collective, k, root))


class TestChoose:
    @pytest.mark.parametrize("place", DEFAULTS)
    def test_has_a_program_at_every_size(self, place):
        for nbytes in (0, 1, 1 << 16, 1 << 17, 1 << 40):
            name = choose(place, 4, nbytes)
            assert proven("allreduce", name, 4).k == 4

    def test_thresholds(self):
        assert choose("nvlink", 8, 64 * 1024) == "leader"
        assert choose("nvlink", 8, 64 * 1024 + 1) == "sharded"
        assert choose("pcie", 8, 64 * 1024 + 1) == "ring"

    def test_the_environment_overrides_auto_only(self, monkeypatch):
        monkeypatch.setenv("FASTREDUCE_ALGORITHM", "tree")
        assert choose("cpu", 4, 100) == "tree"
        by_auto, by_tree, by_leader = (
            noise_after(algorithm) for algorithm in ("auto", "tree", "leader")
        )
        assert_same(by_auto, by_tree)
        with pytest.raises(AssertionError):
            assert_same(by_auto, by_leader)

    def test_an_unknown_name_in_the_environment_is_refused(self, monkeypatch):
        monkeypatch.setenv("FASTREDUCE_ALGORITHM", "rnig")
        with pytest.raises(ValueError, match="FASTREDUCE_ALGORITHM is 'rnig'; known are auto, "):
            noise_after("auto")
        with pytest.raises(ValueError, match="FASTREDUCE_ALGORITHM is 'rnig'"):
            explain([torch.zeros(2), torch.zeros(2)])

    def test_one_that_python_does_not_know_of_is_not_taken_for_another(self, home):
        """As libraries in C set it: ``os.environ`` stays as it was."""
        os.putenv("FASTREDUCE_ALGORITHM", "tree")
        try:
            assert_same(noise_after("auto"), noise_after("tree"))
            os.unsetenv("FASTREDUCE_ALGORITHM")
            assert_same(noise_after("auto"), noise_after("leader"))
        finally:
            os.unsetenv("FASTREDUCE_ALGORITHM")

    def test_auto_in_the_environment_overrides_nothing(self, monkeypatch):
        monkeypatch.setenv("FASTREDUCE_ALGORITHM", "auto")
        assert choose("pcie", 4, 1 << 20) == default("pcie", 1 << 20)


def noise_after(algorithm):
    tensors = noise(4, (1000,), torch.float32)
    allreduce(tensors, algorithm=algorithm)
    return tensors[0]


@pytest.mark.parametrize("name", names())
def test_names_reach_their_algorithm(name):
    assert program("allreduce", 3, algorithm=name) == registry[name](3)


def test_an_unknown_algorithm_names_the_known():
    with pytest.raises(ValueError, match=r"unknown algorithm 'rnig'; known are auto, .*leader"):
        program("allreduce", 2, algorithm="rnig")


def test_a_large_program_that_is_wrong_is_refused_before_it_is_proven():
    """A proof would take gigabytes."""
    large = Program(2, 1 << 30, [Instruction(0, 0, (0, 1), (0, 1))])
    tensors = [torch.ones(4), torch.ones(4)]
    with pytest.raises(ValueError, match="1073741824 shards: want each of them read or written"):
        allreduce(tensors, algorithm=large)
    assert tensors[0].eq(1).all()


def test_each_result_of_leader_is_written_by_one_instruction():
    assert program("allreduce", 4, algorithm="leader") == leader(4)
    assert len(program("reduce", 4, root=2).instructions) == 1
    assert [x.rank for x in program("reduce_scatter", 4).instructions] == [0, 1, 2, 3]
