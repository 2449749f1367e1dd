"""With `sync_batchnorm=True`, BatchNorm normalizes with the whole batch, as on one device."""

import copy
import threading
from contextvars import ContextVar

import pytest
import torch
import torch.nn.functional as F
from models import assert_same_gradients
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.profiler import profile
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from fastreduce import DataParallel
from fastreduce.parallel.sync_batchnorm import _affine

ROWS, CLASSES = 7, 5


def cnn(**settings) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, **settings), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(64, 8), nn.BatchNorm1d(8, **settings), nn.Linear(8, CLASSES)),
    )


NETS = {
    "usual": {},
    "cumulative average": {"momentum": None},
    "no running statistics": {"track_running_stats": False},
    "not affine": {"affine": False},
}


def made(name: str = "usual") -> nn.Module:
    torch.manual_seed(0)
    return cnn(**NETS[name]).double()


def batch(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(ROWS, 1, 6, 6, generator=generator, dtype=torch.float64)
    return X, torch.arange(ROWS) % CLASSES


def assert_same_buffers(model, wanted):
    for found, buffer in zip(model.buffers(), wanted.buffers(), strict=True):
        torch.testing.assert_close(found, buffer, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("k", [1, 2, 3, 9])
@pytest.mark.parametrize("name", NETS)
def test_gradients_and_buffers_are_those_of_one_device(name, k):
    bare = made(name)
    model = DataParallel(copy.deepcopy(bare), ["cpu"] * k, sync_batchnorm=True)
    for seed in range(3):
        X, y = batch(seed)
        F.cross_entropy(bare(X), y).backward()
        model.backward(F.cross_entropy, X, y)
        F.cross_entropy(model(X), y).backward()
        F.cross_entropy(bare(X), y).backward()
    assert_same_gradients(model, bare)
    assert_same_buffers(model, bare)


class Tokens(nn.Sequential):
    """As in vision transformers: what comes back to the layer has its channels last."""

    def __init__(self):
        super().__init__(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, CLASSES))

    def forward(self, X):
        tokens = self[1](self[0](X)).flatten(2).transpose(1, 2)
        return self[2](tokens.contiguous()).tanh().mean(1)


@pytest.mark.parametrize("width", [6, 3])
def test_shards_of_one_example_whose_gradients_have_other_strides(width):
    torch.manual_seed(0)
    bare = Tokens().double()
    model = DataParallel(copy.deepcopy(bare), ["cpu"] * ROWS, sync_batchnorm=True)
    X, y = batch()
    for either in (bare, model):
        F.cross_entropy(either(X[..., :width]), y).backward()
    assert_same_gradients(model, bare)


def test_control_without_it_statistics_are_those_of_a_shard():
    bare = made()
    model = DataParallel(copy.deepcopy(bare), ["cpu"] * 2)
    X, y = batch()
    F.cross_entropy(bare(X), y).backward()
    model.backward(F.cross_entropy, X, y)
    with pytest.raises(AssertionError):
        assert_same_gradients(model, bare)
    with pytest.raises(AssertionError):
        assert_same_buffers(model, bare)


def test_in_eval_mode_the_running_statistics_are_used():
    bare = made()
    model = DataParallel(copy.deepcopy(bare), ["cpu"] * 2, sync_batchnorm=True)
    for net in (bare, model):
        net(batch()[0])
        net.eval()
    torch.testing.assert_close(model(batch()[0]), bare(batch()[0]))


def test_derivatives_of_derivatives():
    bare = made()
    model = DataParallel(copy.deepcopy(bare), ["cpu"] * 3, sync_batchnorm=True)
    for net in (bare, model):
        X = batch()[0].requires_grad_()
        (slope,) = torch.autograd.grad(net(X).square().sum(), X, create_graph=True)
        slope.square().sum().backward()
    assert_same_gradients(model, bare, tolerance=1e-8)


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_low_precision_is_normalized_in_float32(precision):
    bare = nn.BatchNorm1d(3).to(precision)
    model = DataParallel(copy.deepcopy(bare), ["cpu"] * 2, sync_batchnorm=True)
    X = torch.randn(8, 3).to(precision) + 3
    found = model(X)
    assert found.dtype == precision
    torch.testing.assert_close(found, bare(X), rtol=2e-2, atol=2e-2)


def test_under_autocast():
    torch.manual_seed(0)
    bare = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))
    model = DataParallel(copy.deepcopy(bare), ["cpu"] * 2, sync_batchnorm=True)
    X = torch.randn(8, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, wanted = model(X), bare(X)
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted, rtol=3e-2, atol=3e-2)


def test_the_same_bits_on_any_number_of_replicas():
    states = []
    for k in (1, 2, 4):
        model = DataParallel(made(), ["cpu"] * k, reproducible=4, sync_batchnorm=True)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for seed in range(3):
            optimizer.zero_grad()
            model.backward(F.cross_entropy, *batch(seed))
            optimizer.step()
        states.append(model.state_dict())
    for state in states[1:]:
        assert all(torch.equal(state[name], states[0][name]) for name in state)


def test_each_shard_goes_on_with_its_own_random_numbers():
    torch.manual_seed(0)
    dropping = [nn.Dropout(0.5), nn.BatchNorm1d(6), nn.Dropout(0.5)]
    outputs = []
    for k in (1, 2):  # two micro-shards in either case, on one module or on two
        torch.manual_seed(1)
        net = nn.Sequential(*copy.deepcopy(dropping))
        model = DataParallel(net, ["cpu"] * k, reproducible=2, sync_batchnorm=True)
        outputs.append(model(torch.ones(8, 6)))
    assert torch.equal(*outputs)


class Seen(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_function__(self, func, _, args=(), kwargs=None):
        self.count += func is F.linear
        return func(*args, **(kwargs or {}))


WORD = ContextVar("WORD", default="unset")


class Looks(nn.Linear):
    def forward(self, x):
        self.seen = torch.empty(1).device.type, WORD.get()
        return super().forward(x)


@pytest.mark.parametrize("sync", [False, True])
def test_forward_runs_under_what_the_calling_thread_has_set(sync):
    model = DataParallel(Looks(3, 3), ["cpu"] * 3, sync_batchnorm=sync)
    X, saved = torch.ones(6, 3), []
    with Seen() as seen, FlopCounterMode(display=False) as flops:
        model(X)
    assert seen.count == 3
    assert flops.get_total_flops() == 6 * 3 * 3 * 2
    with profile() as profiler:
        model(X)
    assert sum(event.name == "aten::addmm" for event in profiler.events()) == 3
    with saved_tensors_hooks(lambda x: (saved.append(x), x)[1], lambda x: x):
        model(X)
    assert len(saved) == 3
    token = WORD.set("set")
    with torch.device("meta"):  # replicas are made, and draw their seeds, on their own devices
        model(X)
    WORD.reset(token)
    assert model.seen == ("meta", "set")


@pytest.mark.parametrize("sync", [False, True])
def test_transforms_of_functions(sync):
    net = nn.Sequential(nn.Linear(3, 4), nn.GroupNorm(2, 4), nn.Linear(4, 2)).double()
    model = DataParallel(net, ["cpu"] * 3, sync_batchnorm=sync)
    X, params = torch.randn(6, 3, dtype=torch.float64), dict(net.named_parameters())
    found, wanted = (
        torch.func.grad(lambda p, of=of: torch.func.functional_call(of, p, (X,)).square().sum())
        for of in (model, model.module)
    )
    torch.testing.assert_close(found(params), wanted(params), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(torch.func.jacrev(model)(X), torch.func.jacrev(model.module)(X))


def test_the_model_inside_a_checkpoint():
    bare = made()
    model = DataParallel(copy.deepcopy(bare), ["cpu"] * 2, sync_batchnorm=True)
    X, y = batch()
    for net in (bare, model):
        F.cross_entropy(checkpoint(net, X, use_reentrant=False), y).backward()
    assert_same_gradients(model, bare)


def test_with_a_compiled_module():
    bare = made()
    compiled = torch.compile(copy.deepcopy(bare), backend="eager")
    model = DataParallel(compiled, ["cpu"] * 2, sync_batchnorm=True)
    for seed in range(3):
        X, y = batch(seed)
        with torch._dynamo.config.patch(error_on_recompile=seed > 0):  # the first has two sizes
            for net in (bare, model):
                F.cross_entropy(net(X), y).backward()
    for found, wanted in zip(model.parameters(), bare.parameters(), strict=True):
        torch.testing.assert_close(found.grad, wanted.grad, rtol=1e-10, atol=1e-10)


def test_the_module_itself_stays_as_it_was(way):
    net = made()
    model = DataParallel(net, ["cpu"] * 2, sync_batchnorm=True)
    before = set(threading.enumerate())
    model(batch()[0])
    assert len(set(threading.enumerate()) - before) == (2 if way == "at once" else 0)
    assert all("forward" not in vars(module) for module in net.modules())
    torch.testing.assert_close(net(batch()[0]), made()(batch()[0]))


class Uneven(nn.Module):
    """A shard with a negative first feature leaves a BatchNorm out."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)

    def forward(self, x):
        return self.norm(self.linear(x)) if x[0, 0] > 0 else self.linear(x)


class Raising(nn.Module):
    def __init__(self, after: bool) -> None:
        super().__init__()
        self.norm, self.after = nn.BatchNorm1d(3), after

    def forward(self, x):
        if not self.after and x[0, 0] < 0:
            raise KeyError("a shard's own error")
        x = self.norm(x)
        if self.after and x[0, 0] < 0:
            raise KeyError("a shard's own error")
        return x


class Checkpointed(nn.Module):
    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.norm, self.use_reentrant = nn.BatchNorm1d(3), use_reentrant

    def forward(self, x):
        x = x.detach().requires_grad_()
        return checkpoint(self.norm, x, use_reentrant=self.use_reentrant)


ERRORS = {
    "shards take other ways": (Uneven, ValueError, "shard 1 is at the end of forward, but shard 0"),
    "an error before": (lambda: Raising(False), KeyError, "a shard's own error"),
    "an error after": (lambda: Raising(True), KeyError, "a shard's own error"),
    "checkpoint": (lambda: Checkpointed(False), ValueError, "inside torch.utils.checkpoint"),
    "reentrant": (lambda: Checkpointed(True), ValueError, "inside torch.utils.checkpoint"),
    "one value": (lambda: nn.BatchNorm1d(3), ValueError, "1 value per channel in the whole batch"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_end_all_shards(case, way):
    make, kind, words = ERRORS[case]
    model = DataParallel(make(), ["cpu"] * 2, sync_batchnorm=True)
    X = torch.tensor([[1.0, 2, 3], [-1, -2, -4]])[: 1 if case == "one value" else 2]
    before = set(threading.enumerate())
    with pytest.raises(kind, match=words):
        model(X)
    kept = 2 if way == "at once" and len(X) > 1 else 0  # for the passes that follow
    assert len(set(threading.enumerate()) - before) == kept
    assert all(parameter.grad is None for parameter in model.parameters())


def test_scale_and_shift_do_without_what_torch_2_11_refuses(monkeypatch):
    """There F.batch_norm wants an eps above zero, also in evaluation."""

    def refuse(*_, eps, **__):
        raise ValueError(f"batch_norm eps must be positive, but got {eps}")

    monkeypatch.setattr(F, "batch_norm", refuse)
    x, (scale, shift) = torch.randn(4, 3, 5), torch.randn(2, 3)
    wanted = x * scale.view(3, 1) + shift.view(3, 1)
    torch.testing.assert_close(_affine(x, scale, shift), wanted)
