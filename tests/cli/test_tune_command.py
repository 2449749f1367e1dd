"""``fastreduce tune``: what it writes, and what it refuses before and after measuring."""

import pytest

from fastreduce.algorithms import built_in
from fastreduce.cli import main
from fastreduce.plan import tune
from fastreduce.plan.machine import device, versions
from fastreduce.plan.noise import NoisyMeasurement, TableEntry
from fastreduce.plan.table import Table
from fastreduce.plan.table_files import load, tuned

TIMES = {"cpu": {name: {2: {1024: 1e-6}} for name in built_in()}}
NOISY = {TableEntry("cpu", "ring", 2, 1024): "samples spread by 300% of their median, 1 us"}


@pytest.fixture(autouse=True)
def measured(monkeypatch, home):
    """The tables that were measured; they cost nothing, and are quiet."""
    tables = []

    def measure():
        tables.append(Table(device(), *versions(), "2026-11-21", TIMES))
        return tables[-1]

    monkeypatch.setattr(tune, "measure", measure)
    return tables


@pytest.fixture
def busy(monkeypatch, measured):
    quiet = tune.measure

    def measure():
        raise NoisyMeasurement(quiet(), NOISY)

    monkeypatch.setattr(tune, "measure", measure)


def test_prints_the_table_and_where_it_is(capsys, home):
    assert main(["tune"]) == 0
    *shown, last = capsys.readouterr().out.splitlines()
    assert "\n".join(shown) == str(tuned())
    assert last == f"written: {next(home.iterdir())}"


def test_out_keeps_it_elsewhere(capsys, tmp_path):
    path = tmp_path / "new" / "mine.json"
    assert main(["tune", "--out", str(path)]) == 0
    assert capsys.readouterr().out.endswith(f"written: {path}\n")
    assert load(path).device == device()
    assert tuned() is None


@pytest.mark.usefixtures("busy")
class TestNoise:
    def test_is_shown_and_not_kept(self, capsys, home):
        assert main(["tune"]) == 1
        out, err = capsys.readouterr()
        assert out.startswith(device()) and "written" not in out
        assert err.startswith("fastreduce: error: 1 of the measured times cannot be trusted")
        assert "cpu, ring, k = 2, 1024 bytes: samples spread by 300%" in err
        assert err.endswith("close other programs and tune again; --force keeps them\n")
        assert len(err.splitlines()) == 1
        assert not home.exists() and tuned() is None

    def test_is_kept_by_force_with_a_warning(self, capsys):
        assert main(["tune", "--force"]) == 0
        assert "fastreduce: warning: 1 of the measured" in capsys.readouterr().err
        assert tuned() is not None


class TestWhere:
    """Found out before anything is measured."""

    @pytest.mark.parametrize(
        ("out", "words"),
        [
            ("taken/mine.json", "taken is a file, want a folder to write mine.json into"),
            ("folder.json", "folder.json is a folder, want a file"),
            ("mine.txt", "want a name that ends in .json"),
            ("x" * 300 + ".json", "cannot be written: File name too long"),
        ],
    )
    def test_a_file_that_cannot_be_written(self, capsys, tmp_path, measured, out, words):
        (tmp_path / "taken").write_text("")
        (tmp_path / "folder.json").mkdir()
        with pytest.raises(SystemExit) as ended:
            main(["tune", "--out", str(tmp_path / out)])
        assert ended.value.code == 2
        assert words in capsys.readouterr().err
        assert measured == []

    def test_the_users_own_folder(self, capsys, tmp_path, measured, monkeypatch):
        (tmp_path / "taken").write_text("")
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "taken"))
        assert main(["tune"]) == 1
        err = capsys.readouterr().err
        assert err.startswith(f"fastreduce: error: {tmp_path / 'taken'} is a file, want a folder")
        assert "name another file with --out" in err
        assert measured == []

    def test_control_a_file_that_can(self, tmp_path, measured):
        assert main(["tune", "--out", str(tmp_path / "mine.json")]) == 0
        assert len(measured) == 1
