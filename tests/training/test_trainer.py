"""An epoch takes each image once, is the same for the same seed, and checks its replicas."""

import dataclasses
import functools
from itertools import chain

import pytest
import torch

from fastreduce import DataParallel
from fastreduce.training import (
    Config,
    ReplicasDiffer,
    Trainer,
    check_replicas,
    load_fashion_mnist,
)
from fastreduce.training.config import SAMPLE_SETTINGS
from fastreduce.training.data import SAMPLE

CPU = torch.device("cpu")
TWO = Config(devices=(CPU, CPU), batch_size=4, epochs=2)
BOOK = dataclasses.replace(TWO, allreduce="auto")
BOTH = pytest.mark.parametrize("config", [TWO, BOOK], ids=["DataParallel", "the book's functions"])


def run(config, data):
    trainer = Trainer(config, data, progress=False)
    return trainer, list(trainer.epochs())


def params(trainer):
    return list(trainer.learner.state()["model"].state_dict().values())


@BOTH
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(tiny, config):
    (one, first), (other, second) = run(config, tiny), run(config, tiny)
    check_replicas([params(one), params(other)])
    assert [e.loss for e in first] == [e.loss for e in second]
    third, _ = run(dataclasses.replace(config, seed=1), tiny)
    with pytest.raises(ReplicasDiffer):
        check_replicas([params(one), params(third)])


@BOTH
def test_two_replicas_reach_what_one_reaches(tiny, config):
    alone = dataclasses.replace(config, devices=(CPU,))
    (_, both), (_, alone) = run(config, tiny), run(alone, tiny)
    for one, other in zip(both, alone, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-6)
        assert one.test_accuracy == other.test_accuracy


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        ([2.0, float("nan")], "epoch 1, step 1: the loss of shard 1 is nan"),
        ([float("inf")], "epoch 1, step 1: the sum of all shards' losses is inf"),
    ],
)
def test_a_loss_of_all_replicas_is_not_said_to_be_one_shard_s(tiny, losses, words):
    trainer = Trainer(TWO, tiny, progress=False)
    trainer.learner.step = lambda *_: list(map(torch.tensor, losses))  # as on GPUs: nobody looked
    with pytest.raises(ValueError, match=words):
        list(trainer.epochs())


def test_a_graph_takes_all_steps_but_the_last_shorter_one(tiny, monkeypatch):
    """Here it is no CUDA graph, but what one would do."""
    taken = []

    def graphed(model, loss_fn, *first, optimizer):
        def step(X, y):
            taken.append(len(X))
            optimizer.zero_grad()
            loss = model.backward(loss_fn, X, y)
            optimizer.step()
            return loss

        return step

    monkeypatch.setattr(DataParallel, "graphed", graphed)
    config = dataclasses.replace(TWO)
    object.__setattr__(config, "graph", True)  # which a Config allows on GPUs only
    (one, first), (other, second) = run(config, tiny), run(TWO, tiny)
    assert taken == [4, 4] * 2
    check_replicas([params(one), params(other)])
    assert [e.loss for e in first] == [e.loss for e in second]


@pytest.mark.parametrize("allreduce", ["auto", "loop", "leader", "sharded", "ring"])
def test_every_algorithm_keeps_the_replicas_identical(tiny, allreduce):
    trainer, epochs = run(dataclasses.replace(TWO, devices=(CPU,) * 3, allreduce=allreduce), tiny)
    trainer.learner.check()
    assert [e.epoch for e in epochs] == [1, 2]
    assert all(0 < e.allreduce_share < 1 and e.evaluation_s > 0 for e in epochs)


def test_the_module_and_the_book_s_functions_learn_the_same(tiny):
    (one, first), (other, second) = run(TWO, tiny), run(BOOK, tiny)
    for own, wanted in zip(params(one), params(other), strict=True):
        torch.testing.assert_close(own, wanted, rtol=1e-5, atol=1e-6)
    assert [e.loss for e in first] == pytest.approx([e.loss for e in second], rel=1e-6)
    assert [e.allreduce_share for e in first] == [None, None]


# On CPUs the convolutions of ResNet-18 take twelve times as long in bfloat16.
def test_a_falling_rate_is_that_of_the_epoch(tiny):
    config = TWO.changed(epochs=4, lr=0.4, lr_schedule="linear", backend=None)
    trainer = Trainer(config, tiny, progress=False)
    found = []
    for _ in trainer.epochs():
        [group] = trainer.learner.optimizer.param_groups
        found.append(group["lr"])
    assert found == pytest.approx([0.4, 0.3, 0.2, 0.1])
    constant, _ = run(config.changed(lr_schedule="constant"), tiny)
    with pytest.raises(ReplicasDiffer):
        check_replicas([params(trainer), params(constant)])


def test_momentum_and_weight_decay_are_those_of_sgd(tiny):
    config = TWO.changed(momentum=0.5, weight_decay=0.1, backend=None)
    trainer = Trainer(config, tiny, progress=False)
    bare = [p.detach().clone().requires_grad_() for p in trainer.learner.model.parameters()]
    theirs = torch.optim.SGD(bare, config.lr, momentum=0.5, weight_decay=0.1)
    X, y = tiny.train.images[:4], tiny.train.labels[:4]
    for _ in range(3):
        trainer.learner.step(X, y)
        for own, p in zip(trainer.learner.model.parameters(), bare, strict=True):
            p.grad = own.grad.clone()
        theirs.step()
    torch.testing.assert_close(params(trainer), bare, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("model", "precision"), [("mlp", "bf16"), ("lenet", "bf16"), ("resnet18", "fp32")]
)
def test_other_models(tiny, model, precision):
    config = dataclasses.replace(TWO, model=model, batch_size=5, epochs=1, precision=precision)
    trainer, [epoch] = run(config, tiny)
    assert epoch.loss < 10
    assert all(p.dtype == torch.float32 for p in params(trainer) if p.is_floating_point())


@pytest.mark.sweep("compiled models")  # torch calls a C++ compiler
def test_a_compiled_model_learns_the_same(tiny):
    eager = dataclasses.replace(TWO, model="mlp")
    (one, _), (other, _) = run(dataclasses.replace(eager, compile=True), tiny), run(eager, tiny)
    for own, wanted in zip(params(one), params(other), strict=True):
        torch.testing.assert_close(own, wanted)


@pytest.mark.sweep("compiled models")
@pytest.mark.parametrize("replicas", [1, 2])
def test_all_replicas_are_compiled(tiny, monkeypatch, replicas):
    runs = []

    def counting(graph, _):
        return lambda *inputs: (runs.append(1), graph(*inputs))[1]

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=counting))
    config = Config((CPU,) * replicas, batch_size=5, model="mlp", epochs=1, compile=True)
    trainer = Trainer(config, tiny, progress=False)
    for _ in range(3):
        trainer.learner.step(tiny.train.images[:4], tiny.train.labels[:4])
    assert len(runs) == 3 * replicas


def test_any_number_of_replicas_learns_the_same_bits_if_asked_to(tiny):
    found = [
        params(run(dataclasses.replace(TWO, devices=(CPU,) * k, reproducible=4), tiny)[0])
        for k in (1, 2, 4)
    ]
    check_replicas(found)


def during(data, config, look):
    """What ``look`` returns for the images of each step."""
    seen = []
    trainer = Trainer(config, data, progress=False)
    step = trainer.learner.step
    trainer.learner.step = lambda X, y: (seen.append(look(X)), step(X, y))[1]
    list(trainer.epochs())
    return seen


def seen_rows(data, config):
    """The training images of each step, by their number."""
    number = {image.numpy().tobytes(): i for i, image in enumerate(data.train.images)}
    return during(data, config, lambda X: [number[image.numpy().tobytes()] for image in X])


def test_an_epoch_takes_each_image_once_in_an_order_of_its_own(tiny):
    steps = seen_rows(tiny, TWO)
    assert [len(step) for step in steps] == [4, 4, 2] * 2
    first, second = list(chain(*steps[:3])), list(chain(*steps[3:]))
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second


def test_steps_bounds_an_epoch(tiny):
    steps = seen_rows(tiny, dataclasses.replace(TWO, steps=1))
    assert [len(step) for step in steps] == [4, 4]


@pytest.mark.parametrize("wrong", [0, -1, 2.5, "5", True])
def test_checkpoints_every_so_many_steps(tiny, wrong):
    with pytest.raises(ValueError, match=f"checkpoint every: found {wrong!r}, wanted a whole numb"):
        Trainer(TWO, tiny, checkpoint_every=wrong)


def test_a_program_without_stderr_has_no_bar(tiny, monkeypatch):
    monkeypatch.setattr("sys.stderr", None)
    assert len(list(Trainer(TWO, tiny).epochs())) == 2


def test_replicas_that_drift_apart_end_the_epoch_with_an_error(tiny):
    trainer = Trainer(BOOK, tiny, progress=False)
    epochs = trainer.epochs()
    next(epochs)
    with torch.no_grad():
        trainer.learner.device_params[1][4][3, 5] += 1e-3
    with pytest.raises(ReplicasDiffer, match="replica 1, parameter 4: found 1 of 102400"):
        next(epochs)


def test_it_learns_real_images():
    # A guess has a loss of 2.3 and an accuracy of 0.1.
    config = Config((CPU, CPU), **{**SAMPLE_SETTINGS["lenet"], "epochs": 1}, steps=100)
    [epoch] = Trainer(config, load_fashion_mnist(SAMPLE)).epochs()
    assert epoch.loss < 1.6
    assert epoch.test_accuracy > 0.5


def test_control_the_book_s_small_weights_do_not_in_so_few_steps(caplog):
    settings = {**SAMPLE_SETTINGS["lenet"], "epochs": 1}
    config = Config((CPU, CPU), **settings, steps=100, init="book")
    [epoch] = Trainer(config, load_fashion_mnist(SAMPLE)).epochs()
    assert epoch.loss > 2.2
    [record] = caplog.records
    assert "about 300 steps" in record.getMessage()
    assert "this run takes 100" in record.getMessage()


def test_cudnn_is_deterministic_during_an_epoch_only(tiny, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    config = dataclasses.replace(TWO, epochs=1, steps=1)
    seen = during(tiny, config, lambda X: torch.backends.cudnn.deterministic)
    assert (seen, torch.backends.cudnn.deterministic) == ([True], False)


@pytest.mark.parametrize(
    ("batch_size", "replicas", "reproducible", "threads"),
    [
        *[(32, 2, None, 1), (33, 2, None, 3), (16, 1, None, 1), (17, 1, None, 3)],
        # Micro-shards are as large on any number of replicas, and so must be their threads.
        *[(64, k, 4, 1) for k in (1, 2, 4)],
        *[(68, k, 4, 3) for k in (1, 2, 4)],
    ],
)
def test_small_shards_are_computed_on_one_thread_during_an_epoch_only(
    tiny, batch_size, replicas, reproducible, threads
):
    torch.set_num_threads(3)  # The fixture one_thread sets back what was before.
    config = Config((CPU,) * replicas, batch_size, epochs=1, reproducible=reproducible)
    seen = during(tiny, config, lambda X: torch.get_num_threads())
    assert (seen, torch.get_num_threads()) == ([threads], 3)
