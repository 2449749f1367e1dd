"""The processes that torchrun starts: what it says of them, and what they must agree about."""

import contextlib
import dataclasses
import os
from pathlib import Path

import pytest
import torch

from fastreduce.training import CheckpointError, Config, Split, save
from fastreduce.training.checkpoint import read, whole
from fastreduce.training.processes import Processes, started

CONFIG = Config((torch.device("cpu"),), batch_size=4, kvstore="dist_sync")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, Processes()),
        ({"WORLD_SIZE": "3", "RANK": "2", "LOCAL_RANK": "1"}, Processes(2, 3, 1)),
        ({"WORLD_SIZE": "3", "RANK": "2"}, Processes(2, 3)),
        (
            {"WORLD_SIZE": "4", "RANK": "2", "LOCAL_RANK": "0", "GROUP_WORLD_SIZE": "2"},
            Processes(2, 4, 0, 2),
        ),
        # A rank without others is of something else.
        ({"RANK": "1"}, Processes()),
        ({"WORLD_SIZE": "1", "RANK": "1", "LOCAL_RANK": "x"}, Processes()),
    ],
)
def test_what_torchrun_says(monkeypatch, environment, expected):
    monkeypatch.setattr(os, "environ", environment)
    assert started() == expected


@pytest.mark.parametrize(
    ("processes", "command"),
    [
        (Processes(), "fastreduce"),
        (Processes(1, 2), "torchrun --nproc-per-node 2 -m fastreduce"),
        (Processes(1, 6, 1, 2), "torchrun --nnodes 2 --nproc-per-node 3 -m fastreduce"),
    ],
)
def test_what_starts_as_many(processes, command):
    assert processes.command == command


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        (
            {"WORLD_SIZE": "x"},
            r"\$WORLD_SIZE: found 'x', wanted a number of processes; let",
        ),
        ({"WORLD_SIZE": "2"}, r"\$RANK: found '', wanted 0 to 1"),
        ({"WORLD_SIZE": "2", "RANK": "2"}, r"\$RANK: found '2', wanted 0 to 1"),
        ({"WORLD_SIZE": "2", "RANK": "-1"}, r"\$RANK: found '-1', wanted 0 to 1"),
        ({"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "y"}, r"\$LOCAL_RANK: found 'y', wanted 0"),
    ],
)
def test_what_torchrun_does_not_say(monkeypatch, environment, words):
    monkeypatch.setattr(os, "environ", environment)
    with pytest.raises(ValueError, match=words):
        started()


@pytest.fixture
def all_have(monkeypatch):
    """What the other process of two tells: the value it had when it was asked first."""
    others = []

    def told(self, value):
        others.append(value)
        return [others[0], value]

    monkeypatch.setattr(Processes, "all", told)


def test_processes_with_the_same_settings_and_images_agree(tiny, all_have):
    elsewhere = dataclasses.replace(tiny, folder=Path("elsewhere"))
    twice = CONFIG.changed(devices=CONFIG.devices * 2)
    for config, data in ((CONFIG, tiny), (CONFIG, elsewhere), (twice, tiny)):
        Processes(0, 2).agree(config, data)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lr": 0.5}, "rank 1: found lr: 0.5, where rank 0 has 0.2; wanted the same on all ranks"),
        ({"seed": 1, "steps": 2}, "rank 1: found seed: 1, where rank 0 has 0; steps: 2, where ra"),
        ({}, "rank 1: found images: those of other, where rank 0 has those of tiny; wanted"),
    ],
)
def test_other_settings_or_images_are_named(tiny, all_have, changes, words):
    labels = tiny.test.labels if changes else tiny.test.labels.flip(0)
    data = dataclasses.replace(
        tiny, test=Split(tiny.test.images, labels), folder=Path("tiny" if changes else "other")
    )
    Processes(0, 2).agree(CONFIG, tiny)
    with pytest.raises(ValueError, match=words):
        Processes(1, 2).agree(CONFIG.changed(**changes), data)


@pytest.mark.parametrize(
    ("steps", "others", "last"), [([1, 2, 3], [1, 2], 2), ([1, 2], [1, 2, 3], 2), ([3], [1], None)]
)
def test_the_last_step_that_all_have(tmp_path, monkeypatch, steps, others, last):
    for step in steps:
        save(tmp_path, {}, step=step)
    monkeypatch.setattr(Processes, "all", lambda self, value: [value, others])
    with pytest.raises(CheckpointError) if last is None else contextlib.nullcontext():
        assert Processes(0, 2).last_of_all(whole(tmp_path)).step == last
    assert len(list(tmp_path.iterdir())) == len(steps)


@pytest.mark.parametrize(("processes", "left"), [(2, {1, 2, 5}), (1, {1, 2, 3, 4, 5})])
def test_what_several_have_beyond_it_is_forgotten(tmp_path, processes, left):
    paths = {step: save(tmp_path, {}, step=step, keep=9) for step in (1, 2, 3, 4)}
    paths[4].write_bytes(b"")  # damaged
    paths[5] = tmp_path / "step-5.safetensors"
    paths[5].mkdir()  # nothing of ours
    Processes(0, processes).forget_later(read(paths[2]))
    assert {step for step, path in paths.items() if path.exists()} == left
