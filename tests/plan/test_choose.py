"""auto by the table, and the commands that make and tell it."""

import warnings
from dataclasses import replace

import pytest
import torch
from subprocesses import output_of
from tables import quick, table, times

import fastreduce
import fastreduce.plan.tune
from fastreduce.cli import main
from fastreduce.plan import build
from fastreduce.plan.choose import choose
from fastreduce.plan.defaults import default
from fastreduce.plan.machine import device
from fastreduce.plan.table_files import load, save, tuned


class TestAuto:
    def test_without_a_table_takes_the_defaults_in_silence(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert tuned() is None
            assert choose("nvlink", 8, 1 << 20) == default("nvlink", 1 << 20)

    def test_takes_the_table_but_the_environment_comes_first(self, monkeypatch):
        save(table(times(sharded=1e-9)))
        assert choose("cpu", 4, 1024) == "sharded" != default("cpu", 1024)
        assert choose("gpu", 4, 1024) == default("gpu", 1024)
        monkeypatch.setenv("FASTREDUCE_ALGORITHM", "tree")
        assert choose("cpu", 4, 1024) == "tree"

    def test_a_refused_table_is_warned_of_once(self, home):
        path = save(table())
        path.write_text("{}")
        with pytest.warns(
            UserWarning, match=r"tuned-.*this is no table.*`fastreduce tune`"
        ) as seen:
            assert [choose("cpu", 4, 1024) for _ in range(3)] == [default("cpu", 1024)] * 3
        assert len(seen) == 1

    def test_a_table_for_other_threads_is_another_machines(self):
        save(table(times(sharded=1e-9), device=device().replace("1 threads", "3 threads")))
        assert choose("cpu", 4, 1024) == "leader"

    def test_a_table_that_is_saved_is_asked_at_the_next_call(self, monkeypatch):
        asked = []
        monkeypatch.setattr(build, "choose", lambda *question: asked.append(question) or "leader")
        for _ in range(2):
            fastreduce.allreduce([torch.ones(300), torch.ones(300)])
        assert asked == [("cpu", 2, 2048)]
        save(table())
        fastreduce.allreduce([torch.ones(300), torch.ones(300)])
        assert asked == [("cpu", 2, 2048)] * 2

    def test_import_reads_nothing_and_the_first_call_does(self):
        ask = "print('fastreduce.plan.tune' in sys.modules)"
        assert output_of(f"import sys, fastreduce; {ask}") == "False"
        call = "fastreduce.allreduce([torch.ones(3), torch.ones(3)])"
        assert output_of(f"import sys, torch, fastreduce; {call}; {ask}") == "True"


class TestCommand:
    @pytest.fixture(autouse=True)
    def quickly(self, monkeypatch):
        monkeypatch.setattr(fastreduce.plan.tune, "measure", lambda: quick(places=["cpu"]))

    def test_prints_the_table_and_where_it_is(self, capsys, home):
        assert main(["tune"]) == 0
        *shown, last = capsys.readouterr().out.splitlines()
        assert "\n".join(shown) == str(tuned())
        assert last == f"written: {next(home.iterdir())}"

    def test_out_keeps_it_elsewhere(self, capsys, tmp_path):
        assert main(["tune", "--out", str(tmp_path / "mine.json")]) == 0
        assert capsys.readouterr().out.endswith(f"written: {tmp_path / 'mine.json'}\n")
        assert load(tmp_path / "mine.json").device == device()
        assert tuned() is None

    def test_doctor_tells_whether_and_when(self, capsys):
        assert main(["doctor"]) == 0
        assert "not tuned: `fastreduce tune`" in capsys.readouterr().out
        save(replace(table(), date="2026-11-20"))
        assert main(["doctor"]) == 0
        assert "tuned on 2026-11-20" in capsys.readouterr().out

    def test_a_place_that_cannot_be_written_is_an_error(self, capsys, tmp_path):
        (tmp_path / "taken").write_text("")
        assert main(["tune", "--out", str(tmp_path / "taken" / "mine.json")]) == 1
        assert "fastreduce: error:" in capsys.readouterr().err
