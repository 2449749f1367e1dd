"""benchmarks/allreduce.py: whom it measures, and what is left where something fails or is cut off.

Some run the program; in the others it is in this process, and "on a GPU" has the CPU in its place.
"""

import json
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import allreduce
import buffers
import contenders
import contest
import pytest
import torch
from allreduce import add, arguments, cases
from buffers import Buffers
from contenders import Contender
from contest import Case, contenders_of
from figures import summary
from pictures import draw
from report import conclude, header, line
from rotation import Rotation
from sweeps import one_in

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CPU = [torch.device("cpu")]
THEIRS = ["loop", "stack", "foreach"]


def program(*arguments):
    command = [sys.executable, BENCHMARKS / "allreduce.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def test_on_a_machine_without_a_gpu(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    flags = (
        "-t 1 -e 1K -n 1 -w 1 -k 2 -d float32 --algorithm auto ring --against loop stack foreach"
    )
    done = program(*flags.split(), "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "# engines: on the CPU: no GPU here" in done.stdout
    assert "cupy (no GPU), triton (no GPU)" in done.stdout
    assert "# Worst ratio of auto to the best that was named" in done.stdout
    assert "# Out of bounds values : 0 OK" in done.stdout
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["complete"] and not written["failures"]
    assert {row["algorithm"] for row in written["rows"]} == {"auto", "ring", *THEIRS}
    assert written["summary"]["over_loop_least"] > 0
    for picture in ("out.png", "out_over_best.png"):
        assert (tmp_path / picture).stat().st_size > 0


def test_an_engine_that_cannot_run_here(monkeypatch):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    monkeypatch.setattr(signal, "signal", lambda *handler: None)
    monkeypatch.setattr(sys, "argv", ["allreduce.py", "--engine", "events"])
    with pytest.raises(SystemExit, match="none of the engines events can run here"):
        allreduce.main()


@pytest.mark.parametrize("number", one_in(2, [signal.SIGTERM, signal.SIGKILL], "cases"))
def test_one_that_is_stopped_leaves_what_it_has(tmp_path, number):
    # The first size takes a second, all up to 256 MiB many minutes.
    flags = ["-b", "4K", "-f", "2", "-n", "100", "-k", "2", "-o", "max", "--algorithm", "auto"]
    command = [sys.executable, BENCHMARKS / "allreduce.py", *flags, "--out", tmp_path / "out"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    for _ in range(1200):
        if (tmp_path / "out.json").exists() or process.poll() is not None:
            break
        time.sleep(0.1)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == (1 if number == signal.SIGTERM else -number), said
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["rows"] and not written["complete"]
    assert (tmp_path / "out.png").exists() == (number == signal.SIGTERM)


def parsed(monkeypatch, flags):
    monkeypatch.setattr(sys, "argv", ["allreduce.py", *flags.split()])
    return arguments()


@pytest.fixture
def args(monkeypatch):
    monkeypatch.setattr(buffers, "cpu_cache_bytes", lambda system: 20_000)
    flags = "-b 1K -e 4K -n 1 -w 1 -k 2 -d float32 bfloat16 --algorithm auto host --against "
    return parsed(monkeypatch, flags + " ".join(THEIRS))


@pytest.fixture
def gpu(monkeypatch):
    for module in (allreduce, buffers, contest):
        monkeypatch.setattr(module, "has_gpu", lambda: True)
    for module in (allreduce, contest):
        monkeypatch.setattr(module, "cache_bytes", lambda: 20_000)
    monkeypatch.setattr(contest, "devices_of", lambda engine: CPU)
    monkeypatch.setattr(Buffers, "on_gpu", True)
    monkeypatch.setattr(Rotation, "_by_events", Rotation._by_clock)
    monkeypatch.setattr(Rotation, "synchronize", lambda self: None)
    monkeypatch.setattr(Rotation, "captured", whole_turn)
    monkeypatch.setattr(contenders._C, "set_lane_per_rank", lambda on: None)
    run = contenders._C.run
    monkeypatch.setattr(contenders._C, "run", lambda *how: run(*how[:-1], "auto"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 40, 1 << 40))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    return monkeypatch


def whole_turn(rotation):
    return Rotation(rotation.buffers, rotation.contender, [rotation.run_all])


def broken(prepared: bool):
    def fail(*_):
        raise MemoryError("no room\nfor this")

    name = "run" if prepared else "prepare"
    return Contender("cupy", name, lambda ranks: partial(fail, ranks) if prepared else fail())


def measured(args):
    rows, failures = [], []
    for case in cases(args):
        add(case, args, rows, failures)
    return rows, failures


def test_a_model_first_then_all_dtypes_of_a_size(args):
    found = [(len(x.shapes), x.size_bytes, x.dtype) for x in cases(args)]
    assert [tensors for tensors, _, _ in found] == [8, 1, 1, 1, 1]
    both = [torch.float32, torch.bfloat16]
    assert found[1:] == [(1, size, dtype) for size in (1024, 4096) for dtype in both]


def test_all_algorithms_and_no_others(monkeypatch):
    args = parsed(monkeypatch, "--algorithm all --against")
    case = Case([(4,)], torch.float32, 2, "sum", ["tiles"])
    names = [x.name for x in contenders_of(case, args)]
    assert names == [f"tiles {x}" for x in ("auto", *allreduce.algorithms.names())]


def test_a_limit_is_one_and_is_only_where_data_comes_from_memory(args):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    rows, failures = measured(args)
    assert not failures and not conclude(rows, failures)
    for row in rows:
        assert row["from_memory"] == (row["working_set_bytes"] >= 40_000)
        assert (row["called"]["of_limit"] is not None) == row["from_memory"]
        assert row["called"]["of_pass"] > 0
        assert row["captured"] is None and row["host_s"] is None
    # A round's median over one round is that round: the fastest of them is the limit itself.
    limits = [x["called"]["of_limit"] for x in rows if x["from_memory"] and x["tensors"] == 1]
    assert limits and max(limits) <= 1
    # 64 sets of 1 KiB on each of 2 ranks; LeNet's 516 KB are one set.
    assert {x["working_set_bytes"] for x in rows if x["size_bytes"] == 1024} == {20 * 2048}
    assert {x["working_set_bytes"] // x["k"] for x in rows if x["tensors"] > 1} == {516_272}


def test_one_set_where_so_many_are_wanted(args):
    args.sets = 1
    rows, _ = measured(args)
    assert {row["working_set_bytes"] for row in rows if row["size_bytes"] == 1024} == {2048}
    assert not any(row["from_memory"] for row in rows if row["size_bytes"] == 1024)


def test_on_a_gpu(args, gpu, capsys):
    rows, failures = measured(args)
    assert not failures and not conclude(rows, failures)
    assert {row["engine"] for row in rows} >= {"tiles", "events", "torch"}
    assert all(row["host_s"] > 0 and row["wrong_elems"] == 0 for row in rows)
    assert {row["devices"] for row in rows} == {1}
    # Each set has a graph for "events" and for "flags", with two algorithms: 64 are room for 16.
    assert {x["working_set_bytes"] for x in rows if x["size_bytes"] == 1024} == {16 * 2048}
    assert {row["size_bytes"] for row in rows if row["from_memory"]} > {4096}
    for row in rows:
        assert (row["captured"]["of_limit"] is not None) == row["from_memory"]
    assert "captured in a graph" in header(True) and len(line(rows[0], True)) > 160


@pytest.mark.parametrize("prepared", [False, True])
def test_a_contender_that_raises_is_left_out(args, gpu, capsys, prepared):
    theirs = contest.theirs
    gpu.setattr(contest, "theirs", lambda *about: [broken(prepared), *theirs(*about)])
    rows, failures = measured(args)
    assert {row["engine"] for row in rows} == {"tiles", "events", "flags", "torch"}
    assert {x["error"] for x in failures} == {"MemoryError: no room"}
    assert not conclude(rows, failures)
    said = capsys.readouterr().out
    assert f"# failed: cupy {'run' if prepared else 'prepare'}, bfloat16, k = 2, 1024 B" in said
    assert "# failed: 0 of fastreduce's, 5 of the others" in said


def test_one_of_ours_that_cannot_be_captured(args, gpu, capsys, tmp_path):
    captured = Rotation.captured

    def fail(rotation):
        if rotation.contender.name == "events auto":
            raise RuntimeError("not permitted")
        return captured(rotation)

    gpu.setattr(Rotation, "captured", fail)
    rows, failures = measured(args)
    called = {f"{x['engine']} {x['algorithm']}" for x in rows if not x["captured"]}
    assert called == {"events auto"}
    assert conclude(rows, failures)
    about = {"engines": "on GPU", "gpu": "none", "torch": "?", "date": "?"}
    draw(rows, about, tmp_path / "out.png")


def test_a_case_that_fails_does_not_stop_the_next(args, gpu, capsys):
    passes = contest.passes

    def fail_at_1k(buffers):
        if buffers.size_bytes == 1024:
            raise torch.OutOfMemoryError("out of memory")
        return passes(buffers)

    gpu.setattr(contest, "passes", fail_at_1k)
    rows, failures = measured(args)
    assert {row["size_bytes"] for row in rows if row["tensors"] == 1} == {4096}
    assert [(x["engine"], x["size_bytes"]) for x in failures] == [(None, 1024)] * 2
    assert conclude(rows, failures)
    assert "# failed: the whole case, float32, k = 2, 1024 B: OutOfM" in capsys.readouterr().out


def test_nothing_to_draw(tmp_path, capsys):
    draw([], {}, tmp_path / "out.png")
    assert summary([]) == {"not_ahead_of": []}
