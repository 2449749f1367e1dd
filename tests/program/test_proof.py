"""The proof of a program: what is right is accepted, what is wrong is refused, in words."""

import itertools
import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from programs import (
    any_programs,
    is_allreduce,
    right_program,
    right_programs,
)

from fastreduce import Instruction, Program
from fastreduce.algorithms import leader, names, registry, ring
from fastreduce.algorithms.collectives import goal
from fastreduce.algorithms.collectives import program as collective

randoms = st.randoms(use_true_random=False)

BUILT_IN = names()
I = Instruction  # noqa: E741
BOTH = (0, 1)


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
        Program(2, 1, [I(0, 0, BOTH, (0,)), I(0, 0, BOTH, BOTH)]),
        "rank 0 ends with shard 0 of its tensor counting the contribution of rank [1] more than",
    ),
    "nothing at all": (
        Program(3, 1, []),
        "rank 0 ends with shard 0 of its tensor without the contribution of rank [1, 2]",
    ),
    "no such rank": (Program(2, 1, [I(2, 0, BOTH, BOTH)]), "rank 2 is not one of 2"),
    "a rank below HOST": (Program(2, 1, [I(-2, 0, BOTH, BOTH)]), "rank -2 is not one of 2"),
    "no such shard": (Program(2, 1, [I(0, 1, BOTH, BOTH)]), "shard 1 is not one of 1"),
    "no such source": (Program(2, 1, [I(0, 0, (0, 2), BOTH)]), "buffer 2 does not exist"),
    "no such destination": (Program(2, 1, [I(0, 0, BOTH, (-1,))]), "buffer -1 does not exist"),
    "no source": (Program(2, 1, [I(0, 0, (), BOTH)]), "reads or writes nothing"),
    "no destination": (Program(2, 1, [I(0, 0, BOTH, ())]), "reads or writes nothing"),
    "a number as sources": (Program(2, 1, [I(0, 0, 0, BOTH)]), "srcs is 0, want a tuple"),
    "a list of destinations": (Program(2, 1, [I(0, 0, BOTH, [1])]), "dsts is [1], want a tuple"),
    "a word as a source": (Program(2, 1, [I(0, 0, ("0",), BOTH)]), "buffer '0' does not exist"),
    "no instruction": (Program(2, 1, [(0, 0, BOTH, BOTH)]), "want an Instruction"),
    "one source twice": (Program(2, 1, [I(0, 0, (0, 1, 1), BOTH)]), "reads one buffer twice"),
    "one destination twice": (Program(2, 1, [I(0, 0, BOTH, (1, 1))]), "writes one buffer twice"),
    "malformed says which": (
        Program(2, 1, [I(0, 0, BOTH, BOTH), I(1, 7, BOTH, BOTH)]),
        "instruction 1 (rank 1 reduces shard 7",
    ),
    "no shards": (Program(2, 0, []), "shard"),
    "fewer than no shards": (Program(2, -1, []), "shard"),
    "no ranks": (Program(0, 1, []), "rank"),
    "outputs, where results go back": (
        Program(2, 1, [I(0, 0, BOTH, (0, 1, 2, 3))], 4),
        "2 ranks, 4 buffers: want one buffer for each rank, because an allreduce leaves its",
    ),
    "a buffer more than two for each rank": (
        Program(2, 1, [I(0, 0, BOTH, BOTH)], 5),
        "2 ranks, 5 buffers: want one buffer for each rank, or two where results lie in other",
    ),
    "fewer buffers than ranks": (Program(2, 1, [I(0, 0, (0,), (0,))], 1), "2 ranks, 1 buffers: wa"),
    "fewer than no buffers": (Program(2, 1, [], -1), "-1 buffers: want at least one of each"),
    "more buffers than are counted": (
        Program(1 << 30, 1, [], 1 << 31),
        "2147483648 buffers: want at least one of each, at most",
    ),
    "flags for numbers": (
        Program(True, True, [I(0, 0, (0,), (0,))]),
        "k is True, shards is True, buffers is True: want whole numbers",
    ),
    "a flag for a number of slices": (
        Program(2, 1, [I(0, 0, BOTH, BOTH)], sliced=True),
        "sliced is True, want 1 or more",
    ),
}


@pytest.mark.parametrize("program", [x for x, _ in REFUSED.values()], ids=REFUSED)
def test_what_is_refused_can_be_printed(program):
    assert len(str(program).splitlines()) == 1 + len(program.instructions)


@pytest.mark.parametrize(("program", "words"), REFUSED.values(), ids=REFUSED)
def test_what_verify_says(program, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        program.verify()


@pytest.mark.parametrize("k", [63, 64, 65, 128])
def test_where_sets_of_ranks_fill_whole_words(k):
    """The proof keeps 64 ranks in a word, and one bit more for what an output held."""
    ring(k).verify()
    collective("all_gather", k).verify(goal("all_gather", k))
    steps = list(leader(k).instructions)
    steps[0] = steps[0]._replace(srcs=tuple(range(k - 1)))
    twice = [I(0, 0, (0, k - 1), (0,)), *leader(k).instructions]
    for wrong, words in (
        (Program(k, 1, steps), f"rank 0 ends .* without the contribution of rank [{k - 1}]"),
        (Program(k, 1, twice), f"rank [{k - 1}] more than"),
    ):
        with pytest.raises(ValueError, match=words.replace("[", r"\[")):
            wrong.verify()
    reads_output = [I(r, r, (r, k + r), (k + r,)) for r in range(k)]
    with pytest.raises(ValueError, match="what an output held"):
        Program(k, k, reads_output, 2 * k).verify(
            lambda buffer, shard: frozenset([buffer % k]) if buffer == k + shard else None
        )


def test_what_verify_says_of_other_goals():
    with pytest.raises(ValueError, match=r"rank 1 ends with shard 0 .* rank \[0\], .* not wanted"):
        leader(2).verify(goal("reduce", 2))
    reads_output = Program(2, 2, [I(r, r, (0, 1, 2 + r), (2 + r,)) for r in (0, 1)], 4)
    with pytest.raises(ValueError, match=r"rank 0 ends with .* what an output held"):
        reads_output.verify(goal("reduce_scatter", 2))
