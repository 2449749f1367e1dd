"""Models, losses and batches that the tests of DataParallel train; one step, and a comparison."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

ROWS, FEATURES, CLASSES = 7, 6, 5


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES))


class Changed(nn.Module):
    """An MLP with something done to what its first layer returns."""

    def __init__(self, change) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES)
        self.change = change

    def forward(self, x, *others):
        return self.last(self.change(self, self.first(x).tanh(), *others))


class Tied(nn.Module):
    """Two modules share a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
        self.two.weight = self.one.weight
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x):
        return self.head(self.two(self.one(x).tanh()))


class Branching(nn.Module):
    """`rare` is used only for shards that have a positive first feature in their first row."""

    def __init__(self) -> None:
        super().__init__()
        self.usual, self.rare = nn.Linear(FEATURES, CLASSES), nn.Linear(FEATURES, CLASSES)
        self.never = nn.Linear(2, 2)

    def forward(self, x):
        positive = (x[:, :1] > 0).to(x.dtype)
        y = self.usual(x)
        return y + positive * self.rare(x) if positive.any() else y


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(FEATURES, 4, batch_first=True)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x):
        return self.head(self.lstm(x[:, None, :].expand(-1, 3, -1))[0][:, -1])


class Checkpointed(nn.Module):
    def __init__(self, use_reentrant: bool = False) -> None:
        super().__init__()
        self.body, self.head, self.use_reentrant = mlp(), nn.Linear(CLASSES, CLASSES), use_reentrant

    def forward(self, x):
        x = x.detach().requires_grad_()  # or the reentrant kind computes no gradient at all
        return self.head(checkpoint(self.body, x, use_reentrant=self.use_reentrant))


class Embedded(nn.Module):
    def __init__(self, **settings) -> None:
        super().__init__()
        self.table = nn.Embedding(10, CLASSES, **settings)

    def forward(self, x):
        return self.table((x[:, 0].abs() * 3).long() % 10)


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(FEATURES, CLASSES, dtype=torch.complex128))

    def forward(self, x):
        return (x.to(torch.complex128) @ self.w).abs()


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(FEATURES, 2, 8, dropout=0.0, batch_first=True)
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x):
        return self.head(self.layer(x[:, None, :].expand(-1, 3, -1)).mean(1))


def frozen() -> nn.Module:
    net = mlp()
    net[0].requires_grad_(False)
    return net


def weight_normed() -> nn.Module:
    net = mlp()
    nn.utils.parametrizations.weight_norm(net[0])
    return net


def with_norm(norm) -> Callable[[], nn.Module]:
    """With one of torch's older norms, which keep what they compute as an attribute."""

    def make() -> nn.Module:
        net = mlp()
        norm(net[0])
        return net

    return make


class Features(nn.Module):
    """Keeps what its first layer returned."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.all = nn.Linear(FEATURES, 4), nn.Linear(4, CLASSES), []

    def forward(self, x):
        self.last = self.body(x)
        self.all.append(self.last)
        return self.head(self.last)


KEEPING_RESULTS = {
    "old weight norm": with_norm(nn.utils.weight_norm),
    "old spectral norm": with_norm(nn.utils.spectral_norm),
    "pruned": with_norm(lambda layer: prune.l1_unstructured(layer, "weight", 0.5)),
    "features": Features,
}
MODELS = {
    "mlp": mlp,
    "tied": Tied,
    "branching": Branching,
    "lstm": Recurrent,
    "checkpoint": Checkpointed,
    "reentrant checkpoint": lambda: Checkpointed(use_reentrant=True),
    "embedding": Embedded,
    "sparse embedding": lambda: Embedded(sparse=True),
    "complex": Complex,
    "transformer": Attention,
    "frozen": frozen,
    "weight norm": weight_normed,
}


def batch(rows: int = ROWS) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    X = torch.randn(rows, FEATURES, generator=generator, dtype=torch.float64)
    return X, torch.randint(CLASSES, (rows,), generator=generator)


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name]().double()


def step(model: nn.Module, lr: float = 0.1) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr)
    optimizer.zero_grad()
    X, y = batch()
    model.backward(F.cross_entropy, X, y)
    optimizer.step()


def dense(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.to_dense() if gradient.layout != torch.strided else gradient


def assert_same_gradients(model: nn.Module, wanted: nn.Module, tolerance: float = 1e-10) -> None:
    for (name, ours), (_, theirs) in zip(
        model.named_parameters(), wanted.named_parameters(), strict=True
    ):
        assert (ours.grad is None) == (theirs.grad is None), name
        if ours.grad is not None:
            torch.testing.assert_close(
                dense(ours.grad), dense(theirs.grad), rtol=tolerance, atol=tolerance, msg=name
            )
