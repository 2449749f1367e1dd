"""k replicas are one model: the same update as one replica, whatever the split."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import fastreduce
from fastreduce.training import (
    ReplicasDiffer,
    accuracy,
    check_replicas,
    get_params,
    initial_params,
    lenet,
    loop_allreduce,
    sgd,
    split_batch,
    train_batch,
)

Allreduce = Callable[[list[list[Tensor]]], None]


@pytest.mark.parametrize(
    ("rows", "replicas", "sizes"),
    [
        (6, 2, [3, 3]),
        (7, 2, [4, 3]),
        (256, 3, [86, 85, 85]),
        (2, 4, [1, 1, 0, 0]),
        (1, 1, [1]),
        (0, 2, [0, 0]),
    ],
)
def test_a_split_deals_each_row_once_in_order(rows, replicas, sizes):
    X, y = torch.arange(rows * 2).view(rows, 2), torch.arange(rows)
    X_shards, y_shards = split_batch(X, y, ["cpu"] * replicas)
    assert [len(shard) for shard in X_shards] == [len(shard) for shard in y_shards] == sizes
    assert torch.equal(torch.cat(X_shards), X)
    assert torch.equal(torch.cat(y_shards), y)


@pytest.mark.parametrize(
    ("rows_of_X", "rows_of_y", "devices", "words"),
    [(2, 2, [], "no device"), (3, 2, ["cpu"], "3 rows of X and 2 of y")],
)
def test_a_split_that_makes_no_sense_is_an_error(rows_of_X, rows_of_y, devices, words):
    with pytest.raises(ValueError, match=words):
        split_batch(torch.zeros(rows_of_X), torch.zeros(rows_of_y), devices)


def test_a_step_on_an_empty_batch_is_an_error():
    X, y = torch.zeros(0, 1, 28, 28), torch.zeros(0, dtype=torch.int64)
    with pytest.raises(ValueError, match="train_batch: found an empty batch, wanted at least one"):
        train_batch(X, y, [get_params(initial_params(), "cpu")], ["cpu"], lr=0.1)


def trained(replicas: int, allreduce: Allreduce, *, batch: int = 7) -> list[list[Tensor]]:
    """The replicas after four steps in float64, from parameters that all have gradients."""
    generator = torch.Generator().manual_seed(1)
    params = [10 * p for p in initial_params(generator, dtype=torch.float64)]
    device_params = [get_params(params, "cpu") for _ in range(replicas)]
    for _ in range(4):
        X = torch.rand(batch, 1, 28, 28, generator=generator, dtype=torch.float64)
        y = torch.randint(10, (batch,), generator=generator)
        train_batch(X, y, device_params, ["cpu"] * replicas, lr=0.5, allreduce=allreduce)
    return device_params


def largest_difference(one: list[Tensor], other: list[Tensor]) -> float:
    return max((a - b).abs().max().item() for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("allreduce", [fastreduce.allreduce, loop_allreduce])
@pytest.mark.parametrize(("replicas", "batch"), [(2, 7), (3, 7), (4, 7), (4, 3), (2, 1)])
def test_k_replicas_end_with_the_parameters_of_one(replicas, batch, allreduce):
    [alone] = trained(1, allreduce, batch=batch)
    together = trained(replicas, allreduce, batch=batch)
    check_replicas(together)
    assert largest_difference(alone, together[0]) < 1e-10


def test_control_without_an_allreduce_they_do_not():
    [alone] = trained(1, fastreduce.allreduce)
    apart = trained(2, lambda gradients: None)
    assert largest_difference(alone, apart[0]) > 1e-4
    with pytest.raises(ReplicasDiffer):
        check_replicas(apart)


def test_every_parameter_is_moved_by_training():
    [once] = trained(1, fastreduce.allreduce)
    begin = [10 * p for p in initial_params(torch.Generator().manual_seed(1), dtype=torch.float64)]
    assert all((a - b).abs().max() > 1e-6 for a, b in zip(once, begin, strict=True))


def test_a_step_is_one_call_with_all_gradients_of_all_replicas():
    calls = []

    def count(gradients: list[list[Tensor]]) -> None:
        calls.append([[g.shape for g in replica] for replica in gradients])
        fastreduce.allreduce(gradients)

    trained(3, count)
    assert calls == [[[p.shape for p in initial_params()]] * 3] * 4


def test_the_call_and_the_loop_give_the_same_bits():
    called, looped = trained(3, fastreduce.allreduce), trained(3, loop_allreduce)
    check_replicas([called[0], looped[0]])


def test_the_losses_of_the_shards_add_up_to_the_batch_s():
    X, y = torch.rand(5, 1, 28, 28), torch.arange(5)
    params = initial_params()
    replicas = [get_params(params, "cpu") for _ in range(2)]
    expected = torch.nn.functional.cross_entropy(lenet(X, replicas[0]), y, reduction="sum")
    losses = train_batch(X, y, replicas, ["cpu"] * 2, lr=0.1)
    assert not any(value.requires_grad for value in losses)
    torch.testing.assert_close(sum(losses), expected.detach())


def test_sgd_is_torch_s_on_the_mean_gradient():
    w, gradient = torch.randn(5, requires_grad=True), torch.randn(5)
    own = w.detach().clone()
    sgd([own], [gradient], lr=0.3, batch_size=4)
    w.grad = gradient / 4
    torch.optim.SGD([w], lr=0.3).step()
    torch.testing.assert_close(own, w.detach())


def constant(label: int) -> list[Tensor]:
    """A model that gives every image this label."""
    return [*(torch.zeros_like(p) for p in initial_params()[:7]), torch.eye(10)[label]]


@pytest.mark.parametrize("batch_size", [1, 2, 100])
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_accuracy_counts_each_image_once(replicas, batch_size):
    X, y = torch.zeros(7, 1, 28, 28, dtype=torch.uint8), torch.tensor([3, 1, 3, 3, 2, 0, 3])
    found = accuracy(X, y, [constant(3)] * replicas, ["cpu"] * replicas, batch_size=batch_size)
    assert found == 4 / 7


def test_accuracy_is_of_all_replicas_each_on_its_part():
    X, y = torch.zeros(4, 1, 28, 28), torch.tensor([3, 3, 3, 3])
    assert accuracy(X, y, [constant(3), constant(5)], ["cpu"] * 2) == 0.5
    with pytest.raises(ValueError, match="no image"):
        accuracy(X[:0], y[:0], [constant(3)], ["cpu"])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("first", "other", "same"),
    [
        ([1.0, 2.0], [1.0, 2.0], True),
        ([1.0, float("nan")], [1.0, float("nan")], True),
        ([1.0, 2.0], [1.0, 2.03125], False),
        ([1.0, 0.0], [1.0, -0.0], False),
    ],
)
def test_replicas_are_compared_bit_by_bit(dtype, first, other, same):
    replicas = [
        [torch.zeros(2, dtype=dtype), torch.tensor(values, dtype=dtype)]
        for values in (first, first, other)
    ]
    if same:
        check_replicas(replicas)
    else:
        words = "replica 2, parameter 1: found 1 of 2 elements"
        with pytest.raises(ReplicasDiffer, match=words):
            check_replicas(replicas)
