"""``fastreduce doctor``, and what works with packages missing."""

import json
import sys

import pytest
from subprocesses import run_python

from fastreduce.algorithms import built_in
from fastreduce.cli import main
from fastreduce.doctor import PACKAGES
from fastreduce.plan.machine import device, versions
from fastreduce.plan.table import Table
from fastreduce.plan.table_files import save
from fastreduce.training import data


def lines(text):
    return {line.split()[0]: line for line in text.splitlines()}


def test_doctor_prints_its_report(capsys):
    assert main(["doctor"]) == 0
    assert "torch" in capsys.readouterr().out


def test_tells_whether_auto_is_tuned_and_when(capsys, home):
    assert main(["doctor"]) == 0
    assert "not tuned: `fastreduce tune`" in capsys.readouterr().out
    times = {"cpu": {name: {2: {1024: 1e-6}} for name in built_in()}}
    save(Table(device(), *versions(), "2026-11-20", times))
    assert main(["doctor"]) == 0
    assert "tuned on 2026-11-20" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("ring", "ring, which FASTREDUCE_ALGORITHM names"),
        ("rign", "FASTREDUCE_ALGORITHM is 'rign'; known are auto, "),
        ("auto", "not tuned"),
        ("", "not tuned"),
    ],
)
def test_tells_what_the_environment_names(monkeypatch, capsys, home, named, said):
    monkeypatch.setenv("FASTREDUCE_ALGORITHM", named)
    assert main(["doctor"]) == 0
    assert lines(capsys.readouterr().out)["auto"].split(maxsplit=1)[1].startswith(said)


def test_control_nothing_of_the_packages_is_missing_here(capsys):
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "; pip install" not in out
    assert all(lines(out)[name].split()[1][0].isdigit() for name in PACKAGES)


def test_tells_what_is_missing_and_what_that_costs(monkeypatch, capsys):
    for module, _ in PACKAGES.values():
        monkeypatch.setitem(sys.modules, module, None)
    assert main(["doctor"]) == 0
    said = lines(capsys.readouterr().out)
    for name, (_, cost) in PACKAGES.items():
        assert f"{cost}; pip install {name}" in said[name]


def test_says_that_numpy_is_missing_though_all_else_stops_there():
    code = """
        import sys
        sys.modules["numpy"] = None
        import warnings
        warnings.simplefilter("ignore")  # torch's, which looks for it
        from fastreduce.cli import main
        raise SystemExit(main(["doctor"]))
    """
    done = run_python(code)
    assert (done.returncode, done.stderr) == (0, "")
    assert lines(done.stdout)["numpy"].endswith(f"{PACKAGES['numpy'][1]}; pip install numpy")


class TestData:
    @pytest.fixture(autouse=True)
    def nowhere(self, monkeypatch, tmp_path):
        monkeypatch.delenv("FASTREDUCE_DATA", raising=False)
        monkeypatch.setattr(data, "DEBIAN", tmp_path / "debian")
        monkeypatch.setattr(data.folders, "cache", lambda: tmp_path / "cache")

    @staticmethod
    def said(capsys):
        assert main(["doctor"]) == 0
        return lines(capsys.readouterr().out).get("Fashion-MNIST", "")

    def test_that_is_nowhere_will_be_fetched(self, capsys):
        assert "`fastreduce train` will fetch it" in self.said(capsys)

    def test_of_debian_that_is_not_whole_is_not_there(self, capsys, tmp_path):
        (tmp_path / "debian").mkdir()
        assert "`fastreduce train` will fetch it" in self.said(capsys)

    @pytest.mark.parametrize("folder", ["debian", "cache"])
    def test_that_is_there_is_not_missing(self, capsys, tmp_path, folder):
        (tmp_path / folder).symlink_to(data.SAMPLE)
        assert not self.said(capsys)

    def test_of_the_environment_is_not_missing(self, capsys, monkeypatch):
        monkeypatch.setenv("FASTREDUCE_DATA", str(data.SAMPLE))
        assert not self.said(capsys)

    def test_that_the_environment_names_in_vain_is_said_as_train_says_it(self, capsys, monkeypatch):
        monkeypatch.setenv("FASTREDUCE_DATA", "/no/such")
        assert "$FASTREDUCE_DATA /no/such: found no train-images" in self.said(capsys)


def test_without_pynvml_the_cpu_works():
    code = """
        import sys
        sys.modules["pynvml"] = None
        import json, torch, fastreduce
        from fastreduce.cli import main
        x = [torch.ones(3), torch.ones(3)]
        fastreduce.allreduce(x)
        plan = fastreduce.explain(1000, topology=fastreduce.topology.preset("book-pcie4"))
        try:
            fastreduce.topology.detect()
        except RuntimeError as error:
            print(json.dumps([x[1].tolist(), plan.algorithm, str(error)]))
        raise SystemExit(main(["plan", "--topology", "detect"]))
    """
    done = run_python(code)
    total, algorithm, error = json.loads(done.stdout)
    assert total == [2.0] * 3
    assert algorithm in built_in()
    assert "found no package nvidia-ml-py; pip install nvidia-ml-py" in error
    assert done.returncode == 1
    assert done.stderr == f"fastreduce: error: {error}\n"
