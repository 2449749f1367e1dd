"""A wrapped module is the bare module: names, state, attributes, copies and what takes modules."""

import concurrent.futures
import copy
import inspect
import io
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from models import KEEPING_RESULTS, ROWS, assert_same_gradients, batch, made, mlp, step
from torch import nn

import fastreduce
from fastreduce import DataParallel


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


def test_deepcopy_is_another_parallel_model(model):
    other = copy.deepcopy(model)
    step(other)
    assert isinstance(other, DataParallel) and len(other.devices) == 2
    assert not torch.equal(other[0].weight, model[0].weight)


def test_a_shallow_copy_has_attributes_of_its_own_and_the_same_children(model):
    copied = copy.copy(model)
    assert isinstance(copied, DataParallel) and copied.devices == model.devices
    copied.training = False
    assert model.training and copied[0] is model[0]
    X, y = batch()
    F.cross_entropy(copied(X), y).backward()
    wanted = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    F.cross_entropy(model(X), y).backward()
    assert all(map(torch.equal, wanted, (parameter.grad for parameter in model.parameters())))


def test_saving_the_whole_model(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert isinstance(loaded, DataParallel)
    X, _ = batch()
    torch.testing.assert_close(loaded(X), model(X))


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
@pytest.mark.parametrize("name", ["old weight norm", "old spectral norm", "pruned"])
def test_saving_a_model_that_keeps_a_result(name):
    model = DataParallel(KEEPING_RESULTS[name]().double(), ["cpu"] * 2)
    step(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    for either in (model, loaded):
        step(either)
    assert_same_gradients(loaded, model)


def test_averaged_weights(model):
    averaged = torch.optim.swa_utils.AveragedModel(model)
    step(model)
    averaged.update_parameters(model)
    X, _ = batch()
    assert averaged(X).shape == (ROWS, 5)


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


@pytest.mark.parametrize("inplace", [True, False])
def test_one_replica_may_write_to_its_input(inplace):
    bare = nn.Sequential(nn.ReLU(inplace=inplace), nn.Linear(3, 2))
    found = []
    for net in (bare, DataParallel(copy.deepcopy(bare), ["cpu"])):
        x = torch.tensor([[1.0, -2.0, 3.0], [-1.0, 2.0, -3.0]], requires_grad=True)
        hidden = x * 2
        net(hidden).sum().backward()
        assert bool((hidden >= 0).all()) == inplace
        found.append(x.grad)
    assert torch.equal(*found) and found[0].count_nonzero() == 3


def test_evaluation_keeps_no_graph(model):
    with torch.no_grad():
        assert not model(batch()[0]).requires_grad


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_module(backend):
    bare = made("mlp")
    model = DataParallel(torch.compile(copy.deepcopy(bare), backend=backend), ["cpu"] * 2)
    X, y = batch(8)
    F.cross_entropy(bare(X), y).backward()
    model.backward(F.cross_entropy, X, y)
    for ours, theirs in zip(model.parameters(), bare.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-10, atol=1e-10)


def test_the_wrapper_compiled_before_a_change(net, model):
    compiled = torch.compile(model, backend="eager")
    for bare in (net, compiled):
        bare(batch()[0]).sum().backward()
        net[0].requires_grad_(False)
        model[0].requires_grad_(False)
        bare(batch()[0]).sum().backward()
    assert_same_gradients(model, net)


@pytest.mark.filterwarnings("error:Dynamo does not know")
def test_the_wrapper_compiled_in_steps_that_draw_and_do_not(model):
    compiled = torch.compile(model.append(nn.Dropout(0.5)), backend="eager")
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        for _ in range(3):
            compiled(batch()[0]).sum().backward()
            compiled.eval()(batch()[0]).sum().backward()
            compiled.train()


def test_it_is_a_name_of_the_package():
    assert fastreduce.DataParallel is DataParallel
