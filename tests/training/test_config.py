"""Settings that make no sense together are refused before anything runs."""

import dataclasses

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
        ({"allreduce": "ring", "model": "mlp"}, "model: found 'mlp' with allreduce 'ring'"),
        ({"allreduce": "ring", "compile": True}, "compile: found True with allreduce 'ring'"),
        ({"allreduce": "rong"}, "allreduce: found 'rong', wanted one of auto, loop, .*ring"),
    ],
)
def test_a_config_that_cannot_be_is_an_error(wrong, words):
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(TWO, **wrong)
