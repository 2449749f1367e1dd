"""Bad input to a step: what is raised, in which words, and that nothing has changed."""

import copy
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from models import batch, made
from torch import nn
from torch.nested import nested_tensor
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.rnn import pack_sequence

from fastreduce import DataParallel, Whole


class Returns(nn.Linear):
    def __init__(self, result):
        super().__init__(6, 5)
        self.result = [result]

    def forward(self, x):
        return self.result[0](x, super().forward(x)) if callable(self.result[0]) else self.result[0]


class Stale(nn.Linear):
    """Reads its parameter from a list."""

    def __init__(self):
        super().__init__(6, 5)
        self.held = [self.weight]

    def forward(self, x):
        return x @ self.held[0].T


def linear():
    return DataParallel(nn.Linear(6, 5), CPU2)


CPU2 = ["cpu", "cpu"]


def loss(logits, y):
    return F.cross_entropy(logits, y)


X, Y = (x.float() if x.is_floating_point() else x for x in batch(6))


class Cache:
    """What transformers call one: each call puts its keys behind those that are there."""

    def __init__(self):
        self.layers = []


class Caching(nn.Linear):
    def forward(self, x, cache):
        y = super().forward(x)
        if cache.layers:
            y = y + cache.layers[0]
        cache.layers.append(y)
        return y


def calling(forward):
    return lambda *args: forward(*args)


def raising(*_):
    raise KeyError("mine")


STEPS = {
    "no loss function": (
        linear, lambda m: m.backward(X, Y), TypeError, "found Tensor as loss_fn, wanted a functio"),
    "a loss instead of a function": (linear, lambda m: m.backward(m(X).sum().detach()), TypeError,
                                     "computed already goes backward by itself"),
    "a class instead of a function": (linear, lambda m: m.backward(nn.MSELoss, X, Y), TypeError,
                                      r"found the class MSELoss .*, such as MSELoss\(\)"),
    "no inputs": (linear, lambda m: m.backward(loss), ValueError, r"\(no argument\)"),
    "an array": (linear, lambda m: m(X.numpy()), ValueError, r"\(ndarray\).*torch.from_numpy"),
    "different lengths": (linear, lambda m: m.backward(loss, X, Y[:5]), ValueError,
                          r"6 in inputs, 5 in targets\[0\]; wanted as many"),
    "a state with its examples elsewhere": (
        lambda: DataParallel(nn.LSTM(6, 5, batch_first=True), CPU2),
        lambda m: m(X[:, None], (torch.zeros(2, 6, 5),) * 2), ValueError,
        r"2 in .*args\[1\]\[0\] has 6 in dimension 1: pass it with these in dimension 0"),
    "no example": (linear, lambda m: m(X[:0]), ValueError, "no example in the batch"),
    "nothing to cut": (linear, lambda m: m(torch.tensor(1.0)), ValueError, "no tensor to cut"),
    "a sparse batch": (linear, lambda m: m(X.to_sparse()), ValueError,
                       r"layout torch.sparse_coo, which torch cannot cut.*to_dense\(\)"),
    "a generator": (linear, lambda m: m(X, (row for row in X)), ValueError,
                    "found a generator as argument, which the first of 2 shards would use up"),
    "a generator, whole": (linear, lambda m: m(X, Whole(iter(X))), ValueError,
                           "as argument, which the first of 2 shards would use up"),
    "arrays out": (lambda: DataParallel(Returns(lambda x, y: (y, x.numpy())), CPU2),
                   lambda m: m(X), ValueError, "no tensors and cannot be joined"),
    "no tensor out": (lambda: DataParallel(Returns("word"), CPU2), lambda m: m(X), ValueError,
                      "forward returned str without a tensor"),
    "other values out": (lambda: DataParallel(Returns(lambda x, y: (y, id(x))), CPU2),
                         lambda m: m(X), ValueError, "no tensors and cannot be joined"),
    "a tensor of the first shard alone out": (
        lambda: DataParallel(Returns(lambda x, y: (y, y if len(x) > 2 else None)), CPU2),
        lambda m: m(X[:5]), ValueError, r"in its output\[1\] Tensor, NoneType, which cannot be j"),
    "a tensor of the second shard alone out": (
        lambda: DataParallel(Returns(lambda x, y: (y, None if len(x) > 2 else y)), CPU2),
        lambda m: m(X[:5]), ValueError, r"in its output\[1\] NoneType, Tensor, which cannot be j"),
    "other shapes out": (lambda: DataParallel(Returns(lambda x, y: [y] * len(x)), CPU2),
                         lambda m: m(X[:5]), ValueError,
                         r"shard 1 returned list with \[0\], \[1\], but shard 0 list with \[0\], "),
    "an entry per example": (
        linear, lambda m: m([{"boxes": X[:n]} for n in (4, 2)]), ValueError,
        r"4 in args\[0\]\[0\]\['boxes'\], 2 in .* an entry per example, such as this of 2, cannot"),
    "an entry per example beside the images": (
        linear, lambda m: m(X, [{"boxes": X[:2]}] * 6), ValueError,
        r"6 in args\[0\], 2 in .* an entry per example, such as this of 6, cannot be cut"),
    "a shorter list": (linear, lambda m: m(X, [X[:2]] * 2), ValueError,
                       r"6 in args\[0\], 2 in args\[1\]\[0\], 2 in args\[1\]\[1\]; wanted as many"),
    "an entry per example out": (
        lambda: DataParallel(Returns(lambda x, y: [{"boxes": y[:1].expand(4, 5)}] * 3), CPU2),
        lambda m: m(X), ValueError,
        r"a list of 3 for the 3 examples of shard 0, and its output\[0\]\['boxes'\] has shape"),
    "products of a shard's examples out": (
        lambda: DataParallel(Returns(lambda x, y: {"logits": y @ y.T}), CPU2), lambda m: m(X[:5]),
        ValueError, r"output\['logits'\] tensors of shapes \(3, 3\), \(2, 2\), which cannot be"),
    "a state whose examples are elsewhere out": (
        lambda: DataParallel(nn.LSTM(6, 5, 2, batch_first=True), CPU2), lambda m: m(X[:, None]),
        ValueError, r"output\[1\]\[0\] a tensor of shape \(2, 3, 5\) for a shard of 3 .*not 1: "),
    "such a state of uneven shards": (
        lambda: DataParallel(nn.LSTM(6, 5, 4, batch_first=True), CPU2), lambda m: m(X[:5, None]),
        ValueError, r"shape \(4, 3, 5\) for a shard of 3 .*return x.movedim\(1, 0\)"),
    "packed out": (
        lambda: DataParallel(Returns(lambda x, y: pack_sequence([y])), CPU2), lambda m: m(X),
        ValueError, "found a PackedSequence, whose rows are not those of a batch"),
    "packed in": (linear, lambda m: m(pack_sequence([X])), ValueError, "found a PackedSequence"),
    "nested in": (linear, lambda m: m(nested_tensor([X, X[:3]], layout=torch.jagged)), ValueError,
                  r"its to_padded_tensor\(0.0\) if it is nested"),
    "strided nested in": (linear, lambda m: m(nested_tensor([X, X[:3]])), ValueError,
                          r"found a nested tensor of layout torch.strided, which torch cannot cut"),
    "traced": (linear, lambda m: torch.jit.trace(m, X), RuntimeError,
               r"torch.jit.trace\(model.module, example\)"),
    "scripted": (linear, torch.jit.script, RuntimeError, r"torch.jit.script\(model.module\)"),
    "traced by fx": (linear, torch.fx.symbolic_trace, ValueError,
                     r"torch.fx.symbolic_trace\(model.module\)"),
    "a cache in": (lambda: DataParallel(Caching(6, 5), CPU2), lambda m: m(X, Cache()), ValueError,
                   "has written to the Cache among its arguments, which all shards get"),
    "a cache in, whole": (lambda: DataParallel(Caching(6, 5), CPU2),
                          lambda m: m(X, Whole(Cache())), ValueError, "written to the Cache among"),
    "a cache in, for a loss": (
        lambda: DataParallel(Caching(6, 5), CPU2), lambda m: m.backward(loss, (X, Cache()), Y),
        ValueError, "has written to the Cache among its arguments"),
    "a cache that the second shard cannot use": (
        lambda: DataParallel(Caching(6, 5), CPU2), lambda m: m(X[:5], Cache()), ValueError,
        "has written to the Cache among its arguments"),
    "a cache out": (lambda: DataParallel(Returns(lambda x, y: {"y": y, "past": Cache()}), CPU2),
                    lambda m: m(X), ValueError,
                    r"in its output\['past'\] .*Cache.* call the model with use_cache=False"),
    "a forward that calls the wrapper": (
        linear, lambda m: (setattr(m, "forward", calling(m.forward)), m(X)),
        RuntimeError, "forward has called the DataParallel that runs it, by .* replaced"),
    "an object that refers to the wrapper": (
        linear, lambda m: (setattr(m, "trainer", SimpleNamespace(model=m)), m(X)), ValueError,
        "an attribute of it, inside, refers to the DataParallel that .*, or keep it outside"),
    "vector loss": (linear, lambda m: m.backward(lambda o, y: o.sum(1), X, Y), ValueError,
                    r"loss of shard 0 has shape \(3,\)"),
    "number as loss": (linear, lambda m: m.backward(lambda o, y: 3.0, X, Y), TypeError,
                       "loss of shard 0 is float"),
    "infinite loss": (linear, lambda m: m.backward(lambda o, y: o.sum() / 0, X, Y), ValueError,
                      "loss of shard 0 is -?inf|loss of shard 0 is nan"),
    "detached loss": (linear, lambda m: m.backward(lambda o, y: o.sum().detach(), X, Y), ValueError,
                      "depends on no parameter"),
    "under no_grad": (linear, lambda m: torch.no_grad()(m.backward)(loss, X, Y), ValueError,
                      "depends on no parameter"),
    "unknown reduction": (linear, lambda m: m.backward(loss, X, Y, reduction="max"), ValueError,
                          "found reduction 'max'"),
    "no weight": (linear, lambda m: m.backward(lambda o, y: (o.sum(), 0), X, Y), ValueError,
                  "add up to 0"),
    "a pair and a loss": (
        linear,
        lambda m: m.backward(
            lambda o, y: (o.sum(), 3) if torch.equal(y, Y[:3]) else o.sum(), X, Y
        ),
        TypeError, "loss of shard 0 is tuple; wanted .* the same of all shards"),
    "loss that is no mean": (linear, lambda m: m.backward(lambda o, y: o.sum(), X, Y), ValueError,
                             "the loss of the whole batch is .* but the shards' make"),
    "wrong features": (linear, lambda m: m(X[:, :5]), RuntimeError, "shapes"),
    "a hook that raises": (linear,
                           lambda m: (m.register_forward_hook(raising), m(X)), KeyError, "mine"),
    "stale reference": (lambda: DataParallel(Stale(), CPU2), lambda m: m.backward(loss, X, Y),
                        RuntimeError, "used parameter weight through another reference"),
    "stale reference, asked for gradients": (
        lambda: DataParallel(Stale(), CPU2),
        lambda m: torch.autograd.grad(m(X).sum(), m.weight),
        RuntimeError, "used parameter weight through another reference"),
    "parametrized": (linear, weight_norm, RuntimeError,
                     "another class for the wrapped module.*parametrize the module before it"),
    "moved away": (linear, lambda m: (m.to("meta"), m(X)), ValueError, "weight is on meta"),
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype stage:UserWarning")
def test_steps(name):
    make, call, error, words = STEPS[name]
    model = make()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(error, match=words):
        call(model)
    assert all(parameter.grad is None for parameter in model.parameters())
    if name != "moved away":
        for key, value in model.state_dict().items():
            assert torch.equal(value, before[key])


def test_backward_twice():
    model = linear()
    total = model(X).square().sum()
    total.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        total.backward()


def test_the_bare_models_optimizer_is_fine():
    net = made("mlp")
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    model = DataParallel(net, CPU2)
    before = net[0].weight.clone()
    rows, labels = batch()
    model.backward(F.cross_entropy, rows, labels)
    optimizer.step()
    assert not torch.equal(net[0].weight, before)
    torch.testing.assert_close(model(rows), net(rows))
