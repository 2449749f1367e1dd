"""What changes between two passes reaches every replica, and what a pass changes is kept."""

import copy

import pytest
import torch
import torch.nn.functional as F
from models import assert_same_gradients, batch, made, step
from torch import nn
from torch.utils.checkpoint import checkpoint

from fastreduce import DataParallel


def test_train_and_eval_reach_every_replica():
    seen = []

    class Spy(nn.Linear):
        def forward(self, x):
            seen.append(self.training)
            return super().forward(x)

    model = DataParallel(Spy(3, 2), ["cpu"] * 2)
    model(torch.ones(2, 3))
    model.eval()
    model(torch.ones(2, 3))
    assert seen == [True, True, False, False]


def test_simple_attributes_follow(model):
    model = DataParallel(nn.Sequential(nn.Dropout(0.0), nn.Linear(3, 3)), ["cpu"] * 2)
    model[0].p = 1.0
    assert torch.equal(model(torch.ones(2, 3)), model[1].bias.expand(2, 3))


def at_the_same_address(net):
    """Python often gives a new module the memory of one that is gone."""
    old, others = id(net[1]), []
    net[1] = None
    while len(others) < 100 and id(net[1]) != old:
        net[1] = nn.Sigmoid()
        others.append(net[1])


@pytest.mark.parametrize(
    "change",
    [
        lambda net: net[0].requires_grad_(False),
        lambda net: setattr(net[2], "weight", nn.Parameter(torch.zeros(5, 8).double())),
        lambda net: net.append(nn.Linear(5, 5).double()),
        lambda net: net.__setitem__(1, nn.ReLU()),
        lambda net: net[0].weight.data.zero_(),
        lambda net: setattr(net[0], "bias", None),
        lambda net: net.__setitem__(2, nn.Linear(8, 6).double()),
        at_the_same_address,
        lambda net: setattr(net[1], "__class__", nn.Sigmoid),
        lambda net: net.append(net[1]),
    ],
    ids=[
        *("freeze", "replace", "add", "another module", "write .data", "drop", "resize"),
        *("same address", "another class", "the same module twice"),
    ],
)
def test_changes_between_two_steps(change):
    bare, model = made("mlp"), DataParallel(made("mlp"), ["cpu"] * 3)
    for net in (bare, model):
        step_of = model.backward if net is model else lambda f, X, y: f(bare(X), y).backward()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        X, y = batch()
        step_of(F.cross_entropy, X, y)
        optimizer.step()
        torch.manual_seed(3)
        change(net)
        net.zero_grad()
        step_of(F.cross_entropy, X, y)
    for (name, ours), theirs in zip(model.named_parameters(), bare.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-10, atol=1e-10, msg=name)


def test_another_dtype_after_a_step(model):
    step(model)
    model.float()
    X, _ = batch()
    assert model(X.float()).dtype == torch.float32


def test_a_list_that_forward_has_made_and_is_emptied_between_two_passes():
    class Caching(nn.Linear):
        cache = None

        def forward(self, x):
            if self.cache is None:
                self.cache = []
            self.cache.append(super().forward(x).detach())
            return super().forward(x) + len(self.cache)

    net = Caching(3, 3)
    model = DataParallel(net, ["cpu"] * 2)
    with torch.no_grad():
        once = model(torch.ones(4, 3))
        for _ in range(2):
            model.cache.clear()
            torch.testing.assert_close(model(torch.ones(4, 3)), once)


def test_batchnorm_has_each_replicas_statistics_and_the_first_ones_running_buffers():
    torch.manual_seed(0)
    bare = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)).double()
    model = DataParallel(copy.deepcopy(bare), ["cpu"] * 2)
    X, _ = batch(8)
    outputs = model(X)
    torch.testing.assert_close(
        outputs, torch.cat([copy.deepcopy(bare)(X[:4]), copy.deepcopy(bare)(X[4:])])
    )
    bare(X[:4])
    for name, buffer in bare.named_buffers():
        assert torch.equal(buffer, dict(model.named_buffers())[name]), name


def test_a_buffer_that_forward_replaces():
    class Counting(nn.Linear):
        def __init__(self):
            super().__init__(3, 3)
            self.register_buffer("rows", torch.zeros(()))

        def forward(self, x):
            self.rows = self.rows + len(x)
            return super().forward(x)

    model = DataParallel(Counting(), ["cpu"] * 2)
    for wanted in (4, 8):
        model(torch.ones(7, 3))  # the first replica's shard has four rows
        assert model.rows == wanted


class Drops(nn.Linear):
    """Uses a buffer once; ``drop`` takes it away."""

    def __init__(self, drop):
        super().__init__(3, 3)
        self.register_buffer("first", torch.full((3,), 2.0))
        self.drop = drop

    def forward(self, x):
        if getattr(self, "first", None) is not None:
            x = x * self.first
            self.drop(self)
        if x.sum() > 1e6:
            raise ValueError("too large")
        return super().forward(x)


@pytest.mark.parametrize(
    "drop", [lambda m: setattr(m, "first", None), lambda m: delattr(m, "first")]
)
@pytest.mark.parametrize("settings", [{}, {"reproducible": 5}], ids=["", "micro-shards"])
def test_a_buffer_that_forward_drops(drop, settings):
    model = DataParallel(Drops(drop), ["cpu"] * 3, **settings)
    net = copy.deepcopy(model.module)
    X = torch.randn(7, 3)
    with pytest.raises(ValueError, match="too large"):
        model(torch.cat([X, torch.full((1, 3), 1e6)]))
    assert torch.equal(model.first, net.first)
    for _ in range(2):
        torch.testing.assert_close(model(X), net(X))
        assert hasattr(model, "first") == hasattr(net, "first")
        assert getattr(model, "first", None) is None


class Adds(nn.Linear):
    """Writes to ``rows`` before it reads what ``other`` has, perhaps the same tensor."""

    def __init__(self, rows, other):
        super().__init__(3, 3)
        self.register_buffer("rows", rows)
        self.other = nn.Module()
        self.other.register_buffer("rows", other)

    def forward(self, x):
        self.rows.add_(1)
        return super().forward(x) * 0 + self.other.rows


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "each its own"])
def test_a_buffer_that_two_modules_share(shared):
    rows = torch.zeros(())
    model = DataParallel(Adds(rows, rows if shared else torch.zeros(())), ["cpu"] * 3)
    for number in (1, 2):
        assert model(torch.ones(4, 3))[:, 0].tolist() == [number * shared] * 4
    assert (model.rows is model.other.rows) == shared and model.rows == 2


def test_buffers_that_are_views_of_one_memory():
    table = torch.arange(6.0).view(2, 3)
    model = DataParallel(Adds(table[1], table.flatten()[2:5]), ["cpu"] * 3)
    for number in (1, 2):
        assert model(torch.ones(4, 3)).tolist() == [[2, 3 + number, 4 + number]] * 4
    assert table.tolist() == [[0, 1, 2], [5, 6, 7]]


def test_two_forwards_through_batchnorm_before_a_backward():
    model = DataParallel(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)), ["cpu"] * 2)
    (model(torch.randn(8, 6)).sum() + model(torch.randn(8, 6)).square().sum()).backward()


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("grads_off", [torch.no_grad, torch.inference_mode])
def test_a_pass_without_gradients_before_a_checkpoint_goes_backward(reentrant, grads_off):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh())

        def forward(self, x):
            return checkpoint(self.two, self.one(x), use_reentrant=reentrant)

    net = Checkpointed().double()
    model = DataParallel(copy.deepcopy(net), ["cpu"] * 3)
    X = torch.randn(6, 3, dtype=torch.float64)
    for either in (net, model):
        total = either(X).square().sum()
        with grads_off():
            either(X)
        total.backward()
    assert_same_gradients(model, net)


def test_an_exception_in_forward_leaves_the_module_as_it_was(net, model):
    parameters = list(net.parameters())
    with pytest.raises(RuntimeError):
        model(torch.ones(4, 99).double())
    assert all(a is b for a, b in zip(net.parameters(), parameters, strict=True))
    step(model)
