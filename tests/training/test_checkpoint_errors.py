"""Checkpoints: what does not fit is refused, and nothing has changed."""

import copy
from functools import partial

import pytest
import safetensors.torch
import torch
from saved_parts import made
from torch import nn

from fastreduce.training import CheckpointError, load, save


def rewritten(path, **changes):
    with safetensors.safe_open(path, "pt") as file:
        about = file.metadata()
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    path.write_bytes(safetensors.torch.save(tensors, {**about, **changes}))


def of_version_2(folder):
    rewritten(save(folder, made(), step=1), version="2")


def of_another_kind(folder):
    (folder / "step-1.safetensors").write_bytes(safetensors.torch.save({"x": torch.ones(2)}))


def a_link(folder):
    outside = save(folder.parent / "outside", made(), step=1)
    (folder / outside.name).symlink_to(outside)


def of_a_wider_model(folder):
    save(folder, made(4), step=1)


def of_another_model(folder):
    parts = made()
    save(folder, {**parts, "model": nn.Linear(2, 1)}, step=1)


def of_another_dtype(folder):
    parts = made()
    parts["model"].double()
    save(folder, parts, step=1)


def of_another_optimizer(folder):
    parts = made()
    one = torch.optim.SGD(list(parts["model"].parameters())[:2], lr=0.1)
    save(folder, {**parts, "optimizer": one}, step=1)


def of_another_kind_of_optimizer(folder):
    parts = made()
    adagrad = torch.optim.Adagrad(parts["model"].parameters())
    save(folder, {**parts, "optimizer": adagrad}, step=1)


def of_an_optimizer_of_a_wider_model(folder):
    save(folder, {**made(), "optimizer": made(4)["optimizer"]}, step=1)


def without_a_part(folder):
    parts = made()
    del parts["draws"]
    save(folder, parts, step=1)


def of_another_generator(folder):
    save(folder, {**made(), "draws": torch.ones(3)}, step=1)


def of_no_optimizer(folder):
    parts = made()
    save(folder, {**parts, "optimizer": parts["model"]}, step=1)


def of_a_number(folder):
    save(folder, {**made(), "model": 3}, step=1)


class Preconditioned(torch.optim.Optimizer):
    """As Shampoo, it has a matrix for each dimension."""

    def __init__(self, params):
        super().__init__(params, {})

    def step(self, closure):
        closure()
        for x in self.param_groups[0]["params"]:
            self.state[x] = {"factors": [torch.eye(n) for n in x.shape], "step": torch.ones(1)}


def stepped(net, optimizer):
    def closure():
        optimizer.zero_grad()
        loss = net(torch.ones(1, 2)).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)


REFUSED = {
    "version": (of_version_2, "found version 2, wanted version 1"),
    "kind": (of_another_kind, "found a file of another kind, wanted a checkpoint"),
    "link": (a_link, "found a link to .*outside.*, wanted a file of this folder"),
    "shape": (
        of_a_wider_model,
        r"model: 0\.weight: found float32 of shape \(4, 2\), wanted float32 of shape \(3, 2\)",
    ),
    "model": (of_another_model, r"model: found no '0\.weight', .* and found 'weight', 'bias'"),
    "dtype": (of_another_dtype, r"model: 0\.weight: found float64 .*, wanted float32"),
    "optimizer": (
        of_another_optimizer,
        r"optimizer: found parameters \{'group 0': 2\}, wanted \{'group 0': 6\}",
    ),
    "optimizer's kind": (
        of_another_kind_of_optimizer,
        "optimizer: found the settings initial_accumulator_value, lr_decay of another optimizer, "
        "wanted amsgrad, betas, ",
    ),
    "optimizer's shapes": (
        of_an_optimizer_of_a_wider_model,
        r"optimizer: group 0: found the state of a parameter 0 of shape \(4, 2\), wanted \(3, 2\)",
    ),
    "no optimizer": (
        of_no_optimizer,
        "optimizer: found the state of something else, wanted that of an optim",
    ),
    "a number": (of_a_number, "model: found int, wanted a dict"),
    "parts": (without_a_part, "found model, optimizer, scheduler, wanted model, .*, draws"),
    "generator": (of_another_generator, r"draws: found float32 of shape \(3,\), wanted uint8"),
}


@pytest.mark.parametrize(("write", "words"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_an_error_and_nothing_changes(tmp_path, write, words):
    folder = tmp_path / "run"
    folder.mkdir()
    write(folder)
    parts = made()
    before = copy.deepcopy({name: parts[name].state_dict() for name in list(parts)[:3]})
    with pytest.raises(CheckpointError, match=words):
        load(folder, parts)
    after = {name: parts[name].state_dict() for name in before}
    assert str(after) == str(before)


def test_settings_that_only_a_later_torch_has_are_no_other_optimizer(tmp_path):
    parts = made()
    state = parts["optimizer"].state_dict()
    for group in state["param_groups"]:
        del group["decoupled_weight_decay"]  # as before torch had it
        group["param_names"] = list("abcdef")
    save(tmp_path, {**parts, "optimizer": state}, step=1)
    load(tmp_path, parts)


@pytest.mark.parametrize(
    "kind",
    [
        partial(torch.optim.Adafactor, lr=0.1),
        torch.optim.LBFGS,
        Preconditioned,
    ],
)
def test_state_of_other_shapes_than_the_parameters_is_no_misfit(tmp_path, kind):
    """Before and after the optimizer that gets it has a state of its own."""
    net, other = nn.Linear(2, 3), nn.Linear(2, 3)
    optimizer, fresh = kind(net.parameters()), kind(other.parameters())
    stepped(net, optimizer)
    save(tmp_path, {"optimizer": optimizer}, step=1)
    for _ in range(2):
        load(tmp_path, {"optimizer": fresh})
        assert str(fresh.state_dict()) == str(optimizer.state_dict())


def test_no_checkpoint_at_all(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(FileNotFoundError, match="found no checkpoint, wanted step-"):
            load(path, {})
