"""A training run's state as tensors and JSON: every tree comes back, and nothing is pickled."""

import json
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastreduce.training import save
from fastreduce.training.checkpoint import read
from fastreduce.training.state import flatten, unflatten

leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5)
) | st.sampled_from([torch.arange(3), torch.tensor(1.5), torch.empty(0, 2), torch.ones(2, 2).T])
keys = st.integers() | st.text(max_size=3) | st.none()
trees = st.recursive(
    leaves,
    lambda x: (
        st.lists(x, max_size=3)
        | st.lists(x, max_size=3).map(tuple)
        | st.dictionaries(keys, x, max_size=3)
    ),
    max_leaves=8,
)


def equal(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other


@given(trees)
def test_any_tree_comes_back_through_json(tree):
    tensors = {}
    text = json.dumps(flatten(tree, "x", tensors))
    assert equal(unflatten(json.loads(text), tensors), tree)


def test_control_equal_sees_what_differs():
    assert not equal([1, (2,)], [1, [2]])
    assert not equal({"a": torch.ones(2)}, {"a": torch.zeros(2)})
    assert not equal(1, True)


def test_counters():
    found = unflatten(flatten(Counter([2, 2, 3]), "x", {}), {})
    assert isinstance(found, Counter) and found == {2: 2, 3: 1}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.int8, torch.bool])
def test_dtypes(tmp_path, dtype):
    x = torch.tensor([0.0, 1.0]).to(dtype)
    save(tmp_path, {"x": x}, step=0)
    found = read(tmp_path).state["x"]
    assert found.dtype == dtype and torch.equal(found.float(), x.float())


def test_a_name_that_files_have_for_themselves(tmp_path):
    save(tmp_path, {"__metadata__": torch.ones(2)}, step=0)
    assert read(tmp_path).state["__metadata__"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (lambda: 1, r"x\.a: found a function, wanted tensors"),
        (object(), r"x\.a: found a object"),
        ({(1, 2): 3}, r"x\.a: found the key \(1, 2\), wanted strings or numbers"),
        ({(): 3}, r"x\.a: found the key \(\), wanted strings or numbers"),
        ({None: 1, b"": 3}, r"x\.a: found the key b'', wanted strings or numbers"),
        (torch.eye(2).to_sparse(), r"x\.a: found a sparse tensor, wanted a dense tensor"),
        (
            torch.ones(2, dtype=torch.complex128),
            r"x\.a: found a tensor of torch.complex128, wanted",
        ),
        (torch.ones(2, device="meta"), r"x\.a: found a tensor on meta, wanted .* with values"),
        (torch.nn.LazyLinear(2).weight, r"x\.a: found a parameter that no batch has initialized"),
    ],
)
def test_what_no_file_can_hold_is_refused(tmp_path, value, words):
    with pytest.raises(TypeError, match=words):
        save(tmp_path, {"x": {"a": value}}, step=0)
    assert not any(tmp_path.iterdir())
