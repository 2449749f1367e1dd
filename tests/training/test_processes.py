"""The processes that torchrun starts: what it says of them, and what they must agree about."""

import os

import pytest

from fastreduce.training.processes import Processes, started


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
