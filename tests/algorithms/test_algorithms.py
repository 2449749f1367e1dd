"""The algorithms that come with the package, the registry, and a user's own."""

import itertools
import random

import pytest
import torch
from programs import carry_out, is_allreduce, legal_order, sums
from reference import IN_RANK_ORDER, assert_same, noise, origin, reduced
from sweeps import one_in

import fastreduce
from fastreduce import Instruction, Program, allreduce
from fastreduce.algorithms import built_in, leader, names, registry, ring, sharded
from fastreduce.algorithms.registration import INTERNAL, name_of

RANKS = range(1, 34)


@pytest.fixture
def own_registry():
    before = dict(registry)
    yield
    registry.clear()
    registry.update(before)
    fastreduce._C.forget_schedules()


class TestBuiltIn:
    @pytest.mark.parametrize(("k", "name"), one_in(5, itertools.product(RANKS, names()), "cases"))
    def test_is_right(self, name, k):
        program = registry[name](k)
        program.verify()
        assert (program.k, program.buffers) == (k, k)
        if k <= 17:
            assert is_allreduce(program)

    @pytest.mark.parametrize("k", RANKS)
    def test_counts(self, k):
        assert [len(f(k).instructions) for f in (leader, sharded, ring)] == [1, k, 2 * k * (k - 1)]
        assert [f(k).shards for f in (leader, sharded, ring)] == [1, k, k]

    @pytest.mark.parametrize("k", RANKS)
    def test_leader_and_sharded_need_no_waits_and_reduce_in_rank_order(self, k):
        for program in (leader(k), sharded(k)):
            assert program.dependencies() == [()] * len(program.instructions)
            assert all(x.srcs == tuple(range(k)) for x in program.instructions)
        assert [x.rank for x in sharded(k).instructions] == list(range(k))

    @pytest.mark.parametrize("k", RANKS)
    def test_ring_pulls_from_the_left_neighbour_only(self, k):
        for rank, _, srcs, dsts in ring(k).instructions:
            assert dsts == (rank,)
            assert set(srcs) <= {rank, (rank - 1) % k}
        assert max(map(len, ring(k).dependencies()), default=0) <= 3

    @pytest.mark.parametrize("k", range(1, 17))
    def test_ring_in_thirty_random_legal_orders(self, k):
        program, choose = ring(k), random.Random(k)
        values = [choose.getrandbits(64) for _ in range(k)]
        waits = program.dependencies()
        for _ in range(30):
            for (_, shard), found in sums(program, values, legal_order(waits, choose)).items():
                assert found == sum(values) * (shard + 1)

    @pytest.mark.parametrize("name", names())
    @pytest.mark.parametrize("k", [2, 3, 5, 8])
    def test_sums_whatever_the_order_of_what_need_not_wait(self, name, k):
        program, choose = registry[name](k), random.Random(k)
        values = [choose.getrandbits(64) for _ in range(k)]
        for _ in range(10):
            order = legal_order(program.dependencies(), choose)
            for (_, shard), found in sums(program, values, order).items():
                assert found == sum(values) * (shard + 1)

    @pytest.mark.parametrize("name", names())
    def test_those_with_the_loops_bits_are_known(self, name):
        assert registry[name](12).in_rank_order() == (name in IN_RANK_ORDER)

    def test_are_listed(self):
        assert names() == [
            *("bidirectional", "by-parameter", "halving-doubling", "hierarchical", "host"),
            *("leader", "multi-ring", "naive", "ring", "sharded", "tree"),
        ]
        assert names() == sorted(registry)
        assert (registry["leader"], registry["ring"]) == (leader, ring)


def two_levels(k):
    """Pairs, then the pairs' first ranks, then back: an example of an algorithm by a user."""
    firsts = tuple(range(0, k, 2))
    pairs = [(r, r + 1) for r in firsts if r + 1 < k]
    return Program(
        k,
        1,
        [Instruction(a, 0, (a, b), (a,)) for a, b in pairs]
        + [Instruction(0, 0, firsts, firsts)]
        + [Instruction(b, 0, (a,), (b,)) for a, b in pairs],
    )


@pytest.mark.usefixtures("own_registry")
class TestOwn:
    @pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 8, 9])
    @pytest.mark.parametrize("op", ["sum", "avg", "max"])
    def test_runs_through_the_engine(self, k, op):
        fastreduce.algorithm("two-levels")(two_levels)
        tensors = origin(k, (5000,), torch.float32)
        wanted = reduced(op, tensors)
        allreduce(tensors, op, algorithm="two-levels")
        for tensor in tensors:
            assert_same(tensor, wanted)

    def test_adds_in_its_own_order(self):
        fastreduce.algorithm("two-levels")(two_levels)
        tensors = noise(4, (1000,), torch.float64)
        wanted = carry_out(two_levels(4), lambda b, s: tensors[b].clone(), _fold)
        allreduce(tensors, algorithm="two-levels")
        for rank, tensor in enumerate(tensors):
            assert_same(tensor, wanted[rank, 0])

    def test_is_built_and_verified_once_for_each_number_of_ranks(self, monkeypatch):
        asked, verified = [], []
        verify = Program.verify
        monkeypatch.setattr(
            Program, "verify", lambda self, *goal: verified.append(self.k) or verify(self, *goal)
        )
        fastreduce.algorithm("counted")(lambda k: asked.append(k) or two_levels(k))
        for k in (2, 3, 2, 3, 3):
            allreduce(origin(k, (4,), torch.float32), algorithm="counted")
        assert asked == verified == [2, 3]

    def test_a_wrong_one_is_refused_before_anything_is_written(self):
        @fastreduce.algorithm("forgets-rank-1")
        def wrong(k):
            return Program(k, 1, [Instruction(0, 0, (0, 2), (0, 1, 2))])

        tensors = origin(3, (4,), torch.float32)
        before = [x.clone() for x in tensors]
        for _ in range(2):  # a refusal is not remembered as an approval
            with pytest.raises(ValueError, match=r"forgets-rank-1.* 3 ranks .* rank 0 .* shard"):
                allreduce(tensors, algorithm="forgets-rank-1")
            for tensor, old in zip(tensors, before, strict=True):
                assert_same(tensor, old)

    def test_what_is_no_function_is_not_registered(self):
        with pytest.raises(TypeError, match="algorithm 'odd': found int, want a function"):
            fastreduce.algorithm("odd")(5)
        assert "odd" not in names()

    @pytest.mark.parametrize(
        ("returned", "words"),
        [
            (None, "'odd' returned NoneType for 2 ranks; want a Program"),
            ([], "'odd' returned list for 2 ranks"),
            (leader(3), "'odd': its program is for 3 ranks and 3 buffers; the call has 2 ranks"),
        ],
    )
    def test_one_that_returns_no_such_program_is_refused(self, returned, words):
        fastreduce.algorithm("odd")(lambda k: returned)
        with pytest.raises(ValueError, match=words) as caught:
            allreduce(origin(2, (4,), torch.float32), algorithm="odd")
        assert len(str(caught.value)) < 200

    @pytest.mark.parametrize("name", [*names(), *INTERNAL])
    def test_names_of_the_package_cannot_be_taken(self, name):
        """Under another's program plain ``allreduce(x)`` would have other bits."""
        with pytest.raises(ValueError, match=f"'{name}' is a name of fastreduce's own"):
            fastreduce.algorithm(name)(two_levels)
        tensors = noise(4, (1000,), torch.float32)
        wanted = reduced("sum", tensors)
        allreduce(tensors)
        assert_same(tensors[3], wanted)

    def test_one_of_ones_own_can_be_replaced(self):
        for root in (0, 1):
            fastreduce.algorithm("mine")(lambda k, root=root: two_levels(k))
        assert "mine" in names() and "mine" not in built_in()


class TestGivenInsteadOfAName:
    @pytest.mark.parametrize(
        "chosen", [ring, ring(4), two_levels, two_levels(4), lambda k: ring(k)]
    )
    def test_programs_and_functions(self, chosen):
        for _ in range(2):
            tensors = origin(4, (100,), torch.float32)
            wanted = reduced("sum", tensors)
            allreduce(tensors, algorithm=chosen)
            for tensor in tensors:
                assert_same(tensor, wanted)

    def test_run_with_their_own_bits(self):
        by_name, by_program = (noise(5, (1000,), torch.float32) for _ in range(2))
        allreduce(by_name, algorithm="ring")
        allreduce(by_program, algorithm=Program(5, 5, ring(5).instructions))
        assert_same(by_name[2], by_program[2])
        by_leader = noise(5, (1000,), torch.float32)
        allreduce(by_leader)
        with pytest.raises(AssertionError):
            assert_same(by_program[2], by_leader[2])

    def test_are_proven_first(self):
        tensors = origin(3, (4,), torch.float32)
        wrong = Program(3, 1, [Instruction(0, 0, (0, 2), (0, 1, 2))])
        with pytest.raises(ValueError, match="without the contribution of rank"):
            allreduce(tensors, algorithm=wrong)
        assert_same(tensors[1], origin(3, (4,), torch.float32)[1])

    def test_are_for_as_many_ranks_as_the_call_has(self):
        words = "^the program passed as algorithm=: its program is for 3 ranks .*; the call has 2"
        with pytest.raises(ValueError, match=words):
            allreduce(origin(2, (4,), torch.float32), algorithm=ring(3))

    @pytest.mark.parametrize("chosen", [3, None, ["ring"]], ids=str)
    def test_are_not_anything(self, chosen):
        with pytest.raises(TypeError, match=r"algorithm is .*; want a name, a Program, or a func"):
            allreduce(origin(2, (4,), torch.float32), algorithm=chosen)

    def test_equal_programs_are_one_and_old_ones_are_forgotten(self):
        first = name_of(Program(2, 1, leader(2).instructions))
        assert name_of(Program(2, 1, leader(2).instructions)) == first
        for i in range(300):
            name_of(lambda k, i=i: leader(k))
        assert name_of(leader(2)) != first


@pytest.mark.usefixtures("own_registry")
class TestOwnErrors:
    def test_what_it_raises_comes_through_with_its_name(self):
        @fastreduce.algorithm("even-only")
        def even_only(k):
            raise LookupError(f"no such ring for {k}")

        words = "algorithm 'even-only' raised for 3 ranks: LookupError.*no such ring for 3"
        with pytest.raises(ValueError, match=words) as caught:
            allreduce(origin(3, (4,), torch.float32), algorithm="even-only")
        assert isinstance(caught.value.__cause__, LookupError)

    def test_registering_again_replaces(self):
        fastreduce.algorithm("mine")(lambda k: None)
        with pytest.raises(ValueError, match="mine"):
            allreduce(origin(2, (4,), torch.float32), algorithm="mine")
        fastreduce.algorithm("mine")(leader)
        tensors = noise(3, (100,), torch.float32)
        by_leader, by_mine = ([x.clone() for x in tensors] for _ in range(2))
        allreduce(by_leader, algorithm="leader")
        allreduce(by_mine, algorithm="mine")
        assert_same(by_mine[0], by_leader[0])
        fastreduce.algorithm("mine")(lambda k: Program(k, 1, _from_the_last(k)))
        allreduce(tensors, algorithm="mine")
        with pytest.raises(AssertionError):
            assert_same(tensors[0], by_leader[0])

    def test_replaced_while_its_program_is_built(self):
        """As another thread could: the old program must not outlive the old function."""

        @fastreduce.algorithm("mine")
        def replaces_itself(k):
            fastreduce.algorithm("mine")(lambda k: Program(k, 1, _from_the_last(k)))
            return leader(k)

        tensors = noise(3, (100,), torch.float32)
        allreduce([x.clone() for x in tensors], algorithm="mine")
        found = [x.clone() for x in tensors]
        allreduce(found, algorithm="mine")
        assert_same(found[0], reduced("sum", tensors[::-1]))

    def test_the_decorator_leaves_the_function_as_it_is(self):
        assert fastreduce.algorithm("same")(two_levels) is two_levels
        assert "same" in names()

    @pytest.mark.parametrize("name", ["", "auto", None, 3, " ring", "ring\n", "a\nb"])
    def test_names_that_make_no_sense(self, name):
        with pytest.raises(ValueError, match="name"):
            fastreduce.algorithm(name)


def _fold(_, values):
    total = values[0].clone()
    for value in values[1:]:
        total = total + value
    return total


def _from_the_last(k):
    ranks = tuple(range(k))
    return [Instruction(0, 0, ranks[::-1], ranks)]
