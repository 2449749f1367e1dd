"""``fastreduce calibrate``: what it prints and writes, and what it refuses in words."""

import json
import threading

import pytest

import fastreduce.plan.calibrate
from fastreduce.cli import main
from fastreduce.topology import load
from fastreduce.topology.calibration import Curve, Pair
from fastreduce.topology.calibration_files import load_calibrations, stored

pytest.importorskip("scipy")

CURVE = Curve(20e-6, 0.0, (Pair(0.0, 5e9), Pair(4e6, 100e9)))


@pytest.fixture
def output(tmp_path):
    return nccl_tests(tmp_path / "node.txt", range(10, 31, 2))


def nccl_tests(path, exponents):
    """What nccl-tests would print of a machine with this curve."""
    lines = [f"#  Rank {rank:2} Group  0 Pid  1 on node device  {rank}" for rank in range(8)]
    for nbytes in (1 << e for e in exponents):
        time_us = CURVE.time_s(nbytes, 8) * 1e6
        rates = f"{nbytes / time_us / 1e3:.2f} {nbytes / time_us / 1e3 * 1.75:.2f}"
        row = f"{time_us:.2f} {rates} 0"
        lines.append(f"{nbytes:12} {nbytes // 4} float sum -1 {row} {row}")
    path.write_text("\n".join(lines))
    return path


def test_prints_the_error_and_writes_the_curve(capsys, tmp_path, output):
    out = tmp_path / "new" / "mine.json"
    assert main(["calibrate", str(output), "--medium", "8 GPUs", "-o", str(out)]) == 0
    heading, row, last = capsys.readouterr().out.splitlines()
    assert heading.split()[:2] == ["medium", "engine"]
    assert row.startswith("8 GPUs") and row.endswith("every other point") and "%" in row
    assert last == f"written: {out}"
    (found,) = load_calibrations(out)
    assert found.curve.pairs[-1].bytes_per_s == pytest.approx(100e9, rel=0.05)


def test_without_out_plans_for_this_machine_find_it(home, output, capsys):
    assert stored() == ()
    assert main(["calibrate", str(output), "--medium", "one"]) == 0
    assert main(["calibrate", str(output), "--medium", "two"]) == 0
    assert "(--topology detect) read it: 1 new or replaced, 1 kept" in capsys.readouterr().out
    assert main(["calibrate", str(output), "--medium", "one"]) == 0
    assert [x.medium for x in stored()] == ["two", "one"]


def test_two_at_once_lose_no_curve(home, output, monkeypatch):
    """Found when each wrote what it had read before, and its own."""
    other = threading.Thread(target=main, args=(["calibrate", str(output), "--medium", "two"],))
    fit = fastreduce.plan.calibrate.calibrate

    def while_another_begins(runs):
        if other.ident is None:
            other.start()
            other.join(1)  # it waits for its turn
        return fit(runs)

    monkeypatch.setattr(fastreduce.plan.calibrate, "calibrate", while_another_begins)
    assert main(["calibrate", str(output), "--medium", "one"]) == 0
    other.join()
    assert {x.medium for x in stored()} == {"one", "two"}


def test_columns_are_straight_whatever_the_names(capsys, tmp_path, output):
    """Found when "fastreduce bidirectional" pushed its figures out of their columns."""
    rows = [
        {"k": k, "nbytes": 1 << e, "time_s": CURVE.time_s(1 << e, k), "contender": who}
        for who, k in (("fastreduce bidirectional", 2), ("NCCL", 8))
        for e in range(10, 31, 2)
    ]
    (tmp_path / "rows.json").write_text(json.dumps({"rows": rows}))
    out = str(tmp_path / "mine.json")
    assert main(["calibrate", str(tmp_path / "rows.json"), "--medium", "m" * 40, "-o", out]) == 0
    heading, *found, _ = capsys.readouterr().out.splitlines()
    end = heading.index("ranks") + len("ranks")
    assert len(found) == 2 and {x[end - 2 : end + 1] for x in found} == {" 2 ", " 8 "}
    assert {x.index("every other") for x in found} == {heading.index("held")}


def test_small_sizes_have_no_rate(tmp_path, capsys, output):
    tiny = nccl_tests(tmp_path / "tiny.txt", range(3, 13))
    assert main(["calibrate", str(tiny), str(output), "-o", str(tmp_path / "mine.json")]) == 0
    _, of_node, of_tiny, why, _ = capsys.readouterr().out.splitlines()
    *who, latency_us, rate = of_tiny.split()[:5]
    assert (who, rate) == (["tiny", "NCCL", "8"], "-")
    assert latency_us in ("19.9", "20.0")  # a fit: its last digit is the CPU's
    assert why.startswith("no rate: tiny, NCCL: from 8 B to 4.096 KB bytes make up less than half")
    assert of_node.split()[4] == "100.00"  # the control


def test_what_has_too_few_sizes_is_named(tmp_path, capsys, output):
    few = nccl_tests(tmp_path / "few.txt", range(20, 25))
    assert main(["calibrate", str(output), str(few), "-o", str(tmp_path / "mine.json")]) == 0
    assert "left out: few, NCCL: fewer than 8 sizes" in capsys.readouterr().out


def test_adds_it_to_a_topology(tmp_path, output):
    out = tmp_path / "new" / "mine.json"
    assert main(["calibrate", str(output), "--topology", "dgx-h100", "-o", str(out)]) == 0
    assert [x.medium for x in load(out).calibrations] == ["8 Hopper on NVSwitch", "node"]


def test_a_topology_needs_a_file_to_be_written_to(capsys, output):
    with pytest.raises(SystemExit):
        main(["calibrate", str(output), "--topology", "dgx-h100"])
    assert "it needs --out" in capsys.readouterr().err


def test_a_wrong_line_is_named_and_nothing_is_written(capsys, tmp_path, output):
    output.write_text(output.read_text().replace(" 0 ", " x ", 8))
    out = tmp_path / "mine.json"
    text = output.read_text().splitlines()
    text[8] = text[8].replace(text[8].split()[5], "0.00")
    output.write_text("\n".join(text).replace("  1024 256 float sum -1", "1024 256 float sum -1"))
    assert main(["calibrate", str(output), "-o", str(out)]) == 1
    assert "node.txt: line 9: " in capsys.readouterr().err
    assert not out.exists()


def test_an_empty_file_is_refused(capsys, tmp_path):
    (tmp_path / "a.txt").write_text("\n")
    assert main(["calibrate", str(tmp_path / "a.txt")]) == 1
    assert "the file is empty" in capsys.readouterr().err


def test_without_scipy_it_says_what_to_install(capsys, monkeypatch, output):
    monkeypatch.setitem(__import__("sys").modules, "scipy.optimize", None)
    assert main(["calibrate", str(output)]) == 1
    assert "pip install scipy" in capsys.readouterr().err
