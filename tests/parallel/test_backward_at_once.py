"""Shards go backward at the same time if their graphs have nothing in common but the sums."""

import copy
import os
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from models import CLASSES, FEATURES, assert_same_gradients, batch, mlp
from torch import Tensor, nn
from torch.profiler import profile
from torch.utils.checkpoint import checkpoint

from fastreduce import _C, DataParallel


@pytest.fixture
def way():
    return "at once"


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class Changed(nn.Module):
    """An MLP with something done to what its first layer returns."""

    def __init__(self, change) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES)
        self.change = change

    def forward(self, x, *others):
        return self.last(self.change(self, self.first(x).tanh(), *others))


def retained(module, x):
    module.first.weight.retain_grad()
    return x


def hooked_parameter(module, x):
    module.first.weight.register_hook(lambda grad: grad.clone())
    return x


def hooked(module, x):
    x.register_hook(lambda grad: grad * 3)
    return x


def hooked_operation(module, x):
    x.grad_fn.register_prehook(lambda grads: (grads[0] * 3,))
    return x


def on_a_leaf(module, x):
    return x + torch.ones(8, dtype=x.dtype, requires_grad=True)


APART = {
    "plain": lambda _, x: x,
    "a view written to": lambda _, x: x.clone().mul_(2),
    "no gradient of a part": lambda _, x: torch.cat([x[:, :4], x[:, 4:].detach()], 1),
    "checkpoint": lambda module, x: checkpoint(nn.Tanh(), x, use_reentrant=False),
}
TOGETHER = {
    "a function in Python": lambda _, x: Doubled.apply(x),
    "a hook of a tensor": hooked,
    "a hook of an operation": hooked_operation,
    "a hook of a parameter": hooked_parameter,
    "a parameter's gradient kept": retained,
    "another leaf": on_a_leaf,
    "a checkpoint that goes backward itself": lambda _, x: checkpoint(
        nn.Tanh(), x, use_reentrant=True
    ),
}


@pytest.fixture
def apart(monkeypatch):
    """Whether each pass has found its shards apart."""
    found = []
    ask = _C.going_backward_by

    def asked(*args):
        made = ask(*args)
        found.append(made is not None)
        return made

    monkeypatch.setattr("fastreduce._C.going_backward_by", asked)
    return found


def by_method(model, loss, inputs, y):
    model.backward(loss, inputs, y)


def by_autograd(model, loss, inputs, y):
    loss(model(*inputs), y).backward()


both = pytest.mark.parametrize("go_backward", [by_method, by_autograd])


def gradients_are_the_bare_modules(net, go_backward, *others) -> None:
    bare = copy.deepcopy(net)
    model = DataParallel(net, ["cpu"] * 3)
    X, y = batch()
    for _ in range(3):
        go_backward(model, F.cross_entropy, (X, *others), y)
        F.cross_entropy(bare(X, *others), y).backward()
    assert_same_gradients(model, bare)


@both
@pytest.mark.parametrize("case", [*APART, *TOGETHER])
def test_which_shards_go_backward_at_the_same_time(case, go_backward, apart):
    gradients_are_the_bare_modules(Changed({**APART, **TOGETHER}[case]).double(), go_backward)
    assert apart == [case in APART] * 3


@both
def test_inputs_that_train_are_a_leaf_of_all_shards(go_backward, apart):
    X = torch.ones(7, 8, dtype=torch.float64, requires_grad=True)
    gradients_are_the_bare_modules(Changed(lambda _, x, y: x * y).double(), go_backward, X)
    assert apart == [False] * 3
    assert X.grad is not None


@both
def test_parameters_of_the_loss_function_are_a_leaf_of_all_shards(go_backward, apart):
    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(CLASSES, dtype=torch.float64))

        def forward(self, output, y):
            return F.cross_entropy(output * self.scale, y)

    loss, alone = Loss(), Loss()
    net = mlp().double()
    bare, model = copy.deepcopy(net), DataParallel(net, ["cpu"] * 2)
    X, y = batch()
    go_backward(model, loss, (X,), y)
    alone(bare(X), y).backward()
    assert apart == [go_backward is by_autograd]  # whose shards end with the outputs
    torch.testing.assert_close(loss.scale.grad, alone.scale.grad)


def test_what_shards_share_is_in_no_graph_of_its_own(apart):
    """Were it, the second shard would find its buffers freed."""
    held = {}

    def loss(output, y):
        held.setdefault("first", output.exp().mean())
        return F.cross_entropy(output, y) + held["first"] * 0

    model = DataParallel(mlp().double(), ["cpu"] * 2)
    model.backward(loss, *batch())
    assert apart == [False]
    held.clear()
    model.backward(lambda output, y: F.cross_entropy(output, y) + output.mean() * 0, *batch())
    assert apart == [False, True]


def test_gradients_come_through_the_parameters_of_the_same_pass():
    model = DataParallel(mlp(), ["cpu"] * 2)
    replicas, calls = model._parallel.replicas, [((X.float(),), {}) for X in batch()[0].split(4)]

    def ran() -> tuple[list[list[Tensor]], list[list[Tensor]]]:
        outputs = model._parallel.passes.forward([0, 1], calls)
        return [[output] for output in outputs], list(replicas.ran_with.values())

    (first, with_first), (second, with_second) = ran(), ran()
    assert _C.going_backward_by(print, first, with_first)
    assert not _C.going_backward_by(print, first, with_second)
    assert _C.going_backward_by(print, second, with_second)


@both
def test_shards_do_go_backward_at_the_same_time(go_backward):
    meeting = threading.Barrier(2, timeout=60)

    class Met(nn.Tanh):
        def forward(self, x):
            if torch._C._current_graph_task_id() != -1:  # again, in the backward pass
                meeting.wait()  # one after the other would wait in vain
            return super().forward(x)

    net = Changed(lambda _, x: checkpoint(Met(), x, use_reentrant=False))
    model = DataParallel(net, ["cpu"] * 2)
    go_backward(model, F.cross_entropy, (batch()[0].float(),), batch()[1])
    assert model.first.weight.grad is not None


@both
@pytest.mark.parametrize("number", [0, 1])
def test_an_error_of_one_shard_leaves_all_gradients(number, go_backward):
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
        go_backward(model, F.cross_entropy, (X.float(), shards), y)
    assert all(parameter.grad is None for parameter in model.parameters())
    go_backward(model, F.cross_entropy, (X.float(), shards + 5), y)
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


def test_the_generator_is_left_where_it_was():
    """Whatever checkpoints of several threads have made of it; here one that sets it back late."""

    class Setting(nn.Tanh):
        def forward(self, x):
            if torch._C._current_graph_task_id() != -1:
                torch.manual_seed(5)
            return super().forward(x)

    def change(_, x):
        return checkpoint(Setting(), x, use_reentrant=False, preserve_rng_state=False)

    model = DataParallel(Changed(change), ["cpu"] * 2)
    X, y = batch()
    before = torch.get_rng_state()
    model.backward(F.cross_entropy, X.float(), y)
    torch.randint(2**62, (), generator=(drawn := torch.Generator().set_state(before)))
    assert torch.equal(torch.get_rng_state(), drawn.get_state())  # but for the shards' seed


def test_a_profile_has_the_operations_of_all_shards():
    model = DataParallel(mlp(), ["cpu"] * 2)
    X, y = batch()
    model.backward(F.cross_entropy, X.float(), y)
    with profile() as seen:
        model.backward(F.cross_entropy, X.float(), y)
    counts = {event.key: event.count for event in seen.key_averages()}
    assert (counts["aten::linear"], counts["TanhBackward0"]) == (4, 2)


@both
def test_sums_are_written_into_the_gradients_of_the_first_shard(go_backward):
    model = DataParallel(mlp(), ["cpu"] * 2)
    X, y = batch()
    go_backward(model, F.cross_entropy, (X.float(),), y)  # the first pass shows hooks its gradients
    model.zero_grad()
    with profile() as seen:
        go_backward(model, F.cross_entropy, (X.float(),), y)
    operations = {event.key for event in seen.key_averages()}
    assert "BackwardOfShards" in operations  # control: they went backward so
    assert "aten::clone" not in operations
    assert all(parameter.grad is not None for parameter in model.parameters())


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES, 3), nn.Linear(FEATURES, 2)

    def forward(self, x):
        return {"first": self.first(x), "second": self.second(x), "rows": x[:, 0].long()}


class TestAsAutogradDoes:
    """``loss.backward()`` with all that it can be asked for."""

    @pytest.fixture(autouse=True)
    def nets(self, apart):
        self.bare = Heads().double()
        self.model = DataParallel(copy.deepcopy(self.bare), ["cpu"] * 3)
        self.both = [self.bare, self.model]
        self.X = batch()[0]
        yield
        assert apart
        assert all(apart)

    def test_outputs_that_nobody_uses(self):
        for net in self.both:
            net(self.X)["second"].square().mean().backward()
            assert net.first.weight.grad is None
        assert_same_gradients(self.model, self.bare)

    def test_gradients_of_one_parameter(self):
        grads = [
            torch.autograd.grad(net(self.X)["first"].exp().mean(), net.first.bias)
            for net in self.both
        ]
        torch.testing.assert_close(*grads)
        assert all(parameter.grad is None for parameter in self.model.parameters())

    def test_a_graph_that_is_kept_goes_backward_twice(self):
        for net in self.both:
            loss = net(self.X)["first"].exp().mean()
            loss.backward(retain_graph=True)
            loss.backward()
            with pytest.raises(RuntimeError, match="backward through the graph a second time"):
                loss.backward()
        assert_same_gradients(self.model, self.bare)

    def test_a_graph_of_shards_that_has_been_freed(self):
        output = self.model(self.X)["first"]
        output.sum().backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            output.sum().backward()

    def test_hooks_of_gradients_that_came_after_the_forward_pass_see_one_shard_at_a_time(self):
        held, threads = [], []

        class Holding(Heads):
            def forward(self, x):
                held.append(self.first(x))
                return held[-1].square()

        model = DataParallel(Holding().double(), ["cpu"] * 2)
        loss = model(self.X).mean()
        for output in held:
            output.register_hook(lambda _: threads.append(threading.current_thread()))
        loss.backward()
        assert threads == [threading.current_thread()] * 2

    @pytest.mark.parametrize("first", [False, True])
    def test_tensors_that_forward_has_put_elsewhere_have_a_way_of_their_own(self, first):
        """It goes through the same operations, before or after the outputs' way."""
        held = []

        class Holding(Heads):
            def forward(self, x):
                for _ in range(100):  # more operations than the calling thread will have had
                    hidden = self.first(x).exp()
                held.append(hidden.sin())
                return hidden.cos()

        def gradient(at_once: bool) -> Tensor:
            torch.manual_seed(0)
            held.clear()
            model = DataParallel(Holding().double(), ["cpu"] * 2, at_once=at_once)
            output = model(self.X).square().mean()
            own = sum(x.square().mean() for x in held)
            (own + output if first else output + own).backward()
            return model.first.weight.grad

        with ThreadPoolExecutor(1) as new:
            found = new.submit(gradient, True).result()
        torch.testing.assert_close(found, gradient(False))

    def test_memory_of_the_outputs_is_free_when_they_are_joined(self):
        held = []

        class Holding(Heads):
            def forward(self, x):
                output = self.first(x) + 1  # which no operation of the graph needs
                held.append(weakref.ref(output.untyped_storage()))
                return output

        model = DataParallel(Holding().double(), ["cpu"] * 2)
        output = model(self.X)
        assert [storage() for storage in held] == [None] * 2
        output.sum().backward()

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
    def test_in_a_process_that_was_forked_after_the_forward_pass(self):
        loss = self.model(self.X)["first"].square().mean()
        child = os.fork()
        if child == 0:
            loss.backward()  # in threads of its own: it has none of its parent's
            os._exit(0 if self.model.first.weight.grad is not None else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
