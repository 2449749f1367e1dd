"""What operations of a thread draw from: the generator of its shard, or nothing."""

from contextlib import contextmanager, nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves

from fastreduce._C import DrawsFrom, HasDrawn


@pytest.fixture
def way():
    return "at once"


OWN = torch.Generator()

ones, LSTM = torch.ones(2, 64), nn.LSTM(4, 4, 2, dropout=0.5)
OPERATIONS = {
    "dropout": lambda: F.dropout(ones),
    "alpha_dropout": lambda: F.alpha_dropout(ones, training=True),
    "rrelu": lambda: F.rrelu(-ones, training=True),
    "attention": lambda: F.scaled_dot_product_attention(ones, ones, ones, dropout_p=0.5),
    "LSTM": lambda: LSTM(torch.ones(3, 2, 4)),
    "fractional pooling": lambda: F.fractional_max_pool2d(
        ones.view(1, 2, 8, 8), 2, output_ratio=(0.5, 0.5)
    ),
    "gumbel_softmax": lambda: F.gumbel_softmax(ones),
    "gamma": lambda: torch.distributions.Gamma(1.0, 1.0).sample(),
    "dirichlet": lambda: torch.distributions.Dirichlet(ones).sample(),
    "binomial": lambda: torch.binomial(ones, ones / 2),
    "poisson": lambda: torch.poisson(ones),
    "multinomial": lambda: torch.multinomial(ones, 2),
    "permutation": lambda: torch.randperm(3),
    "integers": lambda: torch.randint(3, (2,)),
    "normal": lambda: torch.randn_like(ones),
    "exponential": lambda: torch.empty(2).exponential_(),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_all_operations_that_draw_are_seen(name):
    before = torch.get_rng_state()
    with pytest.raises(HasDrawn), DrawsFrom(None):
        OPERATIONS[name]()
    assert torch.equal(torch.get_rng_state(), before)
    OPERATIONS[name]()  # control: elsewhere it draws
    assert not torch.equal(torch.get_rng_state(), before)
    with DrawsFrom(None):
        ones.matmul(ones.T).relu()  # control: others draw nothing


def values_of(found):
    return [x for x in tree_leaves(found) if isinstance(x, torch.Tensor)]


# These switch gradients off, as a checkpoint does.
DISTRIBUTIONS = {"gamma", "dirichlet"}


@pytest.mark.parametrize("name", sorted(OPERATIONS.keys() - DISTRIBUTIONS))
def test_all_operations_draw_from_the_generator_of_the_shard(name):
    torch.manual_seed(3)
    wanted = values_of(OPERATIONS[name]())
    before = torch.get_rng_state()
    own = torch.Generator().manual_seed(3)
    with DrawsFrom(own) as drawn:
        ones.matmul(ones.T).relu()
        assert not drawn.drew
        found = values_of(OPERATIONS[name]())
    assert drawn.drew
    assert wanted and all(map(torch.equal, found, wanted))
    assert torch.equal(torch.get_rng_state(), before)


def test_control_another_seed_draws_other_numbers():
    with DrawsFrom(torch.Generator().manual_seed(4)):
        found = torch.rand(9)
    assert not torch.equal(found, torch.rand(9, generator=torch.Generator().manual_seed(3)))


@contextmanager
def moved():
    torch.manual_seed(3)
    yield


SEEN = {
    "another generator": (nullcontext, lambda: torch.rand(2, generator=OWN)),
    "a tensor without numbers": (nullcontext, lambda: torch.empty(2, device="meta").bernoulli_()),
    "a generator that was set": (moved, lambda: torch.rand(2)),
    "gradients switched off": (torch.no_grad, lambda: torch.rand(2)),
    "hooks": (lambda: saved_tensors_hooks(lambda x: x, lambda x: x), lambda: torch.rand(2)),
}


@pytest.mark.parametrize("case", SEEN)
def test_where_it_would_be_seen_nothing_is_drawn(case):
    context, draw = SEEN[case]
    with DrawsFrom(torch.Generator()) as drawn, context(), pytest.raises(HasDrawn):
        draw()
    assert not drawn.drew


def test_within_another_the_inner_one_counts():
    outer, inner = (torch.Generator().manual_seed(seed) for seed in (3, 4))
    wanted = [torch.rand(2, generator=torch.Generator().manual_seed(seed)) for seed in (3, 4)]
    with DrawsFrom(outer):
        with DrawsFrom(inner):
            assert torch.equal(torch.rand(2), wanted[1])
        assert torch.equal(torch.rand(2), wanted[0])
