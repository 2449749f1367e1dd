"""benchmarks/kernels.py: whom it measures, and what is left where something fails or is cut off."""

import json
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CPU = [torch.device("cpu")]


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def kernels(*arguments):
    command = [sys.executable, BENCHMARKS / "kernels.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def test_kernels_on_a_machine_without_a_gpu(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    flags = ["-e", "1K", "-n", "1", "-w", "1", "-k", "2", "--algorithm", "auto", "ring", "--out"]
    done = kernels(*flags, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "# engines: on the CPU: no GPU here" in done.stdout
    assert "# Out of bounds values : 0 OK" in done.stdout
    written = json.loads((tmp_path / "out.json").read_text())
    measured = {row["algorithm"] for row in written["rows"]}
    assert measured == {"auto", "ring", "loop", "stack", "foreach"}
    assert (tmp_path / "out.png").stat().st_size > 0


def test_kernels_of_an_engine_that_cannot_run_here():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = kernels("--engine", "events")
    assert done.returncode == 1
    assert "none of the engines events can run here" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_kernels_that_are_stopped_leave_what_they_have(tmp_path, number):
    flags = ["-b", "4K", "-f", "1", "-k", "2", "-o", "max", "--algorithm", "auto", "--out"]
    command = [sys.executable, BENCHMARKS / "kernels.py", *flags, tmp_path / "out"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    for _ in range(1200):
        if (tmp_path / "out.json").exists():
            break
        time.sleep(0.1)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == (1 if number == signal.SIGTERM else -number), said
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["rows"] and not written["complete"]
    assert (tmp_path / "out.png").exists() == (number == signal.SIGTERM)


def whole_turn(rotation):
    from rotation import Rotation

    return Rotation(rotation.buffers, rotation.contender, [rotation.run_all])


def broken(prepared: bool):
    from competitors import Contender

    def fail(*_):
        raise MemoryError("no room\nfor this")

    name = "run" if prepared else "prepare"
    return Contender("cupy", name, lambda ranks: partial(fail, ranks) if prepared else fail())


class TestKernels:
    """In this process; ``gpu`` has the CPU in its place."""

    @pytest.fixture
    def args(self, monkeypatch):
        from kernels import arguments

        flags = ["-b", "1K", "-e", "4K", "-n", "1", "-w", "1", "-k", "2", "--algorithm", "auto"]
        monkeypatch.setattr(sys, "argv", ["kernels.py", *flags, "host"])
        return arguments()

    @pytest.fixture
    def gpu(self, monkeypatch):
        import competitors
        import kernels
        import kernels_case
        from rotation import Buffers, Rotation

        for module in (kernels, kernels_case):
            monkeypatch.setattr(module, "has_gpu", lambda: True)
        # Installed or not, they want a real one.
        monkeypatch.setattr(competitors, "absent", lambda: ["cupy", "triton"])
        monkeypatch.setattr(kernels_case, "devices_of", lambda engine: CPU)
        monkeypatch.setattr(kernels_case, "cache_bytes", lambda: 20_000)
        monkeypatch.setattr(Buffers, "on_gpu", True)
        monkeypatch.setattr(Rotation, "_by_events", Rotation._by_clock)
        monkeypatch.setattr(Rotation, "synchronize", lambda self: None)
        monkeypatch.setattr(Rotation, "captured", whole_turn)
        monkeypatch.setattr(kernels_case._C, "set_lane_per_rank", lambda on: None)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 40, 1 << 40))
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        return monkeypatch

    def measure(self, args):
        from kernels import add, cases

        rows, failures = [], []
        for case in cases(args):
            add(case, args, rows, failures)
        return rows, failures

    def test_lenet_first_then_all_dtypes_of_a_size(self, args):
        from kernels import cases

        found = [(len(x.shapes), x.size_bytes, x.dtype) for x in cases(args)]
        assert [tensors for tensors, _, _ in found] == [8, 8, 8, 1, 1, 1, 1]
        both = [torch.float32, torch.bfloat16]
        assert found[3:] == [(1, size, dtype) for size in (1024, 4096) for dtype in both]

    def test_on_a_gpu(self, args, gpu, capsys):
        from kernels import conclude

        rows, failures = self.measure(args)
        assert not failures and not conclude(rows, failures)
        assert {row["engine"] for row in rows} >= {"tiles", "events", "torch"}
        assert all(row["captured"]["of_limit"] > 0 and row["host_s"] > 0 for row in rows)
        assert all(row["wrong_elems"] == 0 for row in rows)

    @pytest.mark.parametrize("prepared", [False, True])
    def test_a_competitor_that_raises_is_left_out(self, args, gpu, capsys, prepared):
        import kernels_case
        from kernels import conclude

        theirs = kernels_case.theirs
        gpu.setattr(kernels_case, "theirs", lambda *about: [broken(prepared), *theirs(*about)])
        rows, failures = self.measure(args)
        assert {row["engine"] for row in rows} == {"tiles", "events", "torch"}
        assert {x["error"] for x in failures} == {"MemoryError: no room"}
        assert not conclude(rows, failures)
        said = capsys.readouterr().out
        assert f"# failed: cupy {'run' if prepared else 'prepare'}, bfloat16, k = 2, 1024 B" in said
        assert "# failed: 0 of fastreduce's, 7 of the others" in said

    def test_one_of_ours_that_cannot_be_captured(self, args, gpu, capsys, tmp_path):
        from kernels import conclude
        from kernels_report import draw
        from rotation import Rotation

        captured = Rotation.captured

        def fail(rotation):
            if rotation.contender.name == "events auto":
                raise RuntimeError("not permitted")
            return captured(rotation)

        gpu.setattr(Rotation, "captured", fail)
        rows, failures = self.measure(args)
        called = {f"{x['engine']} {x['algorithm']}" for x in rows if not x["captured"]}
        assert called == {"events auto"}
        assert conclude(rows, failures)
        draw(rows, {"engines": "on GPU", "gpu": "none", "torch": "?"}, tmp_path / "out.png")

    def test_a_case_that_fails_does_not_stop_the_next(self, args, gpu, capsys):
        import kernels_case
        from kernels import conclude

        limit = kernels_case.limit

        def fail_at_1k(buffers):
            if buffers.size_bytes == 1024:
                raise torch.OutOfMemoryError("out of memory")
            return limit(buffers)

        gpu.setattr(kernels_case, "limit", fail_at_1k)
        rows, failures = self.measure(args)
        assert {row["size_bytes"] for row in rows if row["tensors"] == 1} == {4096}
        assert [(x["engine"], x["size_bytes"]) for x in failures] == [(None, 1024)] * 2
        assert conclude(rows, failures)
        assert "# failed: the whole case, float32, k = 2, 1024 B: OutOfM" in capsys.readouterr().out

    def test_the_host_program_is_measured_at_small_sizes_only(self, gpu):
        from kernels_case import MOST_HOST_BYTES, Case, serves

        for elems, served in ((MOST_HOST_BYTES // 4, True), (MOST_HOST_BYTES // 4 + 1, False)):
            case = Case([(elems,)], torch.float32, 2, "sum", ["tiles", "events"])
            assert serves(case, "events", "host") == served
            assert serves(case, "tiles", "host")

    def test_all_graphs_of_a_case_are_kept(self):
        from competitors import ours
        from kernels_case import most_sets
        from rotation import GRAPHS_KEPT

        source = (BENCHMARKS.parent / "csrc" / "events.cu").read_text()
        assert re.findall(r"kMaxGraphs = (\d+);", source) == [str(GRAPHS_KEPT)]
        tiles, events = ours("tiles", "ring", "sum"), ours("events", "ring", "sum")
        assert most_sets([tiles] * 12) == GRAPHS_KEPT
        assert most_sets([tiles] * 12 + [events] * 12) == 5
        assert most_sets([events] * 100) == 1

    def test_nothing_to_draw(self, tmp_path, capsys):
        from kernels_report import draw, summary

        draw([], {}, tmp_path / "out.png")
        assert summary([]) == {"not_ahead_of": []}
