"""``fastreduce plan``: as a person types it."""

import json
import xml.etree.ElementTree as ET

import pytest

from fastreduce.cli import main
from fastreduce.topology import names, preset, save


def test_prints_the_plan(capsys):
    assert main(["plan", "--topology", "dgx1", "--size", "160MB"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("160 MB on each of 8 ranks, dgx1-v100\n")
    assert "choice: multi-ring" in out


def test_help_lists_the_presets(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["plan", "--help"])
    assert ended.value.code == 0
    listed = capsys.readouterr().out.partition("presets:")[2]
    assert listed.replace(",", "").split() == list(names())


def test_without_a_machine_it_is_this_memory(capsys):
    assert main(["plan", "--size", "64MiB", "--ranks", "4"]) == 0
    assert capsys.readouterr().out.startswith("67.11 MB on each of 4 ranks, one CPU\n")


def test_writes_what_is_asked_for(capsys, tmp_path):
    svg, trace, png = (str(tmp_path / x) for x in ("a.svg", "new/a.json", "a.png"))
    files = ["--draw", svg, "--trace", trace, "--timeline", png]
    machine = ["--topology", "book-pcie4", "--size", "1MB", "--algorithm", "by-parameter"]
    assert main(["plan", *machine, *files]) == 0
    assert capsys.readouterr().out.endswith(f"written: {svg} {trace} {png}\n")
    assert ET.parse(svg).getroot().tag.endswith("svg")
    assert json.loads((tmp_path / "new" / "a.json").read_text())["traceEvents"]
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_reads_a_file_and_networks_machines(capsys, tmp_path):
    save(preset("book-pcie4"), tmp_path / "mine.json")
    assert main(["plan", "--topology", str(tmp_path / "mine.json")]) == 0
    assert "4 ranks, book-pcie4" in capsys.readouterr().out
    cluster = ["--topology", "book-pcie4", "--machines", "2", "--gbit", "100"]
    assert main(["plan", *cluster, "--size", "1MB"]) == 0
    assert "8 ranks, 2 x book-pcie4" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--topology", "dgx9"], "dgx9"),
        (["--size", "12XB"], "'12XB' is no size; want bytes, such as 160MB"),
        (["--size", "0"], "want at least 1 rank and 1 byte"),
        (["--topology", "dgx1", "--ranks", "9"], "9 ranks, but topology 'dgx1-v100' has 8 devices"),
        (["--trace", "x.json"], "--trace is about links of a machine: it needs a --topology"),
        (["--machines", "4"], "it needs a --topology"),
        (["--topology", "dgx1", "--nics", "4"], "they need --machines"),
        (["--topology", "dgx1", "--algorithm", "rnig"], "unknown algorithm 'rnig'"),
        (["--topology", "dgx1", "--machines", "0"], "machines"),
        (["--topology", "."], "--topology '.' is a folder, want a preset's name"),
        (["--ranks", "0"], "--ranks: found 0, want a number from 1 to 1024"),
        (["--ranks", "9" * 30], "want a number from 1 to 1024"),
        (["--draw", "a.json"], "--draw: found 'a.json', want a name that ends in .svg"),
        (["--topology", "dgx1", "--trace", "a.png"], "--trace: found 'a.png', want a name that"),
        (["--topology", "dgx1", "--timeline", "a"], "--timeline: found 'a', want a name that"),
        (["--topology", "dgx1", "--machines", "2", "--gbit", "0"], "gbit"),
    ],
)
def test_what_makes_no_sense_is_refused(capsys, monkeypatch, tmp_path, flags, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["plan", *flags])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flag", ["--draw=x.svg", "--trace=x.json", "--timeline=x.png"])
def test_a_file_that_cannot_be_written_is_refused_before_the_plan(capsys, tmp_path, flag):
    flag, _, name = flag.partition("=")
    (tmp_path / name).mkdir()
    (tmp_path / "taken").write_text("")
    for path, words in [(name, "is a folder, want a file"), (f"taken/{name}", "is a file, want")]:
        with pytest.raises(SystemExit) as ended:
            main(["plan", "--topology", "dgx1", flag, str(tmp_path / path)])
        out, err = capsys.readouterr()
        assert (ended.value.code, out) == (2, "")
        assert f"argument {flag}: " in err and words in err


def test_a_machine_that_cannot_be_read_is_one_line(capsys):
    """There is no driver where the tests run; where there is one, a plan comes out."""
    status = main(["plan", "--topology", "detect", "--size", "1MB"])
    captured = capsys.readouterr()
    if status:
        assert captured.err.startswith("fastreduce: error: looked for")
        assert len(captured.err.splitlines()) == 1
    else:
        assert "choice:" in captured.out
