"""What cannot be wrapped, and settings that make no sense: what is raised, in which words."""

import numpy as np
import pytest
import torch
from torch import nn

from fastreduce import DataParallel


class Outside(nn.Linear):
    def __init__(self):
        super().__init__(6, 5)
        self.others = [torch.zeros(3, requires_grad=True)]


class Slotted(nn.Linear):
    __slots__ = ("extra",)


class Uncopyable(nn.Linear):
    def __init__(self):
        super().__init__(6, 5)
        self.file = (number for number in range(3))


def linear(**settings):
    return DataParallel(nn.Linear(6, 5), ["cpu"] * 2, **settings)


CPU2 = ["cpu", "cpu"]
WRAPPING = {
    "no module": (lambda: DataParallel(lambda x: x), TypeError, "found function, wanted an nn.Mod"),
    "a tensor": (lambda: DataParallel(torch.ones(2)), TypeError, "found Tensor"),
    "meta": (lambda: DataParallel(nn.Linear(2, 2, device="meta"), CPU2), ValueError,
             "parameter weight is on meta, but the first replica"),
    "no parameters": (lambda: DataParallel(nn.ReLU(), CPU2), ValueError, "ReLU has no parameters"),
    "lazy": (lambda: DataParallel(nn.LazyLinear(2), CPU2), ValueError,
             "parameter weight is not initialized yet; run one batch"),
    "made for inference": (
        lambda: DataParallel(torch.inference_mode()(lambda: nn.Linear(2, 2))(), CPU2), ValueError,
        r"parameter weight was made under torch.inference_mode\(\)"),
    "wrapped": (lambda: DataParallel(linear(), CPU2), ValueError, "wrapped already"),
    "nn.DataParallel": (lambda: DataParallel(nn.DataParallel(nn.Linear(2, 2)), CPU2), ValueError,
                        "wanted the bare module: pass its .module"),
    "scripted": (lambda: DataParallel(torch.jit.script(nn.Linear(2, 2)), CPU2), ValueError,
                 "cannot be copied for each replica"),
    "slots": (lambda: DataParallel(Slotted(6, 5), CPU2), ValueError,
              "found a Slotted, whose class has __slots__"),
    "tensor outside": (lambda: DataParallel(Outside(), CPU2), ValueError,
                       r"shape \(3,\) that requires grad but is not one of its parameters"),
    "uncopyable": (lambda: DataParallel(Uncopyable(), CPU2), ValueError, "cannot be copied"),
    "a number of devices": (
        lambda: DataParallel(nn.Linear(2, 2), 2), TypeError,
        "found devices=2, wanted a list with one device per replica"),
    "one device": (lambda: DataParallel(nn.Linear(2, 2), "cpu"), TypeError, "found devices='cpu'"),
    "no device": (lambda: DataParallel(nn.Linear(2, 2), []), ValueError, "found no device"),
    "meta devices": (lambda: DataParallel(nn.Linear(2, 2), ["meta"]), ValueError,
                     "found 'meta', which cannot be used"),
    "unknown device": (lambda: DataParallel(nn.Linear(2, 2), ["cpu", "gpu0"]), ValueError,
                       "found 'gpu0', which cannot be used here .* wanted such as"),
    "no device name": (lambda: DataParallel(nn.Linear(2, 2), ["cpu", None]), ValueError,
                       "found 'None', which cannot be used here"),
    "a GPU that is not there": (lambda: DataParallel(nn.Linear(2, 2), [99]), ValueError,
                                "found 'cuda:99', which cannot be used here"),
    "nn.DataParallel's argument": (lambda: linear(device_ids=[0]), TypeError,
                                   "argument device_ids, which is devices here"),
    "a misspelt argument": (lambda: linear(reproducable=4), TypeError,
                             "argument reproducable; wanted .* at_once or record"),
    "overlap": (lambda: linear(overlap=1), TypeError, "overlap=1, wanted True or False"),
    "at_once": (lambda: linear(at_once="yes"), TypeError, "at_once='yes', wanted True or False"),
    "sync_batchnorm": (lambda: linear(sync_batchnorm="yes"), TypeError, "sync_batchnorm='yes'"),
    "record in no folder": (lambda: linear(record="no/such/folder/a.jsonl"), ValueError,
                            "record='no/such/folder/a.jsonl' cannot be made: No such file"),
    "record that is there": (lambda: linear(record=__file__), ValueError, "made: File exists"),
    "a number as shares": (lambda: linear(shares=2), ValueError, "found shares=2, wanted"),
    "an array as shares": (lambda: linear(shares=np.array([1, 2])), ValueError,
                           r"found shares=array\(\[1, 2\]\), wanted .* list of one number per rep"),
    "shares": (lambda: linear(shares=[1]), ValueError, "found 1 shares for 2 replicas"),
    "no share": (lambda: linear(shares=[1, 0]), ValueError, "share 0 of replica 1"),
    "bad share": (lambda: linear(shares=["a", 1]), ValueError, "share 'a' of replica 0"),
    "unknown shares": (lambda: linear(shares="fast"), ValueError, "found shares='fast', wanted"),
    "measured and both": (lambda: linear(reproducible=4, shares="measured"), ValueError,
                          "reproducible and shares"),
    "no micro-shards": (lambda: linear(reproducible=0), ValueError, "found reproducible=0"),
    "few micro-shards": (lambda: linear(reproducible=1), ValueError, "reproducible=1 .*2 repl"),
    "no whole number": (lambda: linear(reproducible="8"), ValueError, "reproducible='8' .* whole"),
    "both": (lambda: linear(reproducible=4, shares=[2, 1]), ValueError, "reproducible and shares"),
    "share of True": (lambda: linear(shares=[True, 1]), ValueError, "share True of replica 0"),
    "endless share": (lambda: linear(shares=[10**400, 1]), ValueError, "share 10+ of replica 0"),
    "True as batch_dim": (lambda: linear(batch_dim=True), ValueError, "found batch_dim=True, want"),
    "batch_dim": (lambda: linear(batch_dim=-1), ValueError, "found batch_dim=-1"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRAPPING)
def test_wrapping(name):
    call, error, words = WRAPPING[name]
    with pytest.raises(error, match=words):
        call()


def test_devices_of_two_kinds(monkeypatch):
    here = [torch.device("cpu"), torch.device("cuda", 0)]
    monkeypatch.setattr("fastreduce.parallel.checks.usable_devices", lambda _: here)
    with pytest.raises(ValueError, match="found devices cpu, cuda:0; wanted all"):
        linear()
