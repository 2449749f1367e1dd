"""How a batch is cut into shards, and how outputs are joined."""

import dataclasses
from collections import OrderedDict, UserDict
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fastreduce import DataParallel, Whole
from fastreduce.parallel.batch import cut, rows_of, sizes_of_shards
from fastreduce.parallel.outputs import join

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("rows", "shares", "sizes"),
    [
        (10, [1, 1], [5, 5]),
        (10, [1, 1, 1], [4, 3, 3]),
        (11, [1, 1, 1], [4, 4, 3]),
        (2, [1, 1, 1, 1], [1, 1, 0, 0]),
        (10, [2, 1], [7, 3]),
        (9, [2, 1], [6, 3]),
        (1, [1, 99], [1, 0]),
        (5, [1, 99, 1], [1, 4, 0]),
    ],
)
def test_sizes(rows, shares, sizes):
    assert sizes_of_shards(rows, shares) == sizes


@given(st.integers(0, 10_000), st.lists(st.floats(0.01, 100), min_size=1, max_size=16))
def test_every_row_is_in_one_shard(rows, shares):
    sizes = sizes_of_shards(rows, shares)
    assert sum(sizes) == rows
    for size, share in zip(sizes, shares, strict=True):
        assert abs(size - rows * share / sum(shares)) < 1 + 1e-6


@dataclasses.dataclass
class Sample:
    image: torch.Tensor
    label: Any


@pytest.mark.parametrize(
    ("tree", "shards"),
    [
        (torch.arange(3), [torch.arange(2), torch.tensor([2])]),
        ((torch.arange(3), 5), [(torch.arange(2), 5), (torch.tensor([2]), 5)]),
        ({"x": torch.arange(3)}, [{"x": torch.arange(2)}, {"x": torch.tensor([2])}]),
        (
            Sample(torch.arange(3), "a"),
            [Sample(torch.arange(2), "a"), Sample(torch.tensor([2]), "a")],
        ),
        (
            [torch.arange(3), torch.tensor(7), Whole(torch.arange(2)), None],
            [
                [torch.arange(2), torch.tensor(7), torch.arange(2), None],
                [torch.tensor([2]), torch.tensor(7), torch.arange(2), None],
            ],
        ),
    ],
    ids=["tensor", "tuple", "dict", "dataclass", "scalars and whole arguments"],
)
def test_cut(tree, shards):
    assert rows_of(tree, 0) == 3
    assert repr(cut(tree, [2, 1], [CPU, CPU], 0)) == repr(shards)


class Features(dict):
    pass


class Attributes(dict):
    """Its keys are attributes, too."""

    def __init__(self, values):
        super().__init__(values)
        self.__dict__ = self


class Named(dict):
    """Cannot be made of a dict alone."""

    def __init__(self, values, *, name):
        super().__init__(values)
        self.name = name


@pytest.mark.parametrize(
    ("make", "handed_over"),
    [
        (dict, dict),
        (OrderedDict, OrderedDict),
        (Features, Features),
        (Attributes, Attributes),
        (UserDict, UserDict),
        (MappingProxyType, MappingProxyType),
        (lambda values: Named(values, name="mine"), dict),
    ],
    ids=["dict", "known", "subclass", "attributes", "UserDict", "read-only", "another constructor"],
)
def test_every_mapping_is_cut_and_joined_as_a_dict_is(make, handed_over):
    whole = make({"x": torch.arange(3), "inner": make({"y": torch.arange(3), "rate": 2})})
    parts = cut(whole, [2, 1], [CPU, CPU], 0)
    for part, rows in zip(parts, ([0, 1], [2]), strict=True):
        assert type(part) is type(part["inner"]) is handed_over and part["inner"]["rate"] == 2
        assert part["x"].tolist() == part["inner"]["y"].tolist() == rows
        assert getattr(part, "x", part["x"]) is part["x"]
    joined = join(parts, [2, 1], CPU, 0)
    assert type(joined) is handed_over and joined["inner"]["y"].tolist() == [0, 1, 2]


class Boxes(list):
    pass


class Pair(tuple):
    pass


class Sized(list):
    """Cannot be made of a list alone."""

    def __init__(self, values, size):
        super().__init__(values)


@pytest.mark.parametrize(
    ("make", "handed_over"),
    [(Boxes, Boxes), (Pair, Pair), (lambda values: Sized(values, 3), list)],
    ids=["list", "tuple", "another constructor"],
)
def test_subclasses_of_lists_and_tuples_are_cut_and_joined_as_lists_are(make, handed_over):
    whole = make([torch.arange(3), make([torch.arange(3), 2])])
    parts = cut(whole, [2, 1], [CPU, CPU], 0)
    for part, rows in zip(parts, ([0, 1], [2]), strict=True):
        assert type(part) is type(part[1]) is handed_over and part[1][1] == 2
        assert part[0].tolist() == part[1][0].tolist() == rows
    joined = join(parts, [2, 1], CPU, 0)
    assert type(joined) is handed_over and joined[1][0].tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match=r"3 in \[0\], 2 in \[1\]"):
        rows_of(make([torch.arange(3), torch.arange(2)]), 0)


@pytest.mark.parametrize("k", [1, 2])
def test_a_size_stays_one(k):
    class Shaped(nn.Linear):
        def forward(self, x, size):
            return super().forward(x).expand(size.numel(), -1, -1).movedim(1, 0), size

    y, size = DataParallel(Shaped(3, 2), [CPU] * k)(torch.ones(4, 3), torch.Size([2, 3]))
    assert y.shape == (4, 6, 2)
    assert isinstance(size, torch.Size) and size == (2, 3)


def test_what_mappings_hold_is_named_in_errors_and_moved_inside_whole():
    with pytest.raises(ValueError, match=r"3 in \['x'\], 2 in \['inner'\]\['y'\]"):
        rows_of(Features(x=torch.arange(3), inner=UserDict(y=torch.arange(2))), 0)
    (part,) = cut([Whole(Features(x=torch.arange(3)))], [3], [torch.device("meta")], 0)
    assert part[0]["x"].is_meta


def test_another_batch_dimension():
    tree = {"x": torch.arange(6).reshape(2, 3), "labels": torch.arange(3), "scale": torch.ones(())}
    assert rows_of(tree, 1) == 3
    first, second = cut(tree, [2, 1], [CPU, CPU], 1)
    assert first["x"].tolist() == [[0, 1], [3, 4]] and second["x"].tolist() == [[2], [5]]
    assert first["labels"].tolist() == [0, 1] and second["labels"].tolist() == [2]
    assert first["scale"] == second["scale"] == 1


@pytest.mark.parametrize(
    ("outputs", "joined"),
    [
        ([torch.tensor([1]), torch.tensor([2, 3])], torch.tensor([1, 2, 3])),
        ([torch.tensor(1.0), torch.tensor(2.0)], torch.tensor([1.0, 2.0])),
        (
            [{"y": (torch.tensor([1]), "mean", 4)}, {"y": (torch.tensor([2]), "mean", 4)}],
            {"y": (torch.tensor([1, 2]), "mean", 4)},
        ),
        (
            [Sample(torch.tensor([1]), None), Sample(torch.tensor([2]), None)],
            Sample(torch.tensor([1, 2]), None),
        ),
    ],
    ids=["tensors", "scalars", "nested", "dataclass"],
)
def test_join(outputs, joined):
    assert repr(join(outputs, [1] * len(outputs), CPU, 0)) == repr(joined)


class Two(nn.Linear):
    def forward(self, sample, *, scale, mask):
        return {"logits": super().forward(sample.image) * scale + mask, "rows": len(sample.image)}


@pytest.mark.parametrize(
    ("lengths", "sizes"),
    [([12, 12], [4, 4]), ([2, 3], [4, 4]), ([3, 3], [5, 4]), ([2], [4])],
    ids=["examples * steps", "what some examples have", "uneven shards", "one shard"],
)
def test_dimension_1_may_have_the_length_of_a_shard(lengths, sizes):
    assert len(join([torch.ones(n, 4) for n in lengths], sizes, CPU, 0)) == sum(lengths)


def test_a_model_of_dataclasses_keywords_and_whole_arguments():
    model = DataParallel(Two(3, 2), devices=["cpu", "cpu"])
    sample, mask = Sample(torch.randn(4, 3), None), torch.randn(2)
    found = model(sample, scale=2.0, mask=Whole(mask))
    wanted = model.module(sample, scale=2.0, mask=mask)
    torch.testing.assert_close(found["logits"], wanted["logits"])
    assert found["rows"] == 2


class Picking(nn.Linear):
    def forward(self, numbers, images):
        images = [images[i] for i in numbers]
        return torch.stack([super(Picking, self).forward(image).sum(0) for image in images])


def test_examples_of_different_sizes_are_picked_by_their_numbers():
    net, images = Picking(3, 2), [torch.randn(n, 3) for n in (2, 5, 1, 4, 3)]
    found = DataParallel(net, ["cpu"] * 2)(torch.arange(5), Whole(images))
    torch.testing.assert_close(found, net(range(5), images))


@pytest.mark.parametrize(
    ("images", "boxes", "words"),
    [
        (torch.ones(6, 3), [torch.ones(2, 4)] * 6, r", 2 in args\[1\]\[2\], and 3 more tensors"),
        (
            torch.ones(6, 3),
            [torch.ones(2, 4)] * 6,
            r"of 6, .*, or pass torch.arange\(6\) with",
        ),
        ([object()], [], r"found no tensor .*, such as graphs, .* the numbers of a torch.arange"),
    ],
)
def test_errors_say_what_works(images, boxes, words):
    with pytest.raises(ValueError, match=words):
        DataParallel(Picking(3, 2), ["cpu"] * 2)(images, boxes)


def test_so_do_those_about_outputs():
    words = r"cannot be joined; .*, or model.backward, which joins"
    for one, other in ((1, 2), [SimpleNamespace(x=torch.ones(n)) for n in (2, 3)]):
        with pytest.raises(ValueError, match=words):
            join([(torch.ones(1), one), (torch.ones(1), other)], [1, 1], CPU, 0)


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype stage:UserWarning")
def test_nested_outputs_are_refused():
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    with pytest.raises(ValueError, match=r"returned a nested tensor, .* its to_padded_tensor"):
        join([nested, nested], [2, 2], CPU, 0)


def test_one_replica_takes_whole_arguments_too():
    model = DataParallel(Two(3, 2), devices=["cpu"])
    sample = Sample(torch.randn(4, 3), None)
    assert model(sample, scale=2.0, mask=Whole(torch.randn(2)))["rows"] == 4


def test_values_that_are_not_numbers_are_the_same():
    joined = join([(torch.ones(1), float("nan")) for _ in range(2)], [1, 1], CPU, 0)
    assert torch.equal(joined[0], torch.ones(2)) and joined[1] != joined[1]
