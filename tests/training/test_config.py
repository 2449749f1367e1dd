"""Settings that make no sense together are refused before anything runs."""

import dataclasses
import json
from fractions import Fraction

import numpy as np
import pytest
import torch

from fastreduce.training import Config

CPU = torch.device("cpu")
TWO = Config(devices=(CPU, CPU), batch_size=4, epochs=2)


def test_a_graph_cannot_leave_out_a_step():
    with pytest.raises(ValueError, match="skip-nonfinite: found with graph, which has updated"):
        Config(devices=(torch.device("cuda:0"),), graph=True, skip_nonfinite=True)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"devices": ()}, "replicas: found 0"),
        ({"devices": "cpu"}, "devices: found 'cpu', wanted a tuple of torch.device"),
        ({"devices": ("cpu",)}, r"devices: found \('cpu',\), wanted a tuple of torch.device"),
        ({"lr": "0.1"}, "lr: found '0.1', wanted a number"),
        ({"lr": None}, "lr: found None, wanted a number"),
        ({"epochs": 1.5}, "epochs: found 1.5, wanted a whole number"),
        ({"batch_size": True}, "batch-size: found True, wanted a whole number"),
        ({"steps": "3"}, "steps: found '3', wanted a whole number"),
        ({"batch_size": 0}, "batch size: found 0"),
        ({"batch_size": 1}, "replicas: found 2 for a batch of 1 examples"),
        ({"epochs": 0}, "epochs: found 0"),
        ({"steps": 0}, "steps: found 0"),
        ({"seed": -1}, "seed: found -1"),
        ({"seed": 2**63}, "seed: found 9223372036854775808"),
        ({"lr": 0.0}, r"lr: found 0\.0"),
        ({"lr": -0.1}, r"lr: found -0\.1"),
        ({"lr": float("nan")}, "lr: found nan"),
        ({"lr": float("inf")}, "lr: found inf"),
        ({"init": "zeros"}, "init: found 'zeros', wanted one of kaiming, book"),
        ({"model": "vgg"}, "model: found 'vgg', wanted one of lenet, resnet18, mlp"),
        ({"precision": "fp8"}, "precision: found 'fp8', wanted one of fp32, bf16"),
        ({"lr_schedule": "cosine"}, "lr-schedule: found 'cosine', wanted one of constant, linear"),
        (
            {"lr_schedule": "linear", "kvstore": "local"},
            "lr-schedule: found 'linear' with kvstore 'local', which updates at one rate",
        ),
        ({"lr_schedule": "linear", "allreduce": "ring"}, "lr-schedule: .* with allreduce 'ring'"),
        ({"momentum": 1.0}, r"momentum: found 1\.0, wanted at least 0 and below 1"),
        ({"momentum": -0.1}, "momentum: found -0.1"),
        ({"weight_decay": -1e-4}, "weight-decay: found -0.0001, wanted a number from 0"),
        ({"weight_decay": float("inf")}, "weight-decay: found inf"),
        ({"momentum": 0.9, "kvstore": "local"}, "momentum: .* SGD without either"),
        ({"weight_decay": 1e-4, "allreduce": "ring"}, "weight-decay: .* with allreduce 'ring'"),
        ({"reproducible": 0}, "reproducible: found 0"),
        ({"reproducible": 1}, "reproducible: found 1 micro-shards for 2 replicas"),
        ({"reproducible": 5}, "reproducible: found 5 micro-shards for a batch of 4 examples"),
        ({"batch_size": 2**63}, "batch size: found 9223372036854775808, wanted at most"),
        ({"epochs": 2**63}, "epochs: found 9223372036854775808, wanted at most"),
        ({"lr": 10**400}, "lr: found 10*, wanted a number above 0, and at most"),
        ({"allreduce": "ring", "model": "mlp"}, "model: found 'mlp' with allreduce 'ring'"),
        ({"allreduce": "ring", "compile": True}, "compile: found True with allreduce 'ring'"),
        ({"allreduce": "rong"}, "allreduce: found 'rong', wanted one of auto, loop, .*ring"),
    ],
)
def test_a_config_that_cannot_be_is_an_error(wrong, words):
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(TWO, **wrong)


@pytest.mark.parametrize(
    ("name", "number", "kept"),
    [
        ("seed", np.int64(3), 3),
        ("steps", np.int32(3), 3),
        ("lr", np.float32(0.5), 0.5),
        ("lr", Fraction(1, 4), 0.25),
        ("momentum", 0, 0.0),
    ],
)
def test_numbers_of_other_types_become_python_s_which_json_has(name, number, kept):
    found = dataclasses.replace(TWO, **{name: number})
    assert type(getattr(found, name)) is type(kept) and getattr(found, name) == kept
    assert Config.from_json(json.loads(json.dumps(found.to_json()))) == found


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"devices": None}, "config: found devices None, wanted a list of names such as"),
        ({"devices": 3}, "config: found devices 3, wanted"),
        ({"devices": []}, r"config: found devices \[\], wanted"),
        ({"devices": ["cpu", "nonsense"]}, r"config: found devices \['cpu', 'nonsense'\], wanted"),
        ({"lr": [1]}, r"lr: found \[1\], wanted a number"),
        ({"model": ["mlp"]}, r"model: found \['mlp'\], wanted one of lenet, resnet18, mlp"),
        ({"kvstore": 3}, "found 3, wanted one of local, dist_sync, dist_async"),
        (
            {"dampening": 0.9},
            "config: found the settings dampening, which this fastreduce",
        ),
    ],
)
def test_what_is_no_config_is_an_error(changes, words):
    with pytest.raises(ValueError, match=words):
        Config.from_json({**TWO.to_json(), **changes})
