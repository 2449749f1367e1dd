"""A program's dependencies, its proof, and where its averages divide."""

import itertools
import random
import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from programs import (
    any_programs,
    averages,
    history,
    is_allreduce,
    legal_order,
    right_program,
    right_programs,
    sums,
)

from fastreduce import _C, Instruction, Program
from fastreduce.algorithms import by_parameter, leader, names, registry, ring, sharded
from fastreduce.algorithms.collectives import goal
from fastreduce.algorithms.collectives import program as collective

randoms = st.randoms(use_true_random=False)

BUILT_IN = names()


class TestDependencies:
    @given(any_programs() | right_programs, randoms)
    def test_every_legal_order_has_the_same_history(self, program, choose):
        order = legal_order(program.dependencies(), choose)
        assert history(program, order) == history(program)

    @given(any_programs())
    def test_instructions_wait_for_earlier_ones_that_they_conflict_with(self, program):
        for index, waits in enumerate(program.dependencies()):
            assert list(waits) == sorted(set(waits))
            for earlier in waits:
                assert earlier < index
                one, other = program.instructions[earlier], program.instructions[index]
                assert one.shard == other.shard
                assert {*one.dsts} & {*other.srcs, *other.dsts} or {*one.srcs} & {*other.dsts}

    @given(right_programs, randoms, st.data())
    def test_sums_on_real_integers(self, program, choose, data):
        values = data.draw(st.lists(st.integers(), min_size=program.k, max_size=program.k))
        order = legal_order(program.dependencies(), choose)
        for (_, shard), found in sums(program, values, order).items():
            assert found == sum(values) * (shard + 1)

    @pytest.mark.parametrize("k", [2, 3, 5])
    def test_control_every_dependency_of_the_ring_is_needed(self, k):
        """Without one of them, some of the orders that become legal end with another sum."""
        program = ring(k)
        waits = program.dependencies()
        values = [random.Random(k).getrandbits(60) for _ in range(k)]
        for index, earlier in [(i, e) for i, those in enumerate(waits) for e in those]:
            fewer = list(waits)
            fewer[index] = tuple(e for e in waits[index] if e != earlier)
            if _still_ordered(fewer, earlier, index):
                continue  # implied by others
            last_possible = _order_with_late(fewer, earlier)
            assert sums(program, values, last_possible) != sums(program, values)


def _ancestors(waits, index):
    found, open_ = set(), [index]
    while open_:
        for earlier in waits[open_.pop()]:
            if earlier not in found:
                found.add(earlier)
                open_.append(earlier)
    return found


def _still_ordered(waits, earlier, later):
    return earlier in _ancestors(waits, later)


def _order_with_late(waits, late):
    """Everything that need not wait for ``late`` goes first."""
    after = [i for i in range(len(waits)) if i == late or late in _ancestors(waits, i)]
    return [i for i in range(len(waits)) if i not in after] + after


class TestSlices:
    SIZES = st.integers(0, 1 << 40) | st.integers(-2, 2).map(lambda more: (8 << 20) + more)

    @given(any_programs() | right_programs, SIZES)
    def test_are_what_the_events_engine_asks_for(self, program, nbytes):
        one_step = not any(program.dependencies())
        assert program.slices(nbytes) == _C.slices(nbytes, program.shards, one_step)
        assert 1 <= program.slices(nbytes) <= 8

    def test_follow_the_size_up_to_eight(self):
        found = [ring(4).slices(mib << 20) for mib in (0, 4, 8, 31, 32, 4000)]
        assert found == [1, 1, 2, 7, 8, 8]

    def test_are_not_needed_where_nobody_waits(self):
        assert sharded(4).slices(1 << 40) == 1


def accepts(program):
    try:
        program.verify()
    except ValueError:
        return False
    return True


MUTATIONS = {
    "drop": lambda steps, i, j, b: steps[:i] + steps[i + 1 :],
    "duplicate": lambda steps, i, j, b: steps[: i + 1] + steps[i:],
    "swap": lambda steps, i, j, b: _swapped(steps, i, j),
    "other source": lambda steps, i, j, b: _with(steps, i, srcs=_changed(steps[i].srcs, j, b)),
    "one source more": lambda steps, i, j, b: _with(steps, i, srcs=(*steps[i].srcs, b)),
    "one source less": lambda steps, i, j, b: _with(steps, i, srcs=steps[i].srcs[1:]),
    "other destination": lambda steps, i, j, b: _with(steps, i, dsts=_changed(steps[i].dsts, j, b)),
    "one destination less": lambda steps, i, j, b: _with(steps, i, dsts=steps[i].dsts[1:]),
    "other shard": lambda steps, i, j, b: _with(steps, i, shard=b),
    "other rank": lambda steps, i, j, b: _with(steps, i, rank=b),
}


def _with(steps, i, **changes):
    return [*steps[:i], steps[i]._replace(**changes), *steps[i + 1 :]]


def _swapped(steps, i, j):
    steps = list(steps)
    steps[i], steps[j] = steps[j], steps[i]
    return steps


def _changed(buffers, j, b):
    j %= len(buffers)
    return (*buffers[:j], b, *buffers[j + 1 :])


def may_start_together(program, indices):
    """Of one rank, and the same memory afterwards in whatever order they run."""
    steps = [program.instructions[i] for i in indices]
    cells = [({(b, x.shard) for b in x.dsts}, {(b, x.shard) for b in x.srcs}) for x in steps]
    conflicts = any(
        a_writes & (b_reads | b_writes) or b_writes & a_reads
        for n, (a_writes, a_reads) in enumerate(cells)
        for b_writes, b_reads in cells[:n]
    )
    return len({x.rank for x in steps}) == 1 and not conflicts


class TestLaunches:
    @given(any_programs() | right_programs)
    def test_are_the_longest_runs_that_may_start_together(self, program):
        launches = program.launches()
        assert [i for launch in launches for i in launch] == list(range(len(program.instructions)))
        assert all(may_start_together(program, launch) for launch in launches)
        for launch, later in itertools.pairwise(launches):
            assert not may_start_together(program, (*launch, later[0]))

    def test_control_what_conflicts_may_not(self):
        steps = [Instruction(0, 0, (1,), (0,)), Instruction(0, 0, (0,), (2,))]
        assert not may_start_together(Program(3, 1, steps), (0, 1))


class TestVerify:
    @settings(max_examples=300)
    @given(any_programs())
    def test_any_program_is_accepted_exactly_if_it_is_right(self, program):
        assert accepts(program) == is_allreduce(program)

    @given(right_programs)
    def test_right_programs_are_accepted(self, program):
        assert is_allreduce(program)
        program.verify()

    @settings(max_examples=400)
    @given(st.sampled_from([*BUILT_IN, None]), st.integers(1, 7), randoms, st.data())
    def test_mutants_are_rejected_or_right(self, algorithm, k, choose, data):
        good = registry[algorithm](k) if algorithm else right_program(choose, k, shards=2)
        assume(good.instructions)
        mutate = MUTATIONS[data.draw(st.sampled_from(sorted(MUTATIONS)))]
        position = st.integers(0, len(good.instructions) - 1)
        steps = mutate(
            list(good.instructions), data.draw(position), data.draw(position), choose.randint(-1, k)
        )
        mutant = Program(k, good.shards, steps)
        assert accepts(mutant) == is_allreduce(mutant), str(mutant)

    @pytest.mark.sweep("mutants")
    @pytest.mark.parametrize("algorithm", BUILT_IN)
    @pytest.mark.parametrize("mutation", sorted(MUTATIONS))
    def test_every_mutant_of_three_ranks_is_rejected_or_right(self, algorithm, mutation):
        good = registry[algorithm](3)
        count = len(good.instructions)
        for i, j, b in itertools.product(range(count), range(count), range(-1, 4)):
            steps = MUTATIONS[mutation](list(good.instructions), i, j, b)
            mutant = Program(3, good.shards, steps)
            assert accepts(mutant) == is_allreduce(mutant), str(mutant)

    # Who executes an instruction does not change its result.
    @pytest.mark.parametrize("mutation", sorted({*MUTATIONS} - {"other rank"}))
    def test_control_many_mutants_are_wrong(self, mutation):
        """So that the test above does not compare agreement on nothing."""
        good = ring(4)
        mutants = [
            Program(4, 4, MUTATIONS[mutation](list(good.instructions), i, j, b))
            for i in range(24)
            for j in (0, 9, 23)
            for b in range(4)
        ]
        wrong = [mutant for mutant in mutants if not is_allreduce(mutant)]
        assert len(wrong) > len(mutants) / 3
        assert not any(accepts(mutant) for mutant in wrong)


I = Instruction  # noqa: E741
BOTH = (0, 1)
REFUSED = {
    "missing": (
        Program(2, 1, [I(0, 0, BOTH, (0,))]),
        "rank 1 ends with shard 0 of its tensor without the contribution of rank [0]",
    ),
    "missing in one shard": (
        Program(2, 2, [I(0, 0, BOTH, BOTH), I(0, 1, BOTH, (1,))]),
        "rank 0 ends with shard 1 of its tensor without the contribution of rank [1]",
    ),
    "twice": (
        Program(2, 1, [I(0, 0, (0, 1, 1), BOTH)]),
        "rank 0 ends with shard 0 of its tensor counting the contribution of rank [1] more than",
    ),
    "nothing at all": (
        Program(3, 1, []),
        "rank 0 ends with shard 0 of its tensor without the contribution of rank [1, 2]",
    ),
    "no such rank": (Program(2, 1, [I(2, 0, BOTH, BOTH)]), "rank 2 is not one of 2"),
    "no such shard": (Program(2, 1, [I(0, 1, BOTH, BOTH)]), "shard 1 is not one of 1"),
    "no such source": (Program(2, 1, [I(0, 0, (0, 2), BOTH)]), "buffer 2 does not exist"),
    "no such destination": (Program(2, 1, [I(0, 0, BOTH, (-1,))]), "buffer -1 does not exist"),
    "no source": (Program(2, 1, [I(0, 0, (), BOTH)]), "reads or writes nothing"),
    "no destination": (Program(2, 1, [I(0, 0, BOTH, ())]), "reads or writes nothing"),
    "one destination twice": (Program(2, 1, [I(0, 0, BOTH, (1, 1))]), "writes one buffer twice"),
    "malformed says which": (
        Program(2, 1, [I(0, 0, BOTH, BOTH), I(1, 7, BOTH, BOTH)]),
        "instruction 1 (rank 1 reduces shard 7",
    ),
    "no shards": (Program(2, 0, []), "shard"),
    "fewer than no shards": (Program(2, -1, []), "shard"),
    "no ranks": (Program(0, 1, []), "rank"),
}


@pytest.mark.parametrize(("program", "words"), REFUSED.values(), ids=REFUSED)
def test_what_verify_says(program, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        program.verify()


def test_what_verify_says_of_other_goals():
    with pytest.raises(ValueError, match=r"rank 1 ends with shard 0 .* rank \[0\], .* not wanted"):
        leader(2).verify(goal("reduce", 2))
    reads_output = Program(2, 2, [I(r, r, (0, 1, 2 + r), (2 + r,)) for r in (0, 1)], 4)
    with pytest.raises(ValueError, match=r"rank 0 ends with .* what an output held"):
        reads_output.verify(goal("reduce_scatter", 2))


class TestAverage:
    @given(right_programs, st.data())
    def test_divides_once_on_every_way(self, program, data):
        values = data.draw(st.lists(st.integers(), min_size=program.k, max_size=program.k))
        for found in averages(program, values).values():
            assert found * program.k == sum(values)

    @pytest.mark.parametrize("algorithm", BUILT_IN)
    @pytest.mark.parametrize("k", range(1, 18))
    def test_divides_once_in_the_algorithms(self, algorithm, k):
        values = [7**rank for rank in range(k)]
        for found in averages(registry[algorithm](k), values).values():
            assert found * k == sum(values)

    def test_control_a_program_that_sums_after_completing_would_show(self):
        twice = Program(2, 1, [I(0, 0, BOTH, (0,)), I(0, 0, BOTH, BOTH)])
        assert any(found * 2 != 3 for found in averages(twice, [1, 2]).values())

    def test_never_within_partial_sums(self):
        program = ring(4)
        assert program.completes() == [index in range(8, 12) for index in range(24)]


def test_programs_are_values():
    assert leader(3) == leader(3) != leader(2)
    assert hash(ring(3)) == hash(ring(3))
    assert Program(2, 1, [I(0, 0, BOTH, BOTH)]) == Program(2, 1, (I(0, 0, BOTH, BOTH),))
    assert str(sharded(2)).count("reduces shard") == 2


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
