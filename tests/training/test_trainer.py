"""An epoch takes each image once, is the same for the same seed, and checks its replicas."""

import dataclasses
from itertools import chain

import pytest
import torch

from fastreduce.training import Config, ReplicasDiffer, Trainer, check_replicas, load, train
from fastreduce.training import trainer as module
from fastreduce.training.data import SAMPLE
from fastreduce.training.trainer import SAMPLE_SETTINGS

CPU = torch.device("cpu")
TWO = Config(devices=(CPU, CPU), batch_size=4, epochs=2)


def run(config, data):
    trainer = Trainer(config, data, progress=False)
    return trainer, list(trainer.epochs())


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(tiny):
    (one, first), (other, second) = run(TWO, tiny), run(TWO, tiny)
    check_replicas([one.device_params[0], other.device_params[0]])
    assert [e.loss for e in first] == [e.loss for e in second]
    third, _ = run(dataclasses.replace(TWO, seed=1), tiny)
    with pytest.raises(ReplicasDiffer):
        check_replicas([one.device_params[0], third.device_params[0]])


def test_two_replicas_reach_what_one_reaches(tiny):
    (_, both), (_, alone) = run(TWO, tiny), run(dataclasses.replace(TWO, devices=(CPU,)), tiny)
    for one, other in zip(both, alone, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-6)
        assert one.test_accuracy == other.test_accuracy


@pytest.mark.parametrize("allreduce", ["auto", "loop", "leader", "sharded", "ring"])
def test_every_algorithm_keeps_the_replicas_identical(tiny, allreduce):
    trainer, epochs = run(dataclasses.replace(TWO, devices=(CPU,) * 3, allreduce=allreduce), tiny)
    check_replicas(trainer.device_params)
    assert [e.epoch for e in epochs] == [1, 2]
    assert all(0 < e.allreduce_share < 1 and e.evaluation_s > 0 for e in epochs)


def seen_rows(monkeypatch, data, config):
    """The training images of each step, by their number."""
    number = {image.numpy().tobytes(): i for i, image in enumerate(data.train.images)}
    steps = []
    real = module.train_batch

    def record(X, *args, **kwargs):
        steps.append([number[image.numpy().tobytes()] for image in X])
        return real(X, *args, **kwargs)

    monkeypatch.setattr(module, "train_batch", record)
    run(config, data)
    return steps


def test_an_epoch_takes_each_image_once_in_an_order_of_its_own(tiny, monkeypatch):
    steps = seen_rows(monkeypatch, tiny, TWO)
    assert [len(step) for step in steps] == [4, 4, 2] * 2
    first, second = list(chain(*steps[:3])), list(chain(*steps[3:]))
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second


def test_steps_bounds_an_epoch(tiny, monkeypatch):
    steps = seen_rows(monkeypatch, tiny, dataclasses.replace(TWO, steps=1))
    assert [len(step) for step in steps] == [4, 4]


def test_the_loss_is_the_mean_over_the_images_seen(tiny):
    # So small a rate leaves the book's parameters as they were: near zero, every class as likely.
    _, [epoch] = run(dataclasses.replace(TWO, epochs=1, lr=1e-30, init="book"), tiny)
    assert epoch.loss == pytest.approx(torch.tensor(10.0).log().item(), rel=1e-3)


def test_replicas_that_drift_apart_end_the_epoch_with_an_error(tiny):
    trainer = Trainer(TWO, tiny, progress=False)
    epochs = trainer.epochs()
    next(epochs)
    with torch.no_grad():
        trainer.device_params[1][4][3, 5] += 1e-3
    with pytest.raises(ReplicasDiffer, match="replica 1, parameter 4: found 1 of 102400"):
        next(epochs)


def test_it_learns_real_images():
    # A guess has a loss of 2.3 and an accuracy of 0.1.
    config = Config((CPU, CPU), **SAMPLE_SETTINGS)
    [epoch] = Trainer(dataclasses.replace(config, steps=100, epochs=1), load(SAMPLE)).epochs()
    assert epoch.loss < 1.6
    assert epoch.test_accuracy > 0.5


def test_control_the_book_s_small_weights_do_not_in_so_few_steps(caplog):
    config = Config((CPU, CPU), **SAMPLE_SETTINGS, init="book")
    [epoch] = Trainer(dataclasses.replace(config, steps=100, epochs=1), load(SAMPLE)).epochs()
    assert epoch.loss > 2.2
    [record] = caplog.records
    assert "about 300 steps" in record.getMessage()
    assert "this run takes 100" in record.getMessage()


@pytest.mark.parametrize(
    ("init", "batch_size", "epochs", "steps", "warned"),
    [
        ("book", 1, 1, None, True),
        ("book", 1, 60, None, False),
        ("book", 1, 60, 9, True),
        ("book", 1, 60, 99, False),
        ("book", 3, 150, None, False),
        ("book", 3, 149, None, True),
        ("kaiming", 1, 1, None, False),
    ],
)
def test_a_run_that_may_end_on_the_plateau_says_so(
    tiny, caplog, init, batch_size, epochs, steps, warned
):
    Trainer(Config((CPU,), batch_size, epochs=epochs, steps=steps, init=init), tiny)
    assert bool(caplog.records) == warned


def test_cudnn_is_deterministic_during_an_epoch_only(tiny, monkeypatch):
    seen = []
    real = module.train_batch

    def record(*args, **kwargs):
        seen.append(torch.backends.cudnn.deterministic)
        return real(*args, **kwargs)

    monkeypatch.setattr(module, "train_batch", record)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    run(dataclasses.replace(TWO, epochs=1, steps=1), tiny)
    assert (seen, torch.backends.cudnn.deterministic) == ([True], False)


@pytest.mark.parametrize(
    ("batch_size", "replicas", "threads"), [(32, 2, 1), (33, 2, 3), (16, 1, 1), (17, 1, 3)]
)
def test_small_shards_are_computed_on_one_thread_during_an_epoch_only(
    tiny, monkeypatch, batch_size, replicas, threads
):
    seen = []
    real = module.train_batch

    def record(*args, **kwargs):
        seen.append(torch.get_num_threads())
        return real(*args, **kwargs)

    monkeypatch.setattr(module, "train_batch", record)
    torch.set_num_threads(3)  # The fixture one_thread sets back what was before.
    run(Config((CPU,) * replicas, batch_size, epochs=1), tiny)
    assert (seen, torch.get_num_threads()) == ([threads], 3)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"devices": ()}, "replicas: found 0"),
        ({"batch_size": 0}, "batch size: found 0"),
        ({"epochs": 0}, "epochs: found 0"),
        ({"steps": 0}, "steps: found 0"),
        ({"seed": -1}, "seed: found -1"),
        ({"seed": 2**63}, "seed: found 9223372036854775808"),
        ({"lr": 0.0}, r"lr: found 0\.0"),
        ({"lr": -0.1}, r"lr: found -0\.1"),
        ({"lr": float("nan")}, "lr: found nan"),
        ({"lr": float("inf")}, "lr: found inf"),
        ({"init": "zeros"}, "init: found 'zeros', wanted one of kaiming, book"),
        ({"allreduce": "rong"}, "allreduce: found 'rong', wanted one of auto, loop, .*ring"),
    ],
)
def test_a_config_that_cannot_be_is_an_error(wrong, words):
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(TWO, **wrong)


@pytest.mark.parametrize("num_gpus", [1, 2])
def test_train_prints_the_line_of_the_book(tiny, capsys, monkeypatch, num_gpus):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    [epoch] = train(num_gpus, 5, 0.2, num_epochs=1, data=tiny)
    expected = f"test acc: {epoch.test_accuracy:.2f}, {epoch.epoch_s:.1f} sec/epoch on "
    assert capsys.readouterr().out == f"{expected}{[CPU] * num_gpus}\n"


@pytest.mark.parametrize(("init", "expected"), [({}, "book"), ({"init": "kaiming"}, "kaiming")])
def test_train_begins_as_the_book_does_unless_told_otherwise(tiny, monkeypatch, init, expected):
    configs = []
    real = module.Trainer
    monkeypatch.setattr(
        module, "Trainer", lambda config, data: configs.append(config) or real(config, data)
    )
    train(1, 5, 0.2, num_epochs=1, steps=1, data=tiny, **init)
    assert [config.init for config in configs] == [expected]


def test_train_on_no_replica_is_an_error(tiny):
    with pytest.raises(ValueError, match="replicas: found 0"):
        train(0, 5, 0.2, data=tiny)
