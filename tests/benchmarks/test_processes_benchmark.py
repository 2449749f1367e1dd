"""benchmarks/processes.py: what starts the ranks."""

import importlib.util
import json
import subprocess
from pathlib import Path

import axes
import pytest
from measure import bandwidth

RESULTS = Path(axes.__file__).parent / "results"


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


def busbw_of_nccl_tests(collective, nbytes, time_s, k):
    """As its sources have it, by file: the bytes that count, and the factor."""
    nbytes, factor = {
        "all_reduce": (nbytes, 2 * (k - 1) / k),  # all_reduce.cu
        "broadcast": (nbytes, 1),  # broadcast.cu
        "all_gather": (k * nbytes, (k - 1) / k),  # all_gather.cu
        "reduce_scatter": (k * nbytes, (k - 1) / k),  # reduce_scatter.cu
    }[collective]
    return nbytes / 1e9 / time_s * factor


def test_a_row_has_the_bytes_that_were_moved(processes, monkeypatch):
    """Of an odd size whole elements are left, as in nccl-tests."""
    monkeypatch.setattr(processes.dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(processes, "call_of", lambda *_: None)
    monkeypatch.setattr(processes, "slowest_s", lambda calls, *_: {name: [1e-6] for name in calls})
    monkeypatch.setattr(processes, "calls_of_torch", lambda _: {})
    rows = list(processes.rows_of("broadcast", 11, 1, "cpu", {"gloo": None}))
    assert {(row["nbytes"], round(row["algbw_gb_per_s"], 6)) for row in rows} == {(8, 0.008)}


def test_a_size_without_an_element_is_refused(processes, monkeypatch, capsys):
    monkeypatch.setattr(processes, "preamble", lambda _: pytest.fail("it has begun"))
    monkeypatch.setattr(processes.sys, "argv", ["processes.py", "-b", "3"])
    with pytest.raises(SystemExit):
        processes.main()
    assert "found -b 3, wanted at least 4, of one float32" in capsys.readouterr().err


@pytest.mark.parametrize("k", [1, 2, 3, 8])
def test_each_collective_has_its_own_busbw(processes, k):
    for collective in processes.COLLECTIVES:
        found = bandwidth(4096, 1e-5, k, collective)["busbw_gb_per_s"]
        assert found == pytest.approx(busbw_of_nccl_tests(collective, 4096, 1e-5, k))


@pytest.mark.parametrize("name", ["processes", "processes_many", "processes_gpu", "machines"])
def test_so_have_the_kept_results(name):
    for row in json.loads((RESULTS / f"{name}.json").read_text())["rows"]:
        about = row["collective"], row["nbytes"], row["time_s"], row["k"]
        assert row["busbw_gb_per_s"] == pytest.approx(busbw_of_nccl_tests(*about)), about
