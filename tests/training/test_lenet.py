"""The model is the book's."""

import pytest
import torch
from torch import nn

from fastreduce.training import get_params, initial_params, lenet, loss


def test_it_computes_what_the_same_layers_of_torch_compute():
    params = initial_params(torch.Generator().manual_seed(0), dtype=torch.float64)
    reference = nn.Sequential(
        *(nn.Conv2d(1, 20, 3), nn.ReLU(), nn.AvgPool2d(2)),
        *(nn.Conv2d(20, 50, 5), nn.ReLU(), nn.AvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(800, 128), nn.ReLU(), nn.Linear(128, 10)),
    ).double()
    with torch.no_grad():
        for own, p in zip(reference.parameters(), params, strict=True):
            own.copy_(p)
    X = torch.rand(3, 1, 28, 28, dtype=torch.float64)
    torch.testing.assert_close(lenet(X, params), reference(X), rtol=0, atol=1e-12)


# The standard deviation of each weight: the book's is 0.01, Kaiming's (2 / fan_in) ** 0.5.
STD = {"book": [0.01] * 4, "kaiming": [(2 / n) ** 0.5 for n in (9, 500, 800, 128)]}


@pytest.mark.parametrize("init", STD)
def test_weights_begin_random_and_biases_zero(init):
    params = initial_params(torch.Generator().manual_seed(0), init=init)
    for weight, std in zip(params[::2], STD[init], strict=True):
        assert 0.85 < weight.std() / std < 1.15
        assert abs(weight.mean()) < 0.15 * std
    assert not any(p.any() for p in params[1::2])


def test_control_the_inits_differ_and_the_book_s_is_what_the_book_writes():
    def drawn(**init):
        return initial_params(torch.Generator().manual_seed(0), **init)

    generator = torch.Generator().manual_seed(0)
    weights = (params[::2] for params in (drawn(), drawn(init="book"), drawn(init="kaiming")))
    for weight, book, kaiming in zip(*weights, strict=True):
        assert torch.equal(weight, 0.01 * torch.randn(weight.shape, generator=generator))
        assert torch.equal(weight, book)
        assert not torch.equal(weight, kaiming)


def test_an_unknown_init_is_an_error():
    with pytest.raises(ValueError, match="init: found 'zeros', wanted one of kaiming, book"):
        initial_params(init="zeros")


def test_bytes_are_scaled_to_the_range_0_to_1():
    X = torch.randint(256, (2, 1, 28, 28), dtype=torch.uint8)
    params = initial_params()
    assert torch.equal(lenet(X, params), lenet(X.float() / 255, params))


def test_no_image_gives_no_logits_a_zero_loss_and_zero_gradients():
    params = get_params(initial_params(), "cpu")
    value = loss(lenet(torch.zeros(0, 1, 28, 28), params), torch.zeros(0, dtype=torch.int64))
    assert value == 0
    assert not any(gradient.any() for gradient in torch.autograd.grad(value, params))


def test_the_loss_is_summed_not_averaged():
    logits, y = torch.randn(5, 10), torch.arange(5)
    each = [loss(logits[i : i + 1], y[i : i + 1]) for i in range(5)]
    torch.testing.assert_close(loss(logits, y), torch.stack(each).sum())


@pytest.mark.parametrize("leaf", [False, True])
def test_a_replica_shares_no_memory_with_what_it_was_copied_from(leaf):
    params = [torch.ones(3, requires_grad=leaf)]
    one, other = get_params(params, "cpu"), get_params(params, torch.device("cpu"))
    with torch.no_grad():
        one[0].zero_()
    assert (other[0].tolist(), params[0].tolist()) == ([1.0] * 3, [1.0] * 3)
    assert one[0].is_leaf
    assert one[0].requires_grad
