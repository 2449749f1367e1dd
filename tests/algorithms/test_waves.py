"""Waves change when an instruction runs, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import right_program

from fastreduce.algorithms import hierarchical, ring, tree
from fastreduce.algorithms.waves import in_waves, staggered


def by_shard(program):
    found = [[] for _ in range(program.shards)]
    for x in program.instructions:
        found[x.shard].append(x._replace(shard=0))
    return found


@given(randoms=st.randoms(use_true_random=False), waves=st.integers(1, 4))
def test_each_part_is_the_program_and_proves(randoms, waves):
    whole = right_program(randoms, randoms.randint(2, 4), randoms.randint(1, 3))
    found = in_waves(whole, waves)
    found.verify()
    # Instructions that do not wait for each other may change places.
    for part, shard in enumerate(by_shard(found)):
        assert sorted(shard) == sorted(by_shard(whole)[part % whole.shards])


def test_a_rank_starts_the_steps_of_all_waves_in_one_launch():
    found = in_waves(ring(3), 3)
    assert len(found.launches()) == 3 * (4 + 2)  # ranks, steps, and rounds until the last begins
    assert max(map(len, found.launches())) == 3


def test_programs_side_by_side_prove():
    found = staggered([ring(4), tree(4)], [(0, 0), (1, 5), (1, 2)])
    found.verify()
    assert found.shards == 4 + 1 + 1


def test_the_steps_of_a_ring():
    assert set(ring(4).steps()) == set(range(6))


def test_hierarchical_in_waves():
    found = hierarchical(8, 2, waves=3)
    found.verify()
    assert found == in_waves(hierarchical(8, 2), 3)
    with pytest.raises(ValueError, match="0 waves: want at least 1"):
        hierarchical(8, 2, waves=0)
