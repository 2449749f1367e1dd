"""benchmarks/processes.py: what starts the ranks."""

import importlib.util
import subprocess
from pathlib import Path

import axes
import pytest


@pytest.fixture
def processes():
    """By its path: the tests have a module of that name, too."""
    path = Path(axes.__file__).parent / "processes.py"
    spec = importlib.util.spec_from_file_location("processes_of_benchmarks", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("device", "starts"), [("cpu", "mpiexec"), ("cuda", "torchrun")])
def test_mpi_takes_part_where_tensors_are_on_the_cpu(processes, monkeypatch, device, starts):
    monkeypatch.setattr(processes.os, "environ", {"PATH": ""})
    monkeypatch.setattr(processes.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(processes, "find_spec", lambda _: "found")
    monkeypatch.setattr(processes, "which", lambda *_, **__: "mpiexec")
    commands = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: commands.append(command))
    processes.in_processes(2, {"device": device}, Path("rows.json"))
    assert ("mpiexec" in commands[0]) == (starts == "mpiexec")
