"""A wrapped module is the bare module: names, state, attributes, and changes between steps."""

import concurrent.futures
import copy
import functools
import inspect
import io
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from models import ROWS, batch, made, mlp
from torch import nn

import fastreduce
from fastreduce import DataParallel
from fastreduce.parallel.replicas import Replicas


@pytest.fixture
def net():
    return made("mlp")


@pytest.fixture
def model(net):
    return DataParallel(net, ["cpu"] * 2)


def step(model, lr=0.1):
    optimizer = torch.optim.SGD(model.parameters(), lr)
    optimizer.zero_grad()
    X, y = batch()
    model.backward(F.cross_entropy, X, y)
    optimizer.step()


def test_names_and_state_have_no_prefix(net, model):
    assert (
        list(model.state_dict())
        == list(net.state_dict())
        == ["0.weight", "0.bias", "2.weight", "2.bias"]
    )
    assert [name for name, _ in model.named_parameters()] == list(net.state_dict())
    assert all(a is b for a, b in zip(model.parameters(), net.parameters(), strict=True))


def test_it_prints_as_the_bare_module(net, model):
    assert repr(model) == repr(net)


def test_it_is_an_instance_of_both_classes(model):
    assert isinstance(model, nn.Sequential) and isinstance(model, DataParallel)


def test_indexing_attributes_and_methods_are_the_modules_own(net, model):
    assert model[0] is net[0] and len(model) == 3
    assert model.module is net
    model.note = "kept"
    assert net.note == "kept"


class Counted(nn.Linear):
    """Knows its subclasses, and makes others of its class."""

    subclasses: ClassVar[list] = []

    def __init_subclass__(cls, **_):
        Counted.subclasses.append(cls)

    def wider(self):
        return type(self)(self.in_features, 2 * self.out_features)

    @classmethod
    def of(cls, n):
        return cls(n, n)


def test_methods_that_make_modules_of_the_same_class_make_bare_ones(model):
    counted = DataParallel(Counted(3, 2), ["cpu"] * 2)
    assert type(counted.wider()) is type(counted.of(4)) is Counted and not Counted.subclasses
    assert counted.wider().out_features == 4
    assert type(model[:2]) is nn.Sequential and model[:2][0] is model[0]


def test_forward_has_the_signature_of_the_bare_module(net, model):
    assert inspect.signature(model.forward) == inspect.signature(net.forward)


def test_load_state_dict_into_either(net, model):
    other = mlp().double().state_dict()
    model.load_state_dict(other)
    assert torch.equal(net[0].weight, other["0.weight"])
    X, _ = batch()
    torch.testing.assert_close(model(X), net(X))


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


def test_deepcopy_is_another_parallel_model(model):
    other = copy.deepcopy(model)
    step(other)
    assert isinstance(other, DataParallel) and len(other.devices) == 2
    assert not torch.equal(other[0].weight, model[0].weight)


def test_saving_the_whole_model(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert isinstance(loaded, DataParallel)
    X, _ = batch()
    torch.testing.assert_close(loaded(X), model(X))


def test_averaged_weights(model):
    averaged = torch.optim.swa_utils.AveragedModel(model)
    step(model)
    averaged.update_parameters(model)
    X, _ = batch()
    assert averaged(X).shape == (ROWS, 5)


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


def test_two_forwards_through_batchnorm_before_a_backward():
    model = DataParallel(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)), ["cpu"] * 2)
    (model(torch.randn(8, 6)).sum() + model(torch.randn(8, 6)).square().sum()).backward()


def test_hooks_run_for_each_replica(model):
    shapes = []
    model.register_forward_hook(lambda module, args, output: shapes.append(tuple(output.shape)))
    X, _ = batch()
    model(X)
    assert shapes == [(4, 5), (3, 5)]


class Seen:
    def __init__(self):
        self.rows = []

    def hook(self, module, inputs, output):
        self.rows.append(len(output))

    __call__ = hook


def add(rows, module, inputs, output):
    rows.append(len(output))


@pytest.mark.parametrize(
    "hook_of",
    [lambda seen: seen.hook, lambda seen: seen, lambda seen: functools.partial(add, seen.rows)],
    ids=["method", "object", "partial"],
)
def test_hooks_of_all_replicas_write_to_the_same(model, hook_of):
    seen = Seen()
    model[0].register_forward_hook(hook_of(seen))
    model(batch()[0])
    assert seen.rows == [4, 3]


@pytest.mark.parametrize("partly", [False, True], ids=["method", "partial"])
def test_a_hook_that_is_a_method_of_the_module_is_each_replicas_own(partly):
    class Hooked(nn.Linear):
        def __init__(self):
            super().__init__(3, 3)
            self.inner = nn.Identity()
            keep = functools.partial(self.keep, factor=1) if partly else self.keep
            self.inner.register_forward_hook(keep)

        def keep(self, module, inputs, output, factor=1):
            self.rows = len(output) * factor

        def forward(self, x):
            self.inner(x)
            return super().forward(x) + self.rows

    bare = Hooked()
    model = DataParallel(bare, ["cpu"] * 2)
    model(torch.ones(5, 3))
    assert bare.rows == 3  # rows of the first shard


def test_calls_from_several_threads(net, model):
    batches = [batch(rows)[0] for rows in (3, 4, 5, 6)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda X: [model(X) for _ in range(20)], batches))
    for X, outputs in zip(batches, found, strict=True):
        assert all(torch.allclose(output, net(X)) for output in outputs)


def test_as_a_part_of_another_module(net, model):
    whole = nn.Sequential(model, nn.Linear(5, 2).double())
    X, _ = batch()
    whole(X).sum().backward()
    assert next(iter(whole.state_dict())) == "0.0.weight"
    assert net[0].weight.grad is not None and isinstance(copy.deepcopy(whole)[0], DataParallel)


def test_evaluation_keeps_no_graph(model):
    with torch.no_grad():
        assert not model(batch()[0]).requires_grad


class Scaled(nn.Linear):
    """With attributes that are neither parameters nor buffers."""

    def __init__(self):
        super().__init__(6, 5)
        self.scale, self.activation, self.shape = torch.ones(5), torch.tanh, (5,)

    def forward(self, x):
        return self.activation(super().forward(x)) * self.scale + sum(getattr(self, "shape", (1,)))


@pytest.mark.parametrize(
    "change",
    [
        lambda net: setattr(net, "activation", torch.relu),
        lambda net: setattr(net, "scale", torch.full((5,), 3.0)),
        lambda net: net.scale.fill_(3.0),
        lambda net: setattr(net, "shape", (6, 7)),
        lambda net: delattr(net, "shape"),
        lambda net: setattr(net, "forward", lambda x: nn.Linear.forward(net, x)),
    ],
    ids=["function", "tensor", "tensor in place", "tuple", "deleted", "forward"],
)
def test_plain_attributes_that_change_between_two_steps(change):
    net = Scaled()
    model = DataParallel(net, ["cpu"] * 2)
    X = torch.randn(5, 6)
    for _ in range(2):
        model(X)
    change(net)
    for _ in range(2):
        torch.testing.assert_close(model._parallel.forward((X,), {}), net(X))


def test_a_tensor_to_train_that_becomes_an_attribute_is_refused():
    model = DataParallel(Scaled(), ["cpu"] * 2)
    model.scale = torch.ones(5, requires_grad=True)
    with pytest.raises(ValueError, match="requires grad but is not one of its parameters"):
        model(torch.ones(4, 6))


def test_what_a_forward_pass_keeps_is_each_replicas_own():
    class Summing(nn.Linear):
        total = None

        def forward(self, x):
            self.total = x.sum(0) if self.total is None else self.total + x.sum(0)
            return super().forward(x) + self.total

    model = DataParallel(Summing(2, 2), ["cpu"] * 2)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.zero_()
        X = torch.tensor([[1.0, 1.0], [10.0, 10.0]])
        assert [model(X)[:, 0].tolist() for _ in range(2)] == [[1, 10], [2, 20]]
        model.total = torch.zeros(2)
        assert model(X)[:, 0].tolist() == [1, 10]


@pytest.mark.parametrize("share", [True, False], ids=["one memory", "copies"])
def test_training_after_a_first_pass_in_inference_mode(share):
    model = DataParallel(Scaled(), ["cpu"] * 2)
    model._parallel.replicas = Replicas(model.module, model.devices, share=share)
    for _ in range(2):
        with torch.inference_mode():
            model(torch.ones(4, 6))
        model(torch.ones(4, 6)).sum().backward()
        model.scale = torch.zeros(5)
    assert model.bias.grad.count_nonzero() == 5


def test_an_exception_in_forward_leaves_the_module_as_it_was(net, model):
    parameters = list(net.parameters())
    with pytest.raises(RuntimeError):
        model(torch.ones(4, 99).double())
    assert all(a is b for a, b in zip(net.parameters(), parameters, strict=True))
    step(model)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_module(backend):
    bare = made("mlp")
    model = DataParallel(torch.compile(copy.deepcopy(bare), backend=backend), ["cpu"] * 2)
    X, y = batch(8)
    F.cross_entropy(bare(X), y).backward()
    model.backward(F.cross_entropy, X, y)
    for ours, theirs in zip(model.parameters(), bare.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-10, atol=1e-10)


def test_it_is_a_name_of_the_package():
    assert fastreduce.DataParallel is DataParallel
