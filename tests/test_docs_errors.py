"""docs/troubleshooting.md quotes errors as they are raised."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn, ones

import fastreduce
from fastreduce import Instruction, Program
from fastreduce.algorithms import registry

PAGE = Path(__file__).parent.parent / "docs" / "troubleshooting.md"
REFUSED = PAGE.read_text(encoding="utf-8").split("## Calls that are refused")[1].split("\n## ")[0]
QUOTED = re.findall(r'\*\*"(.*?)"\*\*', REFUSED)


def matches(quoted: str, said: str) -> bool:
    """Where a page leaves something out, anything may stand."""
    return re.search(".*".join(map(re.escape, re.split(r" ?\.\.\. ?", quoted))), said) is not None


def one_without_a_gradient() -> list[nn.Module]:
    replicas = [nn.Linear(2, 2), nn.Linear(2, 2)]
    replicas[0](ones(1, 2)).sum().backward()
    return replicas


def read_only() -> np.ndarray:
    array = np.ones(3)
    array.flags.writeable = False
    return array


def wrong(k: int) -> Program:
    return Program(k, 1, [Instruction(0, 0, (0,), (0,))])


leaf, shared = nn.Parameter(ones(3)), ones(3)
CALLS: list[Callable[[], object]] = [
    lambda: fastreduce.allreduce([[ones(3)], [None]]),
    lambda: fastreduce.grads(one_without_a_gradient()),
    lambda: fastreduce.allreduce([ones(3), ones(4)]),
    lambda: fastreduce.allreduce([[ones(3)], [ones(3), ones(3)]]),
    lambda: fastreduce.allreduce([leaf, ones(3)]),
    lambda: fastreduce.allreduce([leaf * 2, ones(3)]),
    lambda: fastreduce.allreduce([shared, shared]),
    lambda: fastreduce.allreduce([ones(1).expand(3), ones(3)]),
    lambda: fastreduce.allreduce([torch.tensor([1]), torch.tensor([2])], op="avg"),
    lambda: fastreduce.allreduce([ones(3).to(torch.float8_e8m0fnu) for _ in range(2)]),
    lambda: fastreduce.allreduce([ones(3).to_sparse(), ones(3).to_sparse()]),
    lambda: fastreduce.allreduce([read_only(), np.ones(3)]),
    lambda: fastreduce.allreduce([np.ones(3)[::-1], np.ones(3)]),
    lambda: fastreduce.allreduce([ones(3), ones(3)], algorithm="rign"),
    lambda: fastreduce.allreduce([ones(3) for _ in range(4)], algorithm="mine"),
]


@pytest.fixture(scope="module")
def said() -> list[str]:
    registry["mine"] = wrong
    try:
        messages = []
        for call in CALLS:
            with pytest.raises((TypeError, ValueError, RuntimeError)) as caught:
                call()
            messages.append(str(caught.value))
        return messages
    finally:
        del registry["mine"]


@pytest.mark.parametrize("quoted", QUOTED)
def test_is_raised(quoted, said):
    assert any(matches(quoted, message) for message in said)


def test_every_error_is_on_the_page(said):
    assert [x for x in said if not any(matches(quoted, x) for quoted in QUOTED)] == []


def test_control_another_error_is_noticed(said):
    assert not any(matches("rank 1, tensor 0 is round", message) for message in said)
