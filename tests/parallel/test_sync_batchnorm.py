"""With `sync_batchnorm=True`, BatchNorm normalizes with the whole batch, as on one device."""

import copy
import threading

import pytest
import torch
import torch.nn.functional as F
from models import assert_same_gradients
from torch import nn
from torch.utils.checkpoint import checkpoint

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


def test_scale_and_shift_do_without_what_torch_2_11_refuses(monkeypatch):
    """There F.batch_norm wants an eps above zero, also in evaluation."""

    def refuse(*_, eps, **__):
        raise ValueError(f"batch_norm eps must be positive, but got {eps}")

    monkeypatch.setattr(F, "batch_norm", refuse)
    x, (scale, shift) = torch.randn(4, 3, 5), torch.randn(2, 3)
    wanted = x * scale.view(3, 1) + shift.view(3, 1)
    torch.testing.assert_close(_affine(x, scale, shift), wanted)
