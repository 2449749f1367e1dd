"""The processes that torchrun starts: what it says of them, and what they must agree about."""

import dataclasses
import os
from pathlib import Path

import pytest
import torch

from fastreduce.training import CheckpointError, Config, Split, save
from fastreduce.training.checkpoint import whole
from fastreduce.training.processes import Processes, started

CONFIG = Config((torch.device("cpu"),), batch_size=4, kvstore="dist_sync")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, Processes()),
        ({"WORLD_SIZE": "3", "RANK": "2", "LOCAL_RANK": "1"}, Processes(2, 3, 1)),
        ({"WORLD_SIZE": "3", "RANK": "2"}, Processes(2, 3)),
        # A rank without others is of something else.
        ({"RANK": "1"}, Processes()),
        ({"WORLD_SIZE": "1", "RANK": "1", "LOCAL_RANK": "x"}, Processes()),
    ],
)
def test_what_torchrun_says(monkeypatch, environment, expected):
    monkeypatch.setattr(os, "environ", environment)
    assert started() == expected


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
    ("steps", "others", "last", "left"),
    [([1, 2, 3], [1, 2], 2, [1, 2]), ([1, 2], [1, 2, 3], 2, [1, 2]), ([3], [1, 2], None, [3])],
)
def test_what_a_process_has_beyond_the_last_step_of_all_is_removed(
    tmp_path, monkeypatch, steps, others, last, left
):
    for step in steps:
        save(tmp_path, {}, step=step)
    monkeypatch.setattr(Processes, "all", lambda self, value: [value, others])
    try:
        found = Processes(0, 2).last_of_all(whole(tmp_path)).step
    except CheckpointError:
        found = None
    assert found == last
    assert [checkpoint.step for checkpoint in whole(tmp_path)] == left[::-1]
