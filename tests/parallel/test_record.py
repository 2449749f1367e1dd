"""Records of runs, `fastreduce diff`, and `model.check()`."""

import _weakrefset
import json
import sys
import weakref

import pytest
import torch
import torch.nn.functional as F
from models import batch, made
from torch import nn

from fastreduce import DataParallel
from fastreduce.cli import main
from fastreduce.parallel.record import first_difference, hash_of
from fastreduce.parallel.replicas import Replicas
from fastreduce.parallel.same_bits import ReplicasDiffer
from fastreduce.parallel.watch import Watch


def run(path, k=2, steps=3, spoil=None, last_batch=1.0):
    model = DataParallel(made("mlp"), ["cpu"] * k, reproducible=4, record=path)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    X, y = batch()
    for step in range(steps):
        if spoil == step:
            with torch.no_grad():
                model[2].bias[1] += 1e-12
        optimizer.zero_grad()
        scale = last_batch if step == steps - 1 else 1.0
        model.backward(F.cross_entropy, X * scale, y)
        optimizer.step()
    return path


@pytest.fixture
def files(tmp_path):
    return tmp_path / "a.jsonl", tmp_path / "b.jsonl"


def test_runs_on_different_numbers_of_replicas_are_the_same(files, capsys):
    one, other = run(files[0], k=1), run(files[1], k=4)
    assert first_difference(one, other) is None
    assert main(["diff", str(one), str(other)]) == 0
    assert capsys.readouterr().out == "the same in every step\n"


def test_the_first_difference_is_named(files, capsys):
    one, other = run(files[0]), run(files[1], spoil=1)
    place = "before step 1 (the first is 0), bucket 0, parameter 2.bias"
    words = f"{place}: the first of 1 that differ there, of 4"
    assert first_difference(one, other) == words
    assert main(["diff", str(one), str(other)]) == 1
    assert capsys.readouterr().out == words + "\n"


def test_a_shorter_run(files):
    one, other = run(files[0]), run(files[1], steps=2)
    words = first_difference(one, other)
    assert "has 4 states of the parameters and" in words and words.endswith("first 3 are the same")


@pytest.mark.parametrize("scale", [1.0, 2.0], ids=["control: the same batch", "another"])
def test_what_the_last_step_does_is_recorded(files, scale):
    found = first_difference(run(files[0]), run(files[1], last_batch=scale))
    assert found is None if scale == 1.0 else found.startswith("before step 3 (the first is 0)")


def test_steps_of_a_fused_optimizer(files):
    model = DataParallel(made("mlp"), ["cpu"] * 2, record=files[0])
    optimizer = torch.optim.SGD(model.parameters(), 0.1, fused=True)
    for _ in range(3):
        model.backward(F.cross_entropy, *batch())
        optimizer.step()
    assert len(files[0].read_text().splitlines()) == 1 + 3 + 1


def test_a_line_per_state_of_the_parameters(files):
    model = DataParallel(made("mlp"), ["cpu"] * 2, record=files[0])
    for _ in range(3):
        model(batch()[0])
    header, *states = map(json.loads, files[0].read_text().splitlines())
    assert header["buckets"] == [["2.bias", "2.weight", "0.bias", "0.weight"]]
    assert len(states) == 1 and len(states[0]["parameters"][0]) == 4


def test_writes_that_hide_from_torch_are_recorded(files):
    def by_hand(path, lr):
        model = DataParallel(made("mlp"), ["cpu"] * 2, record=path)
        for _ in range(3):
            model.zero_grad()
            model.backward(F.cross_entropy, *batch())
            for parameter in model.parameters():
                parameter.data -= lr * parameter.grad
        return path

    found = first_difference(by_hand(files[0], 0.1), by_hand(files[1], 0.2))
    assert found.startswith("before step 1 ")


def test_a_step_that_changes_nothing_is_a_step(files):
    model = DataParallel(made("mlp"), ["cpu"] * 2, record=files[0])
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    for _ in range(3):
        model.backward(F.cross_entropy, *batch())
        optimizer.step()
    assert len(files[0].read_text().splitlines()) == 1 + 3 + 1


def test_a_program_may_change_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    model = DataParallel(made("mlp"), ["cpu"] * 2, record="a.jsonl")
    monkeypatch.chdir(tmp_path / "other")
    model(batch()[0])
    assert len((tmp_path / "a.jsonl").read_text().splitlines()) == 2
    assert not list((tmp_path / "other").iterdir())


def test_a_record_that_is_removed_is_not_begun_anew(files):
    model = DataParallel(made("mlp"), ["cpu"] * 2, record=files[0])
    files[0].unlink()
    with pytest.raises(FileNotFoundError, match=r"a\.jsonl"):
        model(batch()[0])
    assert not files[0].exists()


def test_a_module_that_has_got_other_parameters_is_not_recorded_under_the_names_of_the_old(files):
    model = DataParallel(made("mlp"), ["cpu"] * 2, record=files[0])
    X, y = batch()
    model.backward(F.cross_entropy, X, y)
    before = files[0].read_text()
    model.more = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"the module has other parameters than when .*a\.jsonl"):
        model.backward(F.cross_entropy, X, y)
    assert files[0].read_text() == before


@pytest.mark.parametrize("dropped", [True, False])
def test_what_is_wrapped_again_is_recorded_in_the_new_file_alone(files, dropped):
    net = made("mlp")
    first = DataParallel(net, ["cpu"] * 2, record=files[0])
    X, y = batch()
    first.backward(F.cross_entropy, X, y)
    before = files[0].read_text()
    net[0].more = torch.nn.Parameter(torch.ones(2))
    if dropped:
        del first
    model = DataParallel(net, ["cpu"] * 2, record=files[1])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model.backward(F.cross_entropy, X, y)
    optimizer.step()
    assert files[0].read_text() == before and len(files[1].read_text().splitlines()) == 3


def test_steps_of_others_are_not_recorded(files):
    """Whose parameters have the addresses of some that are no longer."""
    model = DataParallel(made("mlp"), ["cpu"] * 2, record=files[0])
    model.backward(F.cross_entropy, *batch())
    before = files[0].read_text()
    state = {name: x + 1 for name, x in model.state_dict().items()}
    model.load_state_dict(state, assign=True)
    model.check()  # so that the replicas keep none of the old parameters either
    others = [torch.nn.Parameter(torch.ones(1)) for _ in range(100)]
    torch.optim.SGD(others, 0.1).step()
    assert files[0].read_text() == before


def test_others_may_begin_to_look_for_steps_during_a_step():
    """As where another thread wraps a model with a record: between any two lines."""
    weight, begun = nn.Parameter(torch.zeros(1)), []
    optimizer = torch.optim.SGD([weight])
    weight.grad = torch.ones(1)

    def begin(frame, event, _):
        if frame.f_code.co_filename in (weakref.__file__, _weakrefset.__file__):
            begun.append(Watch())
        return begin

    begun.append(Watch())
    sys.settrace(begin)
    try:
        optimizer.step()
    finally:
        sys.settrace(None)
    assert len(begun) > 1


@pytest.mark.parametrize("record", [3, b"a.jsonl", True])
def test_what_is_no_path(record):
    with pytest.raises(TypeError, match=r"found record=.*, wanted the path of a new file"):
        DataParallel(made("mlp"), ["cpu"], record=record)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is not a record"),
        ("no json", "is not a record"),
        ('{"buckets": [["other"]]}', "different parameters: .* is in one only"),
        ('{"buckets": [["a"]]}\n{"step": 0, "buckets": ["1"], "parameters": 5}', "is not a record"),
        ('{"buckets": [["a"]]}\n{"step": 0, "buckets": [], "parameters": []}', "is not a record"),
        ('{"buckets": {"a": 1}}\n{"step": 0, "buckets": [], "parameters": 5}', "is not a record"),
    ],
)
def test_bad_files(files, capsys, content, words):
    run(files[0])
    files[1].write_text(content)
    with pytest.raises(ValueError, match=words):
        first_difference(*files)
    assert main(["diff", *map(str, files)]) == 2
    assert capsys.readouterr().err.startswith("fastreduce: error: ")


def test_a_file_that_cannot_be_written_is_an_error_at_once(tmp_path):
    with pytest.raises(ValueError, match=r"missing/a\.jsonl' cannot be made: No such file"):
        run(tmp_path / "missing" / "a.jsonl")


def test_a_record_is_not_overwritten(files):
    before = run(files[0]).read_text()
    with pytest.raises(ValueError, match="cannot be made: File exists"):
        run(files[0])
    assert files[0].read_text() == before


def test_hashes_see_every_bit():
    x = torch.arange(100.0)
    seen = {hash_of(x)}
    for bit in range(32):
        y = x.clone()
        y.view(torch.int32)[37] ^= 1 << bit
        seen.add(hash_of(y))
    assert len(seen) == 33


def test_check_names_the_copy_and_the_parameter_that_differ():
    model = DataParallel(made("mlp"), ["cpu"] * 2)
    model._parallel.use(Replicas(model.module, model.devices, share=False))
    model.check()
    copies = next(iter(model._parallel.replicas._copies.values()))
    with torch.no_grad():
        copies[1].data[3] += 1
    with pytest.raises(ReplicasDiffer, match=r"replica 1, parameter 0\.bias: found 1 of 8"):
        model.check()
