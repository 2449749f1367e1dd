"""A list of what cannot be cut, with as many entries as examples, goes whole to every replica."""

import warnings

import pytest
import torch
from torch import nn

from fastreduce import DataParallel, Whole

WORDS = ["a", "b", "c", "d"]


class Captioned(nn.Linear):
    def forward(self, x, *others, **more):
        return super().forward(x)


@pytest.fixture
def model():
    return DataParallel(Captioned(3, 2), ["cpu"] * 2)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"captions": WORDS}, "a list of 4 str for 4 examples"),
        ({"captions": tuple(WORDS)}, "a tuple of 4 str for 4 examples"),
        ({"lengths": [3, 1, 2, 2]}, "a list of 4 int for 4 examples"),
        ({"graphs": [object() for _ in range(4)]}, "a list of 4 object for 4 examples"),
        ({"batch": {"tokens": [[1, 2], [3], [4], [5, 6]]}}, "a list of 4 list for 4 examples"),
    ],
)
def test_a_warning_says_so(model, more, words):
    with pytest.warns(UserWarning, match=words) as caught:
        model(torch.ones(4, 3), **more)
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match=words):
        model.backward(lambda y: y.mean(), {"x": torch.ones(4, 3), **more})


def test_targets_are_looked_at_too(model):
    with pytest.warns(UserWarning, match="a list of 4 str"):
        model.backward(lambda y, words: y.mean(), torch.ones(4, 3), WORDS)


@pytest.mark.parametrize(
    "others",
    [
        [Whole(WORDS)],
        [WORDS[:3]],
        [(1, 2, 3, 4)],
        [[True] * 4],
        [[None] * 4],
        [[torch.ones(4, 1)] * 4],
        [[Whole(torch.ones(2))] * 4],
        ["a", "b", "c"],
    ],
)
def test_what_is_marked_and_settings_are_quiet(model, others):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(torch.ones(4, 3), *others)
        model.backward(lambda y, *_: y.mean(), torch.ones(4, 3), *others, "d")
        model(torch.ones(1, 3), WORDS[:1])  # of one shard
