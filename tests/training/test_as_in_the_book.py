"""The book's `train`, and the plateau on which its first weights stay."""

import pytest
import torch

from fastreduce.training import Config, Trainer, book, train

CPU = torch.device("cpu")


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


@pytest.mark.parametrize("num_gpus", [1, 2])
def test_train_prints_the_line_of_the_book(tiny, capsys, monkeypatch, num_gpus):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    [epoch] = train(num_gpus, 5, 0.2, num_epochs=1, data=tiny)
    expected = f"test acc: {epoch.test_accuracy:.2f}, {epoch.epoch_s:.1f} sec/epoch on "
    assert capsys.readouterr().out == f"{expected}{[CPU] * num_gpus}\n"


@pytest.mark.parametrize(("init", "expected"), [({}, "book"), ({"init": "kaiming"}, "kaiming")])
def test_train_begins_as_the_book_does_unless_told_otherwise(tiny, monkeypatch, init, expected):
    configs = []
    real = book.Trainer
    monkeypatch.setattr(
        book, "Trainer", lambda config, data: configs.append(config) or real(config, data)
    )
    train(1, 5, 0.2, num_epochs=1, steps=1, data=tiny, **init)
    assert [config.init for config in configs] == [expected]


def test_train_on_no_replica_is_an_error(tiny):
    with pytest.raises(ValueError, match="replicas: found 0"):
        train(0, 5, 0.2, data=tiny)
