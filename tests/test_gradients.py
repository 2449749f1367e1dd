"""Gradients are collected for the same parameters on all ranks, or a parameter is named."""

import copy
import re

import pytest
import torch
from torch import nn

import fastreduce
from fastreduce import grads


class Model(nn.Module):
    """Two layers that are used, and one that is not."""

    def __init__(self):
        super().__init__()
        self.body, self.head, self.spare = nn.Linear(3, 2), nn.Linear(2, 1), nn.Linear(1, 1)

    def forward(self, x):
        return self.head(self.body(x))


USED = ["body.weight", "body.bias", "head.weight", "head.bias"]


def replicas(k=3, prepare=lambda model: None):
    """k replicas after one backward each, on rows that differ."""
    model = Model()
    prepare(model)
    copies = [copy.deepcopy(model) for _ in range(k)]
    for rank, replica in enumerate(copies):
        replica(torch.full((1, 3), rank + 1.0)).sum().backward()
    return copies


AS = {
    "modules": lambda model: model,
    "lists of parameters": lambda model: list(model.parameters()),
    "generators of parameters": lambda model: model.parameters(),
    "named parameters": lambda model: model.named_parameters(),
    "items of a dict": lambda model: dict(model.named_parameters()).items(),
}


def are_the_gradients(found, models, names):
    """Whether ``found`` holds these parameters' own gradient tensors."""
    wanted = [[model.get_parameter(name).grad for name in names] for model in models]
    return [[id(x) for x in rank] for rank in found] == [[id(x) for x in rank] for rank in wanted]


@pytest.mark.parametrize("kind", AS.values(), ids=AS)
@pytest.mark.parametrize("k", [1, 3])
def test_each_rank_s_own_gradients_come_in_the_order_of_the_parameters(k, kind):
    models = replicas(k)
    assert are_the_gradients(grads([kind(model) for model in models]), models, USED)


def test_control_other_gradients_would_be_told_apart():
    models = replicas(2)
    found = grads(models)
    assert not are_the_gradients(found[::-1], models, USED)
    assert not are_the_gradients([[x.clone() for x in rank] for rank in found], models, USED)
    assert not are_the_gradients(found, models, USED[:-1])


def test_the_allreduce_of_them_reaches_every_optimizer():
    models = replicas(3)
    wanted = sum(model.body.weight.grad for model in models)
    fastreduce.allreduce(grads(models))
    for model in models:
        torch.testing.assert_close(model.body.weight.grad, wanted)


def freeze(name):
    return lambda model: model.get_parameter(name).requires_grad_(False)


def test_what_is_frozen_on_all_ranks_is_left_out_also_with_a_gradient_of_earlier():
    models = replicas(2, prepare=freeze("body.bias"))
    assert are_the_gradients(grads(models), models, [USED[0], *USED[2:]])
    for model in models:
        freeze("head.weight")(model)
        assert model.head.weight.grad is not None
    assert are_the_gradients(grads(models), models, [USED[0], USED[3]])


def test_a_module_list_holds_replicas():
    models = replicas(2)
    assert are_the_gradients(grads(nn.ModuleList(models)), models, USED)


def drop(name):
    def change(model):
        model.get_parameter(name).grad = None

    return change


def retype(model):
    model.body.to(torch.bfloat16)


def swap(model):
    model.body, model.head = model.head, model.body
    model._modules = {"head": model.body, "body": model.head, "spare": model.spare}


def reshape(model):
    model.head = nn.Linear(2, 4)


def extend(model):
    model.extra = nn.Linear(1, 1)


# What happened to rank 1 of three, and the words of the error.
DIFFERENCES = {
    "no gradient": (
        drop("head.bias"),
        "parameter head.bias: found gradient a tensor on ranks 0, 2; None on rank 1; wanted",
    ),
    "a gradient elsewhere only": (
        lambda model: model.spare(torch.ones(1)).sum().backward(),
        "parameter spare.weight: found gradient None on ranks 0, 2; a tensor on rank 1; wanted",
    ),
    "frozen": (
        freeze("body.weight"),
        "parameter body.weight: found frozen: False on ranks 0, 2; True on rank 1; wanted",
    ),
    "another shape": (
        reshape,
        "parameter head.weight: found shape (1, 2) on ranks 0, 2; (4, 2) on rank 1; wanted",
    ),
    "another dtype": (
        retype,
        "parameter body.weight: found dtype torch.float32 on ranks 0, 2; torch.bfloat16 on rank 1",
    ),
    "another order": (swap, "parameter 0: found head.weight on rank 1 and body.weight on rank 0"),
    "one more": (extend, "parameter 6: found extra.weight on rank 1 and no parameter on rank 0"),
    "one less": (
        lambda model: delattr(model, "spare"),
        "parameter 4: found no parameter on rank 1 and spare.weight on rank 0",
    ),
}


@pytest.mark.parametrize(("change", "words"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_ranks_that_differ_are_an_error_that_names_the_parameter(change, words):
    models = replicas(3)
    grads(models)
    change(models[1])
    with pytest.raises(ValueError, match=re.escape(words)):
        grads(models)


def test_lists_without_names_tell_the_place_of_a_parameter():
    models = replicas(2)
    drop("body.bias")(models[0])
    with pytest.raises(ValueError, match=r"parameter 1: found gradient None on rank 0"):
        grads([model.parameters() for model in models])


@pytest.mark.parametrize("name", ["missing", "None", ""])
def test_a_rank_without_parameters_is_refused_whatever_their_names(name):
    one = [(name, torch.nn.Parameter(torch.ones(1)))]
    with pytest.raises(ValueError, match=f"found no parameter on rank 1 and {name} on rank 0"):
        grads([one, []])


def test_a_missing_gradient_says_what_to_do_and_that_helps():
    models = replicas(2)
    drop("head.bias")(models[1])
    with pytest.raises(ValueError, match=r"set its \.grad to torch\.zeros_like"):
        grads(models)
    models[1].head.bias.grad = torch.zeros_like(models[1].head.bias)
    assert are_the_gradients(grads(models), models, USED)


@pytest.mark.parametrize("models", [[], [Model(), Model()]], ids=["no rank", "no backward"])
def test_no_gradient_at_all_is_an_error(models):
    with pytest.raises(ValueError, match=rf"no gradient on any of {len(models)} ranks"):
        grads(models)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (nn.Sequential(nn.Linear(1, 1)), "found one Sequential, wanted a list of replicas"),
        (Model(), "found one Model, wanted a list of replicas"),
        (None, "found one NoneType, wanted a list of replicas"),
        ([torch.ones(2)], "rank 0: found Tensor, wanted an nn.Module"),
        ([nn.Linear(1, 1), 3], "rank 1: found int, wanted an nn.Module"),
        ([["weight"]], "rank 0, parameter 0: found str"),
        ([[("weight", None)]], "rank 0, parameter 0: found NoneType"),
        ([[(1, 2, 3)]], "rank 0, parameter 0: found tuple"),
    ],
)
def test_what_holds_no_parameters_is_an_error(wrong, words):
    with pytest.raises(TypeError, match=re.escape(words)):
        grads(wrong)


def test_a_lazy_module_that_has_seen_no_batch_is_an_error():
    models = [nn.LazyLinear(2), nn.LazyLinear(2)]
    models[0](torch.ones(1, 3))
    with pytest.raises(ValueError, match=r"parameter weight: .* uninitialized on rank 1.* batch"):
        grads(models)
