"""The backward pass in threads: errors, torch's generator, an interruption."""

import os
import signal
import threading
import time

import pytest
import torch
import torch.nn.functional as F
from models import Changed, batch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fastreduce import DataParallel


@pytest.fixture
def way():
    return "at once"


def test_shards_do_go_backward_at_the_same_time():
    meeting = threading.Barrier(2, timeout=60)

    class Met(nn.Tanh):
        def forward(self, x):
            if torch._C._current_graph_task_id() != -1:  # again, in the backward pass
                meeting.wait()  # one after the other would wait in vain
            return super().forward(x)

    net = Changed(lambda _, x: checkpoint(Met(), x, use_reentrant=False))
    model = DataParallel(net, ["cpu"] * 2)
    model.backward(F.cross_entropy, batch()[0].float(), batch()[1])
    assert model.first.weight.grad is not None


@pytest.mark.parametrize("number", [0, 1])
def test_an_error_of_one_shard_leaves_all_gradients(number):
    class Failing(nn.Tanh):
        def forward(self, x):
            if torch._C._current_graph_task_id() != -1 and x[0, 0] == number:
                raise KeyError(f"shard {number}")
            return super().forward(x)

    net = Changed(lambda _, x, shard: checkpoint(Failing(), x * 0 + shard, use_reentrant=False))
    model = DataParallel(net, ["cpu"] * 2)
    X, y = batch()
    shards = torch.tensor([0.0] * 4 + [1.0] * 3)[:, None]
    with pytest.raises(KeyError, match=f"shard {number}"):
        model.backward(F.cross_entropy, (X.float(), shards), y)
    assert all(parameter.grad is None for parameter in model.parameters())
    model.backward(F.cross_entropy, (X.float(), shards + 5), y)
    assert net.last.weight.grad is not None


def stepped(at_once: bool, inner: nn.Module) -> tuple[Tensor, Tensor]:
    """A gradient and the random number that follows."""
    torch.manual_seed(3)
    net = Changed(lambda _, x: checkpoint(inner, x, use_reentrant=False))
    model = DataParallel(net, ["cpu"] * 2, at_once=at_once)
    X, y = batch()
    for _ in range(2):
        model.backward(F.cross_entropy, X.float(), y)
    return net.first.weight.grad, torch.rand(())


@pytest.mark.parametrize("inner", [nn.Tanh(), nn.Dropout(0.5)], ids=["tanh", "dropout"])
def test_checkpoints_draw_again_what_they_drew(inner):
    """All threads have one generator, which a checkpoint sets to where it was."""
    for found, wanted in zip(stepped(True, inner), stepped(False, inner), strict=True):
        assert torch.equal(found, wanted)


@pytest.fixture
def generator_after():
    """Where a step leaves torch's generator, if checkpoints do this to it in the backward pass; and
    where the loss function, which draws, had left it."""

    def step(change) -> tuple[Tensor, Tensor]:
        states, drawn = [], []

        def loss(output, y):
            noise = torch.rand(()) * 0
            drawn.append(torch.get_rng_state())
            return F.cross_entropy(output, y) + noise

        class Changing(nn.Tanh):
            def forward(self, x):
                if torch._C._current_graph_task_id() == -1:
                    states.append(torch.get_rng_state())
                else:
                    change(states)
                return super().forward(x)

        def checkpointed(_, x):
            return checkpoint(Changing(), x, use_reentrant=False, preserve_rng_state=False)

        model = DataParallel(Changed(checkpointed), ["cpu"] * 2)
        X, y = batch()
        model.backward(loss, X.float(), y)
        return torch.get_rng_state(), drawn[-1]

    return step


def test_the_generator_is_left_where_it_was(generator_after):
    """A checkpoint sets it to where it was in forward, maybe after all others have set it back."""
    found, wanted = generator_after(lambda states: torch.set_rng_state(states[0]))
    assert torch.equal(found, wanted)


def test_what_others_draw_meanwhile_is_not_drawn_again(generator_after):
    found, _ = generator_after(lambda _: torch.manual_seed(5))
    torch.manual_seed(5)
    assert torch.equal(found, torch.get_rng_state())


def test_no_shard_runs_on_after_an_interruption():
    interrupted, ran = threading.Event(), []

    def interrupt(*_) -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt

    class Slow(nn.Tanh):
        def forward(self, x):
            if torch._C._current_graph_task_id() != -1:
                ran.append(x)
                for _ in range(600):
                    if interrupted.wait(0.1):
                        break
                    # Again and again: one that comes just before a wait is not seen until it ends.
                    os.kill(os.getpid(), signal.SIGUSR1)
                time.sleep(0.1)  # until the others have been called off
            return super().forward(x)

    net = Changed(lambda _, x: checkpoint(Slow(), x, use_reentrant=False))
    model = DataParallel(net, ["cpu"] * 6)  # on two cores
    X, y = batch()
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            model.backward(F.cross_entropy, X.float(), y)
    finally:
        signal.signal(signal.SIGUSR1, before)
    count = len(ran)
    assert 1 <= count < 6
    model.backward(F.cross_entropy, X.float(), y)
    assert len(ran) == count + 6
