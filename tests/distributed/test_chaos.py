"""FASTREDUCE_CHAOS: what it takes, and what happens to the calls of a group."""

import os
from contextlib import suppress

import pytest
import torch
import torch.distributed as dist
from failure_scenarios import raised
from processes import in_a_group

import fastreduce.distributed  # noqa: F401

VARIABLE = "FASTREDUCE_CHAOS"


def group_of_one():
    store = dist.HashStore()
    dist.init_process_group("fastreduce", store=store, rank=0, world_size=1)


@pytest.fixture(autouse=True)
def no_group_is_left():
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize(
    "text",
    [
        *("x", "-1", "7:", "7:stop", "7:stop=", "7:stop=x", "7:stop=0.1x", "7:halt=0.1"),
        *("7:stop=1.1", "7:stop=-0.1", "7:stop=nan", "7:stop=0.6,kill=0.6", "7 stop=0.1"),
    ],
)
def test_what_cannot_be_read_is_refused(monkeypatch, text):
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(ValueError, match=f"{VARIABLE} is '{text}'; want a seed, and what shall"):
        group_of_one()


@pytest.mark.parametrize("text", ["", "7", "7:delay=0", "18446744073709551615:stop=0,fail=0.0"])
def test_what_can_be_read(monkeypatch, text):
    monkeypatch.setenv(VARIABLE, text)
    group_of_one()
    dist.all_reduce(torch.ones(1))


def test_every_call_fails(monkeypatch):
    monkeypatch.setenv(VARIABLE, "7:fail=1")
    group_of_one()
    words = raised(lambda: dist.all_reduce(torch.ones(1)))
    assert words == f"rank 0 was made to fail by {VARIABLE}"


def fails_at(rank, seed, restarts, folder):
    """Writes which call fails on this rank, in a group of its own."""
    os.environ[VARIABLE] = f"{seed}:fail=0.02"
    os.environ["TORCHELASTIC_RESTART_COUNT"] = str(restarts)
    for peer in range(dist.get_world_size()):
        group = dist.new_group([peer])
        if peer == rank:
            own = group
    calls = 0
    with suppress(dist.DistBackendError):
        for calls in range(10_000):  # noqa: B007 - how many went well
            dist.all_reduce(torch.ones(1), group=own)
    torch.save(calls, f"{folder}/calls-{rank}")


def test_seed_rank_and_restarts_say_when(tmp_path):
    def found(seed, again=0, restarts=0):
        folder = tmp_path / f"{seed}-{again}-{restarts}"
        folder.mkdir()
        in_a_group(fails_at, (seed, restarts, str(folder)), 2, folder, None, "fastreduce")
        return [torch.load(folder / f"calls-{rank}") for rank in range(2)]

    first = found(1)
    assert first[0] != first[1]
    assert found(1, again=1) == first
    for other in (found(2), found(1 + 2**32), found(1, restarts=1)):
        assert other != first
