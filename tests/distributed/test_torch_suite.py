"""torch's own tests of torch.distributed: what passes on CPUs with Gloo passes with the backend."""

import pytest
import torch
from processes import in_a_group

pytest.importorskip("expecttest")  # torch's tests need it
import torch_suite


def outcomes(folder, size, backend, tests=None):
    """By test, what became of it on each rank."""
    folder.mkdir()
    own = (size, str(folder), backend, tests)
    in_a_group(torch_suite.run, own, size, folder, None, backend, 20, within_s=300)
    found = [torch.load(folder / f"found-{rank}") for rank in range(size)]
    return {name: [outcome[name] for outcome in found] for name in found[0]}


@pytest.mark.sweep("torch's suite")
@pytest.mark.parametrize("size", [2, 3, 4])
def test_what_passes_with_gloo(tmp_path, size):
    gloo = outcomes(tmp_path / "gloo", size, "gloo")
    passed = {name for name, found in gloo.items() if found == ["passed"] * size}
    assert len(passed) > 70
    ours = outcomes(tmp_path / "fastreduce", size, "fastreduce", sorted(passed))
    failed = {name: found for name, found in ours.items() if found != ["passed"] * size}
    assert not failed, "\n".join(f"{name}: {'; '.join(x)}" for name, x in failed.items())
