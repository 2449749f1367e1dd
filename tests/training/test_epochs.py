"""What an epoch tells of itself: its loss, and its seconds."""

import math
from types import SimpleNamespace

import pytest
import torch

from fastreduce.training import Config, Trainer, trainer
from fastreduce.training.checkpoint import read

CPU = torch.device("cpu")
TWO = Config(devices=(CPU, CPU), batch_size=4, epochs=2)
LOG_10 = math.log(10)  # the loss where all of ten classes are as likely


def test_the_loss_is_the_mean_over_the_images_seen(tiny):
    # So small a rate leaves the book's parameters as they were: near zero, every class as likely.
    config = TWO.changed(epochs=1, lr=1e-30, init="book")
    [epoch] = Trainer(config, tiny, progress=False).epochs()
    assert epoch.loss == pytest.approx(LOG_10, rel=1e-3)


@pytest.mark.parametrize(
    ("rank", "batch_size", "expected"), [(0, 3, LOG_10), (1, 3, LOG_10), (1, 1, math.nan)]
)
def test_a_worker_s_loss_is_the_mean_over_its_own_images(tiny, rank, batch_size, expected):
    """Of batches of 3, 3, 3 and 1 images worker 1 of two gets 1, 1, 1 and 0."""
    config = Config((CPU,), batch_size, epochs=1, lr=1e-30, init="book", kvstore="local")
    made = Trainer(config, tiny, progress=False)
    made.learner.store = SimpleNamespace(num_workers=2, rank=rank, pushpull=lambda *_: None)
    [epoch] = made.epochs()
    assert epoch.loss == pytest.approx(expected, rel=1e-3, nan_ok=True)


def test_the_seconds_of_an_epoch_are_those_of_its_steps(tiny, tmp_path, monkeypatch):
    """By a clock that goes on in steps, by 1, and in checkpoints, by 100."""
    now_s = [0]
    monkeypatch.setattr(trainer.time, "perf_counter", lambda: now_s[0])
    made = Trainer(TWO, tiny, progress=False, checkpoints=tmp_path, checkpoint_every=1)

    def taking(call, seconds):
        def timed(*args):
            now_s[0] += seconds
            return call(*args)

        return timed

    made.learner.step = taking(made.learner.step, 1)
    made.save = taking(made.save, 100)
    assert [epoch.epoch_s for epoch in made.epochs()] == [3, 3]
    assert Trainer(TWO, tiny).restore(read(tmp_path))[1].epoch_s == 3
