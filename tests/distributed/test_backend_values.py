"""What the backend's collectives leave behind, bit by bit: backend_cases.py has the table."""

from functools import cache

import backend_scenarios as scenarios
import pytest
import torch
from backend_calls import ALIKE, CALLS
from processes import in_a_group
from sweeps import one_in


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """By rank: what failed, and the bits that shall be alike on all ranks."""

    @cache
    def run(size, seed=None):
        folder = tmp_path_factory.mktemp(f"ranks{size}")
        in_a_group(scenarios.cases, (size, str(folder), seed), size, folder, None, "fastreduce", 20)
        return [torch.load(folder / f"found-{rank}", weights_only=False) for rank in range(size)]

    return run


def check(found, name):
    for rank, (failed, _) in enumerate(found):
        for case, why in failed.items():
            assert case.call != name, f"rank {rank}, {case}: {why}"
    if name in ALIKE:
        own = [{k: v for k, v in bits.items() if k.call == name} for _, bits in found]
        assert own[0] and all(x == own[0] for x in own), "ranks have different bits"


@pytest.mark.parametrize("size", one_in(4, [3, 1, 2, 4], "processes"))
@pytest.mark.parametrize("name", CALLS)
def test_values(found, size, name):
    check(found(size), name)


@pytest.mark.sweep("processes")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("size", [2, 1, 3, 4])
def test_any_values(found, size, seed):
    for name in CALLS:
        check(found(size, seed), name)
