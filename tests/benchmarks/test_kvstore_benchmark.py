"""benchmarks/kvstore.py: what it simulates, and a run of it where it can make networks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import kvstore
import pytest
import torch
from namespaces import missing_commands

SCRIPT = Path(kvstore.__file__)


def test_the_simulated_time_is_that_of_the_busiest_server():
    """Its link carries all other workers' shard to it, and then the result to them."""
    for workers, servers in [(2, 1), (4, 1), (8, 4), (8, 8)]:
        shard_s = kvstore.NBYTES / servers / (kvstore.RATE_MBIT * 1e6 / 8)
        wanted = 2 * (workers - 1) * shard_s
        assert kvstore.simulated_s(workers, servers) == pytest.approx(wanted, rel=0.05)


def test_the_picture_and_the_table(tmp_path):
    row = {"workers": 2, "servers": 1, "kind": "dist_sync", "time_s": 0.5, "simulated_s": 0.4}
    rows = [row, {**row, "kind": None, "time_s": None, "workers": 8}]
    about = {"cpu": "none", "cores": 2, "threads": 1, "torch": "?", "date": "?"}
    kvstore.draw(rows, about, tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    _, _, line = kvstore.table([row])
    assert line.split() == ["2", "1", "2.00", "dist_sync", "500", "ms", "400", "ms"]


@pytest.mark.sweep("benchmarks")
@pytest.mark.skipif(bool(missing_commands()), reason=f"needs {missing_commands()}")
def test_it_runs(tmp_path):
    out = tmp_path / "kvstore"
    command = [sys.executable, str(SCRIPT), "-n", "1", "--workers", "2", "--out", str(out)]
    path = os.pathsep.join(filter(None, sys.path))
    subprocess.run(command, check=True, timeout=120, env={**os.environ, "PYTHONPATH": path})
    found = json.loads(out.with_suffix(".json").read_text())
    assert found["machine"].items() >= {"threads": 1, "torch": torch.__version__}.items()
    rows = found["rows"]
    measured = [(x["servers"], x["kind"]) for x in rows if x["time_s"]]
    assert sorted(measured) == [(n, kind) for n in (1, 2) for kind in sorted(kvstore.KINDS)]
