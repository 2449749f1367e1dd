"""Plain attributes: what is set between two passes reaches every replica; a pass's own stays."""

import enum
import warnings
from collections import Counter, OrderedDict, defaultdict, deque

import numpy as np
import pytest
import torch
from torch import nn

from fastreduce import DataParallel
from fastreduce.parallel.replicas import Replicas


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


class Adapted(nn.Linear):
    """As an adapter that is merged into its layer, or switched off, by names in containers."""

    def __init__(self):
        super().__init__(3, 3)
        self.merged, self.scales, self.active = [], {"a": 1.0}, {"a"}

    def forward(self, x):
        return super().forward(x) * (2 + len(self.merged)) * self.scales["a"] * len(self.active)


@pytest.mark.parametrize(
    "change",
    [
        lambda net: net.merged.append("a"),
        lambda net: net.scales.update(a=3.0),
        lambda net: net.scales.update(b=net.scales.pop("a"), a=net.scales.get("b", 2.0)),
        lambda net: net.active.add("b"),
    ],
    ids=["list", "dict", "dict's keys", "set"],
)
def test_what_changes_in_lists_dicts_and_sets_of_simple_values(change):
    model = DataParallel(Adapted(), ["cpu"] * 3)
    X = torch.arange(18.0).view(6, 3)
    before = model(X)
    change(model)
    assert torch.equal(model(X), model.module(X))
    assert not torch.equal(model(X), before)
    change(model)  # the replicas' are not the module's own, which would be changed already
    assert torch.equal(model(X), model.module(X))


@pytest.mark.parametrize(
    "scales",
    [OrderedDict(a=1.0), defaultdict(float, a=1.0), Counter(a=1)],
    ids=lambda x: type(x).__name__,
)
def test_what_changes_in_other_containers_of_simple_values(scales):
    net = Adapted()
    net.scales, net.merged = scales, deque([0], maxlen=2)
    model = DataParallel(net, ["cpu"] * 3)
    X = torch.arange(18.0).view(6, 3)
    before = model(X)
    net.scales["a"] = 3
    net.merged.append(0)
    assert torch.equal(model(X), net(X)) and not torch.equal(model(X), before)
    replica = model._parallel.replicas.modules[1]
    assert type(replica.scales) is type(scales) and replica.merged.maxlen == 2


class Level(float, enum.Enum):
    HIGH = 4.0


class Config:
    """As those of transformers, which all modules of a model share."""

    def __init__(self):
        self.scale, self.shape, self.old = 2.0, [1], "old"


class Configured(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(3, 3))
        self.config = self[0].config = Config()

    def forward(self, x):
        scale = self[0].config.scale * len(vars(self.config))
        return super().forward(x) * scale * getattr(self.config, "more", 1)


@pytest.mark.parametrize(
    "change",
    [
        lambda config: setattr(config, "scale", 3.0),
        lambda config: setattr(config, "more", 5),
        lambda config: delattr(config, "old"),
        lambda config: setattr(config, "scale", torch.tensor(3)) or setattr(config, "scale", 4.0),
        lambda config: setattr(config, "scale", np.float64(3)),
        lambda config: setattr(config, "scale", Level.HIGH),
        lambda config: setattr(config, "scale", torch.tensor(3.0)),
    ],
    ids=["set", "added", "deleted", "set twice", "NumPy's", "of an Enum", "now a tensor"],
)
def test_numbers_and_strings_of_an_object_that_change(change):
    model = DataParallel(Configured(), ["cpu"] * 3)
    X = torch.arange(18.0).view(6, 3)
    before = model(X)
    change(model.config)
    assert torch.equal(model(X), model.module(X))
    assert not torch.equal(model(X), before)


class ItemsByName(dict):
    """As those of StyleGAN: what looks like an attribute is an item."""

    __setattr__ = dict.__setitem__

    def __getattr__(self, name):
        if name not in self:
            raise AttributeError(name)
        return self[name]


class ItemsAndAttributes(dict):
    """As those of the package easydict."""

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        super().__setitem__(name, value)

    __setitem__ = __setattr__


@pytest.mark.parametrize("kind", [ItemsByName, ItemsAndAttributes])
def test_items_of_a_dict_that_are_read_as_attributes(kind):
    class Scaled(nn.Linear):
        def forward(self, x):
            return super().forward(x) * self.config.scale * self.config.get("more", 1)

    net = Scaled(3, 3)
    net.config = kind()
    net.config.scale = 2.0
    model = DataParallel(net, ["cpu"] * 3)
    X = torch.arange(18.0).view(6, 3)
    for change in (
        lambda config: setattr(config, "scale", 3.0),
        lambda config: config.__setitem__("more", 5),
        lambda config: config.pop("more"),
        lambda config: setattr(config, "scale", torch.tensor(3.5)),
    ):
        before = model(X)
        change(net.config)
        assert torch.equal(model(X), net(X)) and not torch.equal(model(X), before)


def test_numbers_that_are_numpys_change_again():
    net = Adapted()
    net.scales["a"] = np.float64(2)
    model = DataParallel(net, ["cpu"] * 3)
    X = torch.arange(18.0).view(6, 3)
    for scale in (np.float64(3), np.float64(4)):
        net.scales["a"] = scale
        assert torch.equal(model(X), net(X))


def test_an_object_that_forward_has_taken_away_from_a_replica_stays_away():
    class Forgets(Configured):
        def forward(self, x):
            if x.sum() < 0:
                self.config = None
            return self[0](x)

    model = DataParallel(Forgets(), ["cpu"] * 2)
    X = torch.cat([torch.ones(2, 3), -torch.ones(2, 3)])
    model(X)
    model.config.scale = 5.0
    model(X)
    assert model._parallel.replicas.modules[1].config is None


def test_replicas_keep_what_forward_counts_in_their_own_objects():
    class Counts(Configured):
        def forward(self, x):
            self.config.seen = getattr(self.config, "seen", 0) + len(x)
            return super().forward(x)

    model = DataParallel(Counts(), ["cpu"] * 2)
    for _ in range(2):
        model(torch.ones(5, 3))
    assert model.config.seen == 6
    assert model._parallel.replicas.modules[1].config.seen == 4


def test_replicas_keep_what_forward_puts_into_their_own_lists():
    class Logs(nn.Linear):
        def __init__(self):
            super().__init__(3, 3)
            self.rows = []

        def forward(self, x):
            self.rows.append(len(x))
            return super().forward(x)

    model = DataParallel(Logs(), ["cpu"] * 2)
    for _ in range(2):
        model(torch.ones(5, 3))
    assert model.rows == [3, 3]
    assert model._parallel.replicas.modules[1].rows == [2, 2]


def test_a_result_that_forward_leaves_in_an_attribute_is_said_once():
    class Penalty(nn.Linear):
        def forward(self, x):
            y = super().forward(x)
            self.penalty = y.square().mean()
            return y

    model = DataParallel(Penalty(3, 3), ["cpu"] * 2)
    words = r"set Penalty.penalty to a tensor with a graph.* first sh"
    with pytest.warns(UserWarning, match=words):  # before a loss is made of it
        model(torch.ones(4, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch.no_grad():
            model(torch.ones(4, 3))
        model(torch.ones(1, 3))  # control: all of it is in one shard


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
    model._parallel.use(Replicas(model.module, model.devices, share=share))
    for _ in range(2):
        with torch.inference_mode():
            model(torch.ones(4, 6))
        model(torch.ones(4, 6)).sum().backward()
        model.scale = torch.zeros(5)
    assert model.bias.grad.count_nonzero() == 5
