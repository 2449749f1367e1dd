"""What autograd is told: version counters of what was written, and refusals in torch's words."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.testing._internal.two_tensor import TwoTensor

from fastreduce import all_gather, allreduce, broadcast, reduce, reduce_scatter


def ones(*shape, **options):
    return torch.ones(*shape, **options)


def fresh(k, size=4):
    return [ones(size) for _ in range(k)]


# By call: which ranks' short tensors it writes, and which ranks' long ones.
ALL, NONE = [1, 1, 1], [0, 0, 0]
WRITTEN = {
    "allreduce": (lambda short, long: allreduce(short), ALL, NONE),
    "reduce": (lambda short, long: reduce(short, root=1), [0, 1, 0], NONE),
    "broadcast": (lambda short, long: broadcast(short, root=1), [1, 0, 1], NONE),
    "reduce_scatter": (lambda short, long: reduce_scatter(short, long), ALL, NONE),
    "all_gather": (lambda short, long: all_gather(long, short), NONE, ALL),
}
# A tensor of so many elements, and by how much its version rises where it is written.
LAYOUTS = {
    "contiguous": (ones, 1),
    "a part": (lambda n: ones(n + 2)[1:-1], 1),
    "every other": (lambda n: ones(2 * n)[::2], 2),
    "negative": (lambda n: torch._neg_view(ones(n)), 2),
    "conjugate": (lambda n: ones(n, dtype=torch.complex64).conj(), 2),
}


class TestVersionCounters:
    def test_a_saved_tensor_that_was_reduced_is_found_out(self):
        weight = ones(3, requires_grad=True)
        saved = [ones(3), ones(3)]
        loss = (weight * saved[0]).sum()
        allreduce(saved)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()

    def test_control_an_untouched_one_is_not(self):
        weight = ones(3, requires_grad=True)
        saved = [ones(3), ones(3)]
        (weight * saved[0].clone()).sum().backward()
        loss = (weight * saved[0]).sum()
        allreduce([ones(3), ones(3)])
        loss.backward()
        assert weight.grad.tolist() == [2.0] * 3

    @pytest.mark.parametrize("name", WRITTEN)
    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_of_what_is_written_and_of_nothing_else(self, layout, name):
        """A copy that is written back counts once more."""
        view, each = LAYOUTS[layout]
        call, of_short, of_long = WRITTEN[name]
        short = [[view(4), view(4)] for _ in range(3)]
        long = [[view(12), view(12)] for _ in range(3)]
        before = [[x._version for x in rank] for rank in short + long]
        for times in (1, 2):
            call(short, long)
            for rank, old, is_written in zip(short + long, before, of_short + of_long, strict=True):
                found = [x._version - version for x, version in zip(rank, old, strict=True)]
                assert found == [times * each * is_written] * 2

    @pytest.mark.parametrize("name", WRITTEN)
    def test_by_the_dispatcher_they_are_the_same(self, name):
        call, of_short, of_long = WRITTEN[name]
        short = [[TwoTensor(ones(4), ones(4))] for _ in range(3)]
        long = [[TwoTensor(ones(12), ones(12))] for _ in range(3)]
        call(short, long)
        for (found,), is_written in zip(short + long, of_short + of_long, strict=True):
            assert found._version == is_written

    def test_not_after_an_error(self):
        tensors = [ones(3), ones(4)]
        with pytest.raises(ValueError, match="shape"):
            allreduce(tensors)
        assert [x._version for x in tensors] == [0, 0]


class TestLeaves:
    def test_are_refused_in_grad_mode_in_torchs_words(self):
        leaves = [ones(3, requires_grad=True) for _ in range(2)]
        with pytest.raises(RuntimeError) as by_torch:
            leaves[0].add_(1)
        words = str(by_torch.value).removesuffix(".")
        with pytest.raises(RuntimeError, match=words):
            allreduce(leaves)
        assert leaves[0].tolist() == [1.0] * 3

    def test_are_taken_under_no_grad(self):
        leaves = [torch.nn.Parameter(ones(3)) for _ in range(2)]
        with torch.no_grad():
            allreduce(leaves)
        assert leaves[1].tolist() == [2.0] * 3
        assert leaves[1].requires_grad and leaves[1].is_leaf

    def test_are_taken_where_they_are_only_read(self):
        leaves = [ones(4, requires_grad=True) for _ in range(2)]
        reduce([ones(4), leaves[0]], root=0)
        broadcast([leaves[0], ones(4)], root=0)
        outputs = [ones(2), ones(2)]
        reduce_scatter(outputs, leaves)
        assert outputs[0].tolist() == [2.0, 2.0]
        assert not outputs[0].requires_grad

    def test_those_of_a_middle_rank_are_seen_too(self):
        tensors = [ones(3), ones(3, requires_grad=True), ones(3)]
        with pytest.raises(RuntimeError, match="rank 1, tensor 0"):
            allreduce(tensors)

    def test_results_of_operations_are_refused_too(self):
        tensors = [ones(3, requires_grad=True) * 2 for _ in range(2)]
        with pytest.raises(RuntimeError, match=r"requires grad.*no_grad"):
            allreduce(tensors)
        allreduce([x.detach() for x in tensors])
        assert tensors[0].tolist() == [4.0] * 3


@pytest.mark.parametrize(("rank", "index"), [(0, 0), (1, 1)])
def test_dual_numbers_are_refused(rank, index):
    """Their tangents would keep what they were before the sum."""
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(ones(3), ones(3))
        ranks = [[ones(3), ones(3)], [ones(3), ones(3)]]
        ranks[rank][index] = dual
        with pytest.raises(RuntimeError, match=rf"rank {rank}, tensor {index} .*tangent"):
            allreduce(ranks)
        assert forward_ad.unpack_dual(dual).primal.tolist() == [1.0] * 3


def test_gradients_of_replicas():
    """What the call is for: after it each replica holds the gradient of the whole batch."""
    torch.manual_seed(0)
    models = [torch.nn.Linear(5, 3).double() for _ in range(4)]
    for model in models:
        model.load_state_dict(models[0].state_dict())
    alone, *replicas = models
    batch = torch.randn(12, 5, dtype=torch.float64)
    alone(batch).square().sum().backward()
    for model, part in zip(replicas, batch.chunk(3), strict=True):
        model(part).square().sum().backward()
    gradients = [[p.grad for p in model.parameters()] for model in replicas]
    allreduce(gradients)
    for of_replica in gradients:
        assert all(map(torch.equal, of_replica, gradients[0]))
    for found, p in zip(gradients[0], alone.parameters(), strict=True):
        torch.testing.assert_close(found, p.grad, rtol=1e-12, atol=1e-12)  # another order of sums


class TestInferenceMode:
    def test_its_tensors_are_taken_within(self):
        with torch.inference_mode():
            tensors = fresh(2)
            allreduce(tensors)
            assert tensors[0].tolist() == [2.0] * 4

    def test_and_refused_outside_in_torchs_words(self):
        with torch.inference_mode():
            tensors = fresh(2)
        with pytest.raises(RuntimeError, match="Inplace update to inference tensor outside"):
            allreduce(tensors)
        assert tensors[0].tolist() == [1.0] * 4

    def test_may_be_read_outside(self):
        with torch.inference_mode():
            tensors = fresh(2)
        outputs = [ones(2), ones(2)]
        reduce_scatter(outputs, tensors)
        assert outputs[1].tolist() == [2.0, 2.0]
