"""Training by DistributedDataParallel in the processes of a group."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from processes import in_a_group

from fastreduce.parallel.losses import NonFiniteLoss
from fastreduce.training import Config, FashionMNIST, ReplicasDiffer, Split, Trainer
from fastreduce.training.checkpoint import read
from fastreduce.training.models import MODELS, Classifier

CPU = torch.device("cpu")
# Of ten images batches of 4, 4 and 2: on three ranks parts of 2, 1 and 1, then 1, 1 and 0.
CONFIG = Config(devices=(CPU,), batch_size=4, epochs=2, lr=0.05, model="mlp")


class Double(Classifier):
    """Float64, so that sums in another order differ by rounding that is far below any mistake."""

    def __init__(self, *norm):
        super().__init__(
            *(torch.nn.Flatten(), torch.nn.Linear(784, 8), *norm, torch.nn.ReLU()),
            torch.nn.Linear(8, 10),
        )
        self.double()

    def forward(self, X):
        return torch.nn.Sequential.forward(self, X.double() / 255)


def images(count):
    generator = torch.Generator().manual_seed(count)
    shape = (count, 1, 28, 28)
    drawn = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
    return Split(drawn, torch.randint(10, (count,), generator=generator))


DATA = FashionMNIST(images(10), images(7), Path("tiny"))


def trained(config, checkpoints=None):
    MODELS["mlp"] = Double
    made = Trainer(config, DATA, progress=False, checkpoints=checkpoints)
    epochs = [(x.loss, x.test_accuracy, x.skipped) for x in made.epochs()]
    state = made.learner.state()["model"].state_dict()
    return {"epochs": epochs, "state": {k: v.clone() for k, v in state.items()}}


def in_processes(rank, config, folder):
    torch.save(trained(config, folder / "saved" if rank == 0 else None), folder / f"found-{rank}")


@pytest.fixture
def of_one_process(monkeypatch):
    monkeypatch.setitem(MODELS, "mlp", Double)
    return trained(CONFIG)


@pytest.mark.parametrize("backend", ["fastreduce", "gloo"])
def test_the_same_as_one_process(tmp_path, of_one_process, backend):
    config, size = CONFIG.changed(backend=backend), 3
    in_a_group(in_processes, (config, tmp_path), size, tmp_path, backend=backend)
    found = [torch.load(tmp_path / f"found-{rank}") for rank in range(size)]
    for own in found:
        assert own["epochs"] == found[0]["epochs"]
        assert all(torch.equal(own["state"][k], v) for k, v in found[0]["state"].items())
    torch.testing.assert_close(found[0], of_one_process, rtol=1e-12, atol=1e-14)
    kept = read(tmp_path / "saved")
    assert kept.step == 6 and all(
        torch.equal(kept.state["model"][k], v) for k, v in found[0]["state"].items()
    )


def test_control_of_other_batches_the_losses_are_others(of_one_process):
    other = trained(CONFIG.changed(batch_size=3))
    with pytest.raises(AssertionError):
        torch.testing.assert_close(other, of_one_process, rtol=1e-6, atol=1e-6)


def not_finite_on_one(rank):
    config = CONFIG.changed(backend="fastreduce", skip_nonfinite=True)
    made = Trainer(config, DATA, progress=False)
    real = torch.nn.functional.cross_entropy
    calls = iter(range(100))

    def once(*args, **named):
        return real(*args, **named) * (math.inf if rank == 1 and next(calls) == 1 else 1)

    torch.nn.functional.cross_entropy = once
    assert [epoch.skipped for epoch in made.epochs()] == [1, 0]
    made.learner._skips = False
    calls = iter(range(1, 100))
    message = ""
    try:
        made._train_on(made._batches())
    except ValueError as error:
        message = str(error)
    assert message.startswith("epoch 3, step 1: the loss of shard 1 is "), message


def test_a_loss_that_is_not_finite_is_one_of_all_ranks(tmp_path):
    in_a_group(not_finite_on_one, (), 2, tmp_path, backend="fastreduce")


def skipped(rank):
    MODELS["mlp"] = lambda: Double(torch.nn.BatchNorm1d(8))
    config = CONFIG.changed(backend="fastreduce", epochs=1, steps=1, skip_nonfinite=True)
    made = Trainer(config, DATA, progress=False)
    batch = made._batches()[0]
    mean = made.learner._net[2].running_mean.clone()
    with pytest.raises(NonFiniteLoss):
        made.learner.step(DATA.train.images[batch] * torch.inf, DATA.train.labels[batch])
    assert torch.equal(made.learner._net[2].running_mean, mean)


def test_a_step_that_is_skipped_leaves_nothing_in_batchnorm(tmp_path):
    in_a_group(skipped, (), 2, tmp_path, backend="fastreduce")


def with_statistics(rank):
    MODELS["mlp"] = lambda: Double(torch.nn.BatchNorm1d(8))
    made = Trainer(CONFIG.changed(backend="fastreduce", epochs=1, steps=1), DATA, progress=False)
    batch = made._batches()[0]
    made.learner.step(DATA.train.images[batch], DATA.train.labels[batch])

    def of_ranks():
        own = made.learner._net[2].running_mean
        found = [torch.empty_like(own) for _ in range(2)]
        dist.all_gather(found, own)
        return found

    before = of_ranks()
    assert not torch.equal(*before)
    made.learner.accuracy(DATA.test.images, DATA.test.labels)
    assert all(torch.equal(x, before[0]) for x in of_ranks())


def test_statistics_of_batchnorm_are_rank_0s(tmp_path):
    in_a_group(with_statistics, (), 2, tmp_path, backend="fastreduce")


def one_differs(rank):
    made = Trainer(CONFIG.changed(backend="fastreduce"), DATA, progress=False)
    made.learner.check()
    if rank == 1:
        made.learner._net[3].bias.data[4] += 1
    with pytest.raises(ReplicasDiffer, match=r"rank 1, parameter 3\.bias: found other bits"):
        made.learner.check()


def test_parameters_that_differ_are_noticed_on_all_ranks(tmp_path):
    in_a_group(one_differs, (), 2, tmp_path, backend="fastreduce")


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"devices": (CPU, CPU)}, "replicas: found 2 with backend 'gloo', whose processes have"),
        ({"overlap": False}, "overlap: found False with backend 'gloo', which trains by Dist"),
        ({"reproducible": 2}, "reproducible: found 2 with backend 'gloo'"),
        ({"kvstore": "dist_sync"}, "kvstore: found 'dist_sync' with backend 'gloo'"),
        ({"backend": "glo"}, "backend: found 'glo', wanted one of fastreduce, gloo"),
        ({"allreduce": "ring", "model": "lenet"}, "backend: found 'gloo' with allreduce 'ring'"),
    ],
)
def test_what_does_not_go_together(other, words):
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(CONFIG, **{"backend": "gloo", **other})
