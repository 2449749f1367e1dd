"""Processes that torchrun starts, and starts again."""

import re
from pathlib import Path

import pytest
import torch
from processes import torchrun

pytestmark = pytest.mark.sweep("processes")
HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "distributed.md"


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


def example(word):
    """That of docs/distributed.md which has this word."""
    found = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    return next(x for x in found if word in x)


@pytest.mark.parametrize(
    ("word", "needs", "said"),
    [
        ("DistributedDataParallel", "torch", "rank 1: loss 0.0"),
        ("accelerate", "accelerate", "2 processes, fastreduce: 0.0"),
        ("lightning_fabric", "lightning_fabric", "2 processes, fastreduce: 0.0"),
    ],
)
def test_examples_of_the_docs(tmp_path, word, needs, said):
    pytest.importorskip(needs)
    script = tmp_path / "train.py"
    script.write_text(example(word))
    assert said in torchrun(script)


def test_processes_end_in_order_while_calls_wait():
    for _ in range(2):  # one in ten ended well before
        torchrun(HERE / "exit_program.py")
