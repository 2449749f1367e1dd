"""Processes that torchrun starts, and starts again."""

import re
from pathlib import Path

import pytest
import torch
from processes import torchrun

pytestmark = pytest.mark.sweep("processes")
HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"


def test_a_killed_rank_is_started_again_and_ends_with_the_same_bits(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    torchrun(HERE / "elastic_program.py", whole, -1)
    said = torchrun(HERE / "elastic_program.py", killed, 3, restarts=1)
    assert "rank 1 begins at step 2" in said
    wanted = torch.load(whole / "end-0")
    for folder, rank in ((whole, 1), (killed, 0), (killed, 1)):
        found = torch.load(folder / f"end-{rank}")
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def example(page, word):
    """That of a page which has this word."""
    text = (DOCS / page).read_text()
    found = re.findall(r"^```py\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    return next(x for x in found if word in x)


@pytest.mark.parametrize(
    ("page", "word", "needs", "said"),
    [
        ("distributed.md", "DistributedDataParallel", "torch", "rank 1: loss 0.0"),
        ("distributed.md", "accelerate", "accelerate", "2 processes, fastreduce: 0.0"),
        ("distributed.md", "lightning_fabric", "lightning_fabric", "2 processes, fastreduce: 0.0"),
        ("kvstore.md", "dist_sync", "torch", "rank 1: [-0.5, -0.5]"),
        ("kvstore.md", "dist_async", "torch", "rank 1: loss 0.0"),
    ],
)
def test_examples_of_the_docs(tmp_path, page, word, needs, said):
    pytest.importorskip(needs)
    script = tmp_path / "train.py"
    script.write_text(example(page, word))
    assert said in torchrun(script)


def test_processes_end_in_order_while_calls_wait():
    for _ in range(2):  # one in ten ended well before
        torchrun(HERE / "exit_program.py")
