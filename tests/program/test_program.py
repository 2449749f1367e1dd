"""A program's dependencies, and where its averages divide."""

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import (
    any_programs,
    averages,
    history,
    legal_order,
    right_programs,
    sums,
)

from fastreduce import Instruction, Program, draw
from fastreduce.algorithms import leader, names, registry, ring, sharded, tree

randoms = st.randoms(use_true_random=False)

BUILT_IN = names()
I = Instruction  # noqa: E741
BOTH = (0, 1)


def conflict(one, other):
    """One of them writes what the other reads or writes."""
    touched = {*one.srcs, *one.dsts}, {*other.srcs, *other.dsts}
    shared = {*one.dsts} & touched[1] or {*other.dsts} & touched[0]
    return one.shard == other.shard and bool(shared)


def move(src, *dsts, shard=0):
    return I(0, shard, (src,), dsts)


# Instructions, and for each those that it waits for.
WAITS = {
    "a reader, for the last writer": ([move(0, 1), move(1, 2)], [(), (0,)]),
    "not for the writer before": (
        [move(0, 1), move(2, 1), move(1, 3)], [(), (0,), (1,)]),
    "a writer, for the reader before": ([move(1, 0), move(2, 1)], [(), (0,)]),
    "a writer, for two unordered readers": (
        [move(1, 0), move(1, 2), move(3, 1)], [(), (), (0, 1)]),
    "a writer, for three": (
        [move(1, 0), move(1, 2), move(1, 3), move(4, 1)], [(), (), (), (0, 1, 2)]),
    "a writer, for the writer and all readers since": (
        [move(0, 1), move(1, 2), move(1, 3), move(4, 1)], [(), (0,), (0,), (0, 1, 2)]),
    "not for the readers before that writer": (
        [move(1, 0), move(2, 1), move(3, 1)], [(), (0,), (1,)]),
    "a writer, for the writer alone": ([move(0, 1), move(2, 1)], [(), (0,)]),
    "readers, not for each other": ([move(0, 1), move(0, 2), move(0, 3)], [(), (), ()]),
    "of several sources, for the writer of each": (
        [move(0, 1), move(2, 3), I(0, 0, (1, 3), (4,))], [(), (), (0, 1)]),
    "of several destinations, for the readers of each": (
        [move(1, 0), move(2, 3), move(4, 1, 2)], [(), (), (0, 1)]),
    "one that reads what it writes, not for itself": (
        [I(0, 0, (0, 1), (0,)), I(0, 0, (0, 1), (0,))], [(), (0,)]),
    "one that reads what it writes is a reader too": (
        [move(1, 2), I(0, 0, (0, 1), (1,)), move(1, 3)], [(), (0,), (1,)]),
    "another shard, not": ([move(0, 1), move(1, 2, shard=1), move(1, 2)], [(), (), (0,)]),
    "by whichever rank": ([I(0, 0, (0,), (1,)), I(1, 0, (1,), (0,))], [(), (0,)]),
}  # fmt: skip


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

    @given(any_programs() | right_programs)
    def test_order_all_that_conflict(self, program):
        waits = program.dependencies()
        for later, other in enumerate(program.instructions):
            before = _ancestors(waits, later)
            for earlier, one in enumerate(program.instructions[:later]):
                if conflict(one, other):
                    assert earlier in before

    @pytest.mark.parametrize("name", WAITS)
    def test_by_name(self, name):
        steps, waits = WAITS[name]
        k = 1 + max(b for x in steps for b in (*x.srcs, *x.dsts))
        assert Program(k, 2, steps).dependencies() == waits

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


@pytest.mark.parametrize("sliced", ["3", 2.5, 0])
def test_wrong_numbers_of_slices_are_refused(sliced):
    program = Program(2, 1, [I(0, 0, (0, 1), (0, 1))], sliced=sliced)
    with pytest.raises(ValueError, match=f"sliced is {sliced!r}, want 1 or more, at most 1,073,7"):
        program.verify()


class TestSlices:
    SIZES = st.integers(0, 1 << 40)

    @given(any_programs() | right_programs, SIZES)
    def test_are_1_to_64_unless_the_program_asks_for_a_number(self, program, nbytes):
        assert 1 <= program.slices(nbytes) <= 64
        assert replace(program, sliced=300).slices(nbytes) == 300

    @staticmethod
    def check_idle_shards(program, shards):
        """As many slices as the root of the idle bytes, in units of 256 KiB, says."""
        for slices in (1, 8, 60):
            nbytes = slices**2 * (256 << 10) * program.shards // max(shards, 1)
            assert program.slices(nbytes) == (slices if shards else 1)

    @pytest.mark.parametrize("name", sorted({*BUILT_IN} - {"tree"}))
    @pytest.mark.parametrize("k", [2, 4, 8])
    def test_are_not_needed_where_some_rank_always_works(self, name, k):
        assert registry[name](k).slices(1 << 40) == 1

    def test_by_hand(self):
        """Rank 0 sums, rank 1 fetches the sum, rank 2 fetches it from rank 1: in turn 2 + 1 + 1
        shards pass a port, at once the 2 that reach rank 0. Each rank has one launch."""
        steps = [I(0, 0, (0, 1, 2), (0,)), I(1, 0, (0,), (1,)), I(2, 0, (1,), (2,))]
        program = Program(3, 1, steps)
        program.verify()
        self.check_idle_shards(program, 4 - 2)

    @pytest.mark.parametrize(
        ("steps", "shards"),
        [
            # One after the other pass two shards, and at once one.
            ([I(1, 0, (0,), (1,)), I(2, 0, (1,), (2,))], 2 - 1),
            # What rank 2 gets in the second step is not added to what it got in the first.
            ([I(0, 0, (0,), (2,)), I(1, 0, (1,), (2,))], 2 - 2),
        ],
    )
    def test_where_one_instruction_alone_waits(self, steps, shards):
        program = Program(3, 1, steps)
        assert program.dependencies() == [(), (0,)]
        self.check_idle_shards(program, shards)

    def test_follow_the_root_of_the_size(self):
        """In a tree of 8 a rank has 3 launches and waits in 6 more, for 2 shards per launch."""
        self.check_idle_shards(tree(8), 2)
        found = [tree(8).slices(size << 20) for size in (0, 1, 2, 8, 32, 128, 512, 1 << 20)]
        assert found == [1, 3, 4, 8, 16, 32, 64, 64]


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


def test_instructions_that_are_no_list_are_refused():
    with pytest.raises(TypeError, match="instructions is 0, want a list of Instruction"):
        Program(2, 1, 0)


@pytest.mark.parametrize("numbers", [("2", 1), (2.0, 1), (2, None), (True, 1)])
def test_ranks_and_shards_are_whole_numbers(numbers):
    with pytest.raises(ValueError, match="want whole numbers"):
        Program(*numbers, [I(0, 0, (0,), (1,))]).verify()


@pytest.mark.parametrize("numbers", [(2, 1 << 30), (1 << 30, 1)])
@pytest.mark.parametrize("ask", [Program.dependencies, Program.launches, Program.completes, draw])
def test_far_more_ranks_or_shards_than_are_used_are_refused(ask, numbers):
    """Each would take gigabytes."""
    with pytest.raises(ValueError, match=r"want each of them read or written, .* write 4 shards"):
        ask(Program(*numbers, [I(0, 0, BOTH, BOTH)]))


@pytest.mark.parametrize(
    "step",
    [
        I(False, 0, BOTH, BOTH),
        I(0, False, BOTH, BOTH),
        I(0, 0, (False, 1), BOTH),
        I(0, 0, BOTH, (0, True)),
    ],
)
def test_a_flag_in_an_instruction_is_no_number(step):
    with pytest.raises(TypeError, match=r"instruction 0 .* want integers and tuples of integers"):
        Program(2, 1, [step]).verify()


def test_the_form_is_checked_whatever_the_goal():
    Program(2, 1, [I(0, 0, (0,), (1,))]).check_form()
    with pytest.raises(ValueError, match="shard 5 is not one of 1"):
        Program(2, 1, [I(0, 5, (0,), (1,))]).check_form()
