"""DataParallel with replicas on one GPU, on several, and on the CPU, where the same must hold."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fastreduce import DataParallel
from fastreduce.training import Config, Trainer, load_fashion_mnist
from fastreduce.training.data import SAMPLE

K, ROWS, CLASSES = 3, 14, 5


def made(place) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, CLASSES)),
    )
    return net.double().to(place.device(0))


def devices(place) -> list[torch.device]:
    return [place.device(rank) for rank in range(K)]


def batch(place, seed=0):
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(ROWS, 1, 6, 6, generator=generator, dtype=torch.float64)
    return X.to(place.device(0)), (torch.arange(ROWS) % CLASSES).to(place.device(0))


def assert_close(ours, theirs):
    for found, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


def gradients(model):
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("gathered", [False, True])
def test_the_gradient_of_the_whole_batch(place, gathered):
    bare = made(place)
    model = DataParallel(copy.deepcopy(bare), devices(place), sync_batchnorm=True)
    X, y = batch(place)
    F.cross_entropy(bare(X), y).backward()
    if gathered:
        F.cross_entropy(model(X), y).backward()
    else:
        model.backward(F.cross_entropy, X, y)
    assert_close(gradients(model), gradients(bare))
    assert_close(model.buffers(), bare.buffers())


def test_replicas_follow_the_optimizer(place):
    bare = made(place)
    model = DataParallel(copy.deepcopy(bare), devices(place), sync_batchnorm=True)
    ours = torch.optim.AdamW(model.parameters(), 0.01)
    theirs = torch.optim.AdamW(bare.parameters(), 0.01)
    for seed in range(4):
        X, y = batch(place, seed)
        ours.zero_grad()
        theirs.zero_grad()
        model.backward(F.cross_entropy, X, y)
        F.cross_entropy(bare(X), y).backward()
        ours.step()
        theirs.step()
    assert_close(model.parameters(), bare.parameters())
    model.check()


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.GRU(3, 4, batch_first=True), nn.Linear(4, CLASSES)

    def forward(self, x):
        self.layer.flatten_parameters()
        return self.head(self.layer(x)[0][:, -1])


@pytest.mark.filterwarnings("ignore:RNN module weights")  # those of other GPUs
def test_recurrent_layers(place):
    torch.manual_seed(0)
    bare = Recurrent().double().to(place.device(0))
    model = DataParallel(copy.deepcopy(bare), devices(place))
    places = [parameter.data_ptr() for parameter in model.parameters()]
    X = torch.randn(ROWS, 6, 3, dtype=torch.float64, device=place.device(0))
    _, y = batch(place)
    for _ in range(2):
        F.cross_entropy(bare(X), y).backward()
        model.backward(F.cross_entropy, X, y)
    assert_close(gradients(model), gradients(bare))
    assert [parameter.data_ptr() for parameter in model.parameters()] == places


def test_on_streams_of_the_caller(place):
    bare = made(place)
    model = DataParallel(copy.deepcopy(bare), devices(place), sync_batchnorm=True)
    X, y = batch(place)
    F.cross_entropy(bare(X), y).backward()
    wanted = gradients(bare)
    with place.side_streams():
        place.sleep()
        late = X.clone()
        model.backward(F.cross_entropy, late, y)
        found = [gradient.clone() for gradient in gradients(model)]
    assert_close(found, wanted)


def test_the_same_bits_on_any_number_of_replicas(place):
    states = []
    with torch.backends.cudnn.flags(deterministic=True, benchmark=False):
        for k in (1, 2, 4):
            owners = [place.device(rank) for rank in range(k)]
            model = DataParallel(made(place), owners, reproducible=4)
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            for seed in range(3):
                optimizer.zero_grad()
                model.backward(F.cross_entropy, *batch(place, seed))
                optimizer.step()
            states.append(model.state_dict())
    for state in states[1:]:
        assert all(torch.equal(state[name], states[0][name]) for name in state)


def test_shares_that_are_measured(place):
    model = DataParallel(made(place), devices(place), shares="measured")
    for seed in range(9):
        model.backward(F.cross_entropy, *batch(place, seed))
    assert len(model.shares) == K and min(model.shares) == 1


class TestGraphed:
    @pytest.fixture
    def place(self, place):
        if not place.on_gpu:
            pytest.skip("a CUDA graph needs a GPU")
        return place

    @pytest.mark.parametrize("sync_batchnorm", [False, True])
    def test_steps_are_those_of_backward(self, place, sync_batchnorm):
        one = DataParallel(made(place), devices(place), sync_batchnorm=sync_batchnorm)
        other = DataParallel(made(place), devices(place), sync_batchnorm=sync_batchnorm)
        step = one.graphed(F.cross_entropy, *batch(place))
        assert_close(one.state_dict().values(), other.state_dict().values())
        for seed in range(4):
            X, y = batch(place, seed)
            loss = step(X, y)
            other.zero_grad()
            torch.testing.assert_close(loss, other.backward(F.cross_entropy, X, y))
            assert_close(gradients(one), gradients(other))
            with torch.no_grad():
                for net in (one, other):
                    for parameter in net.parameters():
                        parameter -= 0.1 * parameter.grad
        assert_close(one.state_dict().values(), other.state_dict().values())

    @pytest.mark.parametrize("kind", ["SGD", "SGD with momentum", "AdamW"])
    def test_the_optimizer_is_part_of_the_step(self, place, kind):
        """And what is not captured, such as an epoch's last batch, goes on from there."""
        nets = [DataParallel(made(place), devices(place)) for _ in range(2)]
        ours, theirs = (optimizer_of(net, kind) for net in nets)
        X, y = batch(place)
        for net, optimizer in zip(nets, (ours, theirs), strict=True):
            net.backward(F.cross_entropy, X, y)
            optimizer.step()
        step = nets[0].graphed(F.cross_entropy, X, y, optimizer=ours)
        for seed in range(4):
            X, y = batch(place, seed)
            loss = step(X, y)
            theirs.zero_grad()
            torch.testing.assert_close(loss, nets[1].backward(F.cross_entropy, X, y))
            theirs.step()
            assert_close(nets[0].state_dict().values(), nets[1].state_dict().values())
        assert_close([nets[0](X[:5])], [nets[1](X[:5])])
        nets[0].check()

    @pytest.mark.parametrize("momentum", [0.0, 0.9])
    def test_a_rate_that_falls_is_captured_anew(self, place, momentum):
        config = Config((place.device(0),) * 2, 64, epochs=3, steps=4, model="mlp")
        config = config.changed(lr_schedule="linear", momentum=momentum)
        losses = []
        for graph in (False, True):
            trainer = Trainer(
                config.changed(graph=graph), load_fashion_mnist(SAMPLE), progress=False
            )
            losses.append([epoch.loss for epoch in trainer.epochs()])
        assert losses[1] == pytest.approx(losses[0], rel=1e-5)

    def test_recurrent_layers(self, place):
        model = DataParallel(Recurrent().to(place.device(0)), devices(place))
        X, (_, y) = torch.randn(ROWS, 6, 3, device=place.device(0)), batch(place)
        wanted = model.backward(F.cross_entropy, X, y)
        step = model.graphed(F.cross_entropy, X, y)
        torch.testing.assert_close(step(X, y), wanted)

    def test_random_numbers_go_on(self, place):
        net = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5)).to(place.device(0))
        model = DataParallel(net, devices(place))
        X = torch.ones(ROWS, 64, device=place.device(0))
        step = model.graphed(lambda output: output.square().mean(), X)
        assert len({step(X).item() for _ in range(4)}) == 4


def optimizer_of(net, kind) -> torch.optim.Optimizer:
    if kind == "AdamW":
        return torch.optim.AdamW(net.parameters(), 0.01, capturable=True)
    return torch.optim.SGD(net.parameters(), 0.1, momentum=0.9 if "momentum" in kind else 0)
