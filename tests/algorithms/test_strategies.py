"""What makes each algorithm that algorithm: who moves what, in how many steps, over which links."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import assert_same, noise, origin, reduced

import fastreduce
from fastreduce import HOST, Program, allreduce
from fastreduce.algorithms import (
    bidirectional,
    by_parameter,
    halving_doubling,
    hierarchical,
    host,
    leader,
    multi_ring,
    naive,
    registry,
    ring,
    sharded,
    tree,
)
from fastreduce.algorithms.multi_ring import BUSY, MOST_PARTS, _parts

RANKS = range(1, 34)


def depth(program):
    """Steps, one after the other, of the longest chain of instructions that wait for each other."""
    depths = []
    for waits in program.dependencies():
        depths.append(1 + max((depths[i] for i in waits), default=0))
    return max(depths, default=0)


def pulled_from(program, rank):
    return {src for x in program.instructions if x.rank == rank for src in x.srcs} - {rank}


def shards_moved(program):
    """Shards that pass from one rank to another, in units of a rank's whole buffer."""
    moved = sum(
        len(set(x.srcs) - {x.rank}) + len(set(x.dsts) - {x.rank}) for x in program.instructions
    )
    return moved / program.shards


@pytest.mark.parametrize("k", RANKS)
def test_naive_is_the_loop(k):
    program = naive(k)
    assert [x.rank for x in program.instructions] == [0] * (2 * (k - 1))
    assert [x.srcs for x in program.instructions[: k - 1]] == [(0, r) for r in range(1, k)]
    tensors = noise(k, (999,), torch.float64)
    wanted = reduced("sum", tensors)
    allreduce(tensors, algorithm="naive")
    assert_same(tensors[-1], wanted)


@pytest.mark.parametrize("k", RANKS)
def test_tree_and_halving_doubling_take_two_log_steps(k):
    log = (k - 1).bit_length()
    assert depth(tree(k)) <= 2 * log
    power = 1 << (k.bit_length() - 1)
    extra = 2 if power < k else 0
    # A copy that overwrites waits for those that still read: at most one step more.
    assert depth(halving_doubling(k)) <= 2 * (power.bit_length() - 1) + extra + 1
    assert depth(ring(k)) >= 2 * (k - 1)


@pytest.mark.parametrize("name", ["leader", "naive", "tree", "sharded", "ring", "bidirectional"])
@pytest.mark.parametrize("k", [2, 3, 8, 13])
def test_bytes_over_links_are_the_least_that_an_allreduce_needs(name, k):
    assert shards_moved(registry[name](k)) == pytest.approx(2 * (k - 1))


@pytest.mark.parametrize("k", [2, 4, 8, 32])
def test_halving_doubling_moves_no_more_where_the_ranks_are_a_power_of_two(k):
    assert shards_moved(halving_doubling(k)) == pytest.approx(2 * (k - 1))


@pytest.mark.parametrize("k", [3, 8, 13])
def test_bidirectional_uses_both_directions_in_one_launch(k):
    program = bidirectional(k)
    assert pulled_from(program, 0) == {k - 1, 1}
    assert all(len(launch) == 2 for launch in program.launches())
    assert depth(program) == depth(ring(k))


class TestByParameter:
    def test_every_rank_owns_every_kth_tensor(self):
        program = by_parameter(3)
        assert program.whole_tensors
        assert "shards of whole tensors" in str(program)

    def test_runs_with_more_and_with_fewer_tensors_than_ranks(self):
        for count in (1, 2, 7):
            lists = [[x * (i + 1) for i in range(count)] for x in origin(3, (130,), torch.int64)]
            wanted = [reduced("sum", [rank[i] for rank in lists]) for i in range(count)]
            allreduce(lists, algorithm="by-parameter")
            for rank in lists:
                for found, want in zip(rank, wanted, strict=True):
                    assert_same(found, want)

    def test_control_an_owner_that_is_missing_shows(self):
        one_owner = Program(2, 2, by_parameter(2).instructions[:1], whole_tensors=True)
        with pytest.raises(ValueError, match="shard 1"):
            one_owner.verify()


def test_host_executes_on_the_host():
    assert [x.rank for x in host(4).instructions] == [HOST]
    host(4).verify()
    assert "the host reduces" in str(host(4))


class TestMultiRing:
    BOOK = (((0, 1, 2, 3, 4, 5, 6, 7), 36e9), ((0, 3, 5, 2, 4, 7, 1, 6), 18e9))

    def test_shares_follow_the_bandwidth(self):
        program = multi_ring(8, self.BOOK)
        program.verify()
        assert program.shards == 24
        steps = list(zip(self.BOOK[1][0], (*self.BOOK[1][0][1:], 0), strict=True))
        for x in program.instructions:
            if x.shard >= 16:  # the last third: the ring of single bandwidth
                assert (x.srcs[0], x.rank) in steps

    def test_all_rings_run_at_once(self):
        assert all(len(launch) == 3 for launch in multi_ring(8, self.BOOK).launches())
        assert depth(multi_ring(8, self.BOOK)) == depth(ring(8))

    @pytest.mark.parametrize(
        ("bandwidths", "parts"),
        [
            ((36e9, 18e9), (2, 1)),
            ((1.0, 1.0, 1.0), (1, 1, 1)),
            ((1.0, 0.7), (10, 7)),
            ((1e11, 1e11 + 1e5), (1, 1)),  # almost equal
            ((1e11, 1e5), (1, 0)),  # almost nothing: whole multiples of it filled all memory
            ((1.0, 0.05), (20, 1)),
            ((1.0, 0.01), (1, 0)),
        ],
    )
    def test_shares_are_small_whole_numbers(self, bandwidths, parts):
        order = (0, 1, 2)
        program = multi_ring(3, [(order, bandwidth) for bandwidth in bandwidths])
        assert program.shards == 3 * sum(parts)

    @given(st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=4))
    def test_rings_carry_nearly_what_they_could(self, bandwidths):
        """All of the data takes as long as the ring that ends last."""
        parts = _parts(bandwidths)
        ends = max(n / bandwidth for n, bandwidth in zip(parts, bandwidths, strict=True))
        carried = sum(parts) / ends / sum(bandwidths)
        assert 1 <= max(parts) <= MOST_PARTS
        assert carried >= min(BUSY, 1 - len(parts) / MOST_PARTS)

    @pytest.mark.parametrize("k", [5, 7, 8, 9, 32])
    def test_by_default_two_rings_without_a_common_link(self, k):
        assert len(pulled_from(multi_ring(k), 0)) == 2

    @pytest.mark.parametrize(
        "rings",
        [[((0, 1), 1.0)], [((0, 1, 1), 1.0)], [((0, 1, 2), 0.0)], [((0, 2, 3), 1.0)]]
        + [[((0, 1, 2), bandwidth)] for bandwidth in (math.inf, math.nan)],
    )
    def test_what_is_no_ring_is_refused(self, rings):
        with pytest.raises(ValueError, match="want each of 3 ranks once"):
            multi_ring(3, rings)


class TestHierarchical:
    INSIDE = (sharded, leader, ring, tree, halving_doubling, naive, bidirectional)

    @pytest.mark.parametrize("inside", INSIDE, ids=lambda f: f.__name__)
    @pytest.mark.parametrize("between", [*INSIDE, host], ids=lambda f: f.__name__)
    def test_any_inside_with_any_between(self, inside, between):
        for k, machines in ((12, 3), (10, 5), (6, 1), (6, 6), (1, 1)):
            hierarchical(k, machines, inside, between).verify()

    def test_each_rank_sends_its_share_between_machines(self):
        program = hierarchical(8, machines=2)
        across = [x for x in program.instructions if any(src // 4 != x.rank // 4 for src in x.srcs)]
        assert {x.rank for x in across} == set(range(8))
        assert all(x.rank % 4 == src % 4 for x in across for src in x.srcs)
        assert len(across) / program.shards * 4 == pytest.approx(2 * 4)

    def test_fetches_from_all_the_others_in_one_launch(self):
        last = hierarchical(8, machines=2).launches()[-1]
        assert len(last) == 3 * 2

    @pytest.mark.parametrize("machines", [0, 3, 8, 2.0, True])
    def test_unequal_machines_are_refused(self, machines):
        with pytest.raises(ValueError, match="4 ranks do not divide"):
            hierarchical(4, machines)

    def test_runs_as_an_algorithm_of_ones_own(self, request):
        request.addfinalizer(lambda: registry.pop("two machines", None))
        fastreduce.algorithm("two machines")(lambda k: hierarchical(k, 2, ring, tree))
        tensors = origin(6, (1000,), torch.float32)
        wanted = reduced("sum", tensors)
        allreduce(tensors, algorithm="two machines")
        assert_same(tensors[5], wanted)
