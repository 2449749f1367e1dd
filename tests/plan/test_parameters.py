"""A model's parameters, of files that are read without their tensors."""

import json
import os

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fastreduce.plan.parameters import parameters


@pytest.fixture
def model():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 2))


def shapes(found):
    return [tuple(x.shape) for x in found]


@pytest.fixture
def files(model, tmp_path):
    """By name, files that hold the model, or do not."""
    state = model.state_dict()
    torch.save(state, tmp_path / "state.pt")
    torch.save({"epoch": 3, "model": state}, tmp_path / "nested.pt")
    torch.save({"model": state, "best_loss": torch.tensor(0.3)}, tmp_path / "checkpoint.pt")
    torch.save({"first": state["0.weight"], "tied": state["0.weight"]}, tmp_path / "tied.pt")
    torch.save({"steps": torch.zeros(3, dtype=torch.int64)}, tmp_path / "integers.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    torch.save(model, tmp_path / "module.pt")
    torch.save(state, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    torch.save({"sums": torch.eye(3).to_sparse()}, tmp_path / "sparse.pt")
    torch.save({name: x.to("meta") for name, x in state.items()}, tmp_path / "meta.pt")
    save_file({name: x.bfloat16() for name, x in state.items()}, tmp_path / "half.safetensors")
    halves = [dict(list(state.items())[part::2]) for part in range(2)]
    for part, half in enumerate(halves):
        save_file(half, tmp_path / f"part-{part}.safetensors")
    where = {name: f"part-{part}.safetensors" for part, half in enumerate(halves) for name in half}
    (tmp_path / "index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    small = {"a": torch.ones(4), "scale": torch.ones(4).to(torch.float8_e8m0fnu)}
    save_file(small, tmp_path / "small.safetensors")
    (tmp_path / "shapes.json").write_text(json.dumps([list(x.shape) for x in model.parameters()]))
    (tmp_path / "text.safetensors").write_text("these are no tensors")
    (tmp_path / "text.txt").write_text("these are no tensors")
    (tmp_path / "empty").touch()
    for name, content in {
        "object": {"a": 1},
        "negative": [[3, -1]],
        "words": [[3], "4x4"],
        "huge": [[1 << 40, 1 << 40]],
        "endless": [[10**30]],
        "nothing": [],
        "zero": [[0, 4]],
    }.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    (tmp_path / "torn.json").write_text("[[3, 4")
    return tmp_path


@pytest.mark.parametrize("name", ["state.pt", "nested.pt", "checkpoint.pt", "shapes.json"])
def test_a_file_has_what_the_model_has(model, files, name):
    found = parameters(files / name)
    assert shapes(found) == shapes(model.parameters()) and found[0].is_meta


@pytest.mark.parametrize("file", ["state.pt", "half.safetensors", "shapes.json"])
def test_a_file_has_a_name_that_is_not_utf_8(model, files, file):
    """As of an old archive; in the locale C every name with a letter beyond ASCII is one."""
    renamed = files / os.fsdecode(b"caf\xe9-" + file.encode())
    (files / file).rename(renamed)
    assert sorted(shapes(parameters(renamed))) == sorted(shapes(model.parameters()))


def test_of_safetensors_the_dtype_too(model, files):
    found = parameters(str(files / "half.safetensors"))
    assert sorted(shapes(found)) == sorted(shapes(model.parameters()))
    assert {x.dtype for x in found} == {torch.bfloat16}


def test_what_shares_memory_counts_once(files):
    assert shapes(parameters(files / "tied.pt")) == [(8, 3, 3, 3)]


def test_without_memory_each_counts(model, files):
    """Of a model on the device "meta" all tensors are at the same place."""
    assert shapes(parameters(files / "meta.pt")) == shapes(model.parameters())


def test_an_index_stands_for_its_files(model, files):
    assert sorted(shapes(parameters(files / "index.json"))) == sorted(shapes(model.parameters()))


def test_what_is_frozen_has_no_gradient(model):
    model[0].requires_grad_(False)
    for source in (model, model.parameters()):
        assert shapes(parameters(source)) == [(8,), (8,), (2, 8), (2,)]
    plain = [x.detach() for x in model.parameters()]  # not asked for gradients, but not frozen
    assert shapes(parameters(plain)) == shapes(model.parameters())
    with pytest.raises(ValueError, match="Sequential: found no parameters to train"):
        parameters(model.requires_grad_(False))


def test_a_module_or_its_parameters(model):
    for source in (model, model.parameters()):
        assert shapes(parameters(source, "bf16")) == shapes(model.parameters())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("list.pt", "found list without tensors by name, want"),
        ("module.pt", "holds more than tensors by name, or is damaged, want"),
        ("old.pt", "holds no model, want .* since torch 1.6"),
        ("integers.pt", "found no parameters"),
        ("text.safetensors", "is no safetensors file: .*header"),
        ("small.safetensors", "scale has type F8_E8M0, which no gradient has; want F64, F32"),
        ("text.txt", "holds no model, want a .safetensors file, a .json list"),
        ("empty", "holds no model"),
        ("torn.json", "is no JSON"),
        ("object.json", "found dict, want a list of shapes"),
        ("negative.json", r"shape 0 is \[3, -1\], want"),
        ("words.json", "shape 1 is 4x4, want a list of shapes, such as"),
        ("huge.json", "shape 0 is too large"),
        ("endless.json", "shape 0 is too large"),
        ("sparse.pt", "sums is torch.sparse_coo, want dense tensors"),
        ("nothing.json", "found no parameters"),
        ("zero.json", "found no parameters to train, want at least one with elements"),
        ("", "is a folder, want one file"),
        ("gpt22", "unknown model .*: no such file, and known are gpt2, "),
    ],
)
def test_what_is_no_model_is_said(files, name, words):
    with pytest.raises(ValueError, match=words):
        parameters(files / name)


def test_near_models_and_dtypes_are_named():
    with pytest.raises(ValueError, match="did you mean 'resnet50'"):
        parameters("resnet-50")
    for dtype in ("bf61", torch.int32):
        with pytest.raises(ValueError, match=r"unknown dtype .*known are fp64, fp32"):
            parameters("gpt2", dtype)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_a_dtype_has_a_long_name_and_a_short_one(dtype):
    wanted = getattr(torch, dtype)
    short = dtype.replace("bfloat", "bf").replace("float", "fp")
    for given in (dtype, short, wanted):
        assert {x.dtype for x in parameters([torch.ones(2), torch.ones(3)], given)} == {wanted}


@pytest.mark.parametrize("source", [3, [1, 2], None])
def test_what_is_neither_is_refused(source):
    with pytest.raises(TypeError, match="want a model's name, a file, a module"):
        parameters(source)
