"""benchmarks/ddp_step.py: checked before timed, and what it writes."""

import json
import subprocess
import sys
from pathlib import Path

import ddp_step
import pytest
import torch
import torch.distributed as dist

SCRIPT = Path(ddp_step.__file__)


@pytest.fixture
def alone(tmp_path):
    dist.init_process_group("gloo", f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
class TestCheck:
    def test_parameters_but_for_rounding(self):
        ddp_step.check({"fastreduce": torch.ones(3), "gloo": torch.ones(3) + 1e-5})

    def test_control_others_are_refused(self):
        with pytest.raises(SystemExit, match="gloo: the parameters are not those of fastreduce"):
            ddp_step.check({"fastreduce": torch.ones(3), "gloo": torch.tensor([1.0, 1.0, 1.1])})


@pytest.mark.sweep("benchmarks")
def test_what_it_writes(tmp_path):
    flags = ["-n", "1", "-m", "LeNet, batch 32", "--out", tmp_path / "out"]
    done = subprocess.run([sys.executable, SCRIPT, *flags], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = {
        row["contender"]: row for row in json.loads((tmp_path / "out.json").read_text())["rows"]
    }
    assert list(rows) == ["fastreduce", "gloo", "no sums"]
    assert rows["no sums"]["sync_s"] == 0 and rows["gloo"]["step_over_gloo"] == 1
    assert "LeNet, batch 32  fastreduce" in done.stdout
    assert (tmp_path / "out.png").stat().st_size > 0
