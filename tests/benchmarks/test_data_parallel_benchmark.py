"""benchmarks/data_parallel.py: checked before timed, and what it writes."""

import json
import sys

import data_parallel
import pytest
import step_contenders
import torch
from torch import nn


def tiny(model):
    torch.manual_seed(0)
    norm = [nn.BatchNorm2d(2)] if model == "CNN" else []
    net = nn.Sequential(nn.Conv2d(1, 2, 3), *norm, nn.Flatten(), nn.Linear(8, 3))
    return net, torch.randn(16, 1, 4, 4), torch.randint(3, (16,))


def run(monkeypatch, *flags):
    monkeypatch.setattr(data_parallel, "task", tiny)
    monkeypatch.setattr(sys, "argv", ["data_parallel.py", "--no-ddp", "-n", "1", *flags])
    data_parallel.main()


def test_what_it_writes(tmp_path, monkeypatch, capsys):
    # It starts a process for each contender: test_benchmarks.py tries that once.
    monkeypatch.setattr(data_parallel, "peak_bytes", lambda call: call() or 1)
    run(monkeypatch, "-m", "MLP", "CNN", "-k", "1", "2", "--out", str(tmp_path / "out"))
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["follow_s"].keys() == {"MLP", "CNN"}
    rows = written["rows"]
    assert [(x["model"], x["contender"], x["replicas"], x["shards"]) for x in rows] == [
        (model, *which)
        for model in ("MLP", "CNN")
        for which in (
            ("bare", 1, 1),
            ("DataParallel, 1", 1, 1),
            ("DataParallel, 2", 2, 2),
            ("ten lines, 2", 2, 2),
            ("one by one, 2", 2, 2),
            ("accumulated, 2", 1, 2),
            *([("sync_batchnorm, 2", 2, 2)] if model == "CNN" else []),
            ("reproducible=8", 1, 8),
        )
    ]
    for row in rows:
        assert row["peak_bytes"] == 1
        assert row["step_s"] > 0 and (row["share"] is None) == (row["shards"] == 1)
        summed = not row["contender"].startswith(
            ("bare", "ten lines", "accumulated", "DataParallel, 1")
        )
        assert (row["hidden"] == 0) if summed else (row["hidden"] is None)
    assert (tmp_path / "out.png").stat().st_size > 0
    assert "# the parameters after two steps : OK" in capsys.readouterr().out


def forgets_a_shard(net, X, y):
    return step_contenders.bare(net, X[:8], y[:8])


def does_not_train(net, X, y):
    return lambda: None, net


@pytest.mark.parametrize("model", ["MLP", "CNN"])
@pytest.mark.parametrize("wrong", [forgets_a_shard, does_not_train])
def test_control_one_that_trains_another(monkeypatch, model, wrong):
    monkeypatch.setattr(data_parallel, "contenders", lambda *_: {"wrong": (2, 2, wrong)})
    with pytest.raises(AssertionError, match="wrong: the parameters are not"):
        run(monkeypatch, "-m", model)


@pytest.mark.parametrize("model", data_parallel.SHAPES)
def test_a_model_fits_its_data(monkeypatch, model):
    monkeypatch.setitem(data_parallel.SHAPES, model, (2, *data_parallel.SHAPES[model][1:]))
    net, X, y = data_parallel.task(model)
    assert torch.nn.functional.cross_entropy(net(X), y).isfinite()
