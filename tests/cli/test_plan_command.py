"""``fastreduce plan``: as a person types it."""

import json
import xml.etree.ElementTree as ET
from dataclasses import replace

import networkx as nx
import pytest

from fastreduce import explain
from fastreduce.algorithms import leader
from fastreduce.cli import main
from fastreduce.topology import Topology, names, preset, save
from fastreduce.topology.calibration import Calibration, Curve, Error, Pair
from fastreduce.topology.links import connect


def test_prints_the_plan(capsys):
    assert main(["plan", "--topology", "dgx1", "--size", "160MB"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("160 MB on each of 8 ranks, dgx1-v100\n")
    assert "choice: multi-ring" in out


def test_help_lists_the_presets(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["plan", "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert out.partition("presets:")[2].replace(",", "").split() == list(names())
    assert "models: gpt2, gpt2-xl, llama-1b" in out


def test_without_a_machine_it_is_this_memory(capsys):
    assert main(["plan", "--size", "64MiB", "--ranks", "4"]) == 0
    assert capsys.readouterr().out.startswith("67.11 MB on each of 4 ranks, one CPU\n")


def test_writes_what_is_asked_for(capsys, tmp_path):
    svg, trace, png = (str(tmp_path / x) for x in ("a.svg", "new/a.json", "a.png"))
    busy, plot, html = (str(tmp_path / x) for x in ("busy.svg", "plot.png", "report.html"))
    files = ["--draw", svg, "--trace", trace, "--timeline", png]
    files += ["--busy", busy, "--sizes", "1MB:2MB", "--plot", plot, "--html", html]
    machine = ["--topology", "book-pcie4", "--size", "1MB", "--algorithm", "by-parameter"]
    assert main(["plan", *machine, *files]) == 0
    out = capsys.readouterr().out
    assert out.endswith(f"written: {svg} {trace} {png} {busy} {plot} {html}\n")
    assert "1 MB to 2 MB on each of 4 ranks, book-pcie4" in out
    assert ET.parse(svg).getroot().tag.endswith("svg")
    assert json.loads((tmp_path / "new" / "a.json").read_text())["traceEvents"]
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert "share of the time in use" in (tmp_path / "busy.svg").read_text()
    page = (tmp_path / "report.html").read_text()
    for heading in ("Algorithms", "Time over size", "How busy the links are", "by-parameter"):
        assert heading in page


def test_with_sizes_alone_it_prints_their_table_alone(capsys, tmp_path):
    plot, html = (str(tmp_path / x) for x in ("plot.svg", "page.html"))
    line = ["plan", "--topology", "book-pcie4", "--sizes", "1MB:2MB"]
    title = "1 MB to 2 MB on each of 4 ranks, book-pcie4: predicted\n"
    assert main([*line, "--plot", plot]) == 0
    out = capsys.readouterr().out
    assert out.startswith(title) and "choice:" not in out and out.endswith(f"written: {plot}\n")
    assert main([*line, "--html", html]) == 0  # a page is of one size
    out = capsys.readouterr().out
    assert out.startswith("160 MB on each of 4 ranks") and title in out


def test_a_saved_program_is_planned_for_all_sizes(capsys, tmp_path):
    leader(4).save(tmp_path / "mine.json")
    mine = f"file:{tmp_path}/mine.json"
    line = ["--topology", "book-pcie4", "--size", "1MB", "--sizes", "1MB:2MB", "--algorithm", mine]
    assert main(["plan", *line]) == 0
    one, many = capsys.readouterr().out.split("1 MB to 2 MB")
    assert mine in one and mine in many


def test_the_timeline_is_of_the_links_that_the_plan_has(tmp_path):
    """Of a machine on which ring was measured to be half as fast as its links would be."""
    curve = Curve(10e-6, 0.0, (Pair(0.0, 8e9),))
    ours = Calibration(
        "book", "fastreduce ring", (4, 4), (1, 1 << 40), curve, Error(0.1, 0.2, 9, "a"), ("b",)
    )
    machine = replace(preset("book-pcie4"), calibrations=(ours,))
    save(machine, tmp_path / "mine.json")
    line = ["--topology", str(tmp_path / "mine.json"), "--trace", str(tmp_path / "trace.json")]
    assert main(["plan", *line, "--algorithm", "sharded"]) == 0
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    end_s = max(x["ts"] + x["dur"] for x in events if "dur" in x) / 1e6
    planned = explain("160MB", topology=machine).candidate("sharded").prediction.time_s
    assert end_s == pytest.approx(planned, rel=0.01) and planned > 0.025


def test_plans_a_training_step(capsys, tmp_path):
    (tmp_path / "shapes.json").write_text("[[1000, 1000], [1000]]")
    plot, html = (str(tmp_path / x) for x in ("step.svg", "step.html"))
    step = ["--model", str(tmp_path / "shapes.json"), "--step", "10ms", "--dtype", "bf16"]
    machine = ["--topology", "book-pcie4", "--machines", "2", "--gbit", "100", "--nics", "1"]
    assert main(["plan", *step, *machine, "--plot", plot, "--html", html]) == 0
    out = capsys.readouterr().out
    assert "1,001,000 parameters: 2.002 MB of gradients (bfloat16)" in out
    assert [line.split()[0] for line in out.splitlines()[3:7]] == ["1", "2", "4", "8"]
    assert out.endswith(f"written: {plot} {html}\n")
    assert "efficiency" in (tmp_path / "step.html").read_text()


def test_links_are_killed_and_slowed(capsys):
    less = ["--kill", "gpu0-gpu1", "--slow", "gpu2 - gpu3=0.5", "--slow", "cpu0-cpu1=0.1"]
    assert main(["plan", "--topology", "dgx1", "--size", "1MB", *less]) == 0
    out = capsys.readouterr().out
    assert "dgx1-v100 with 0.5 x gpu2 - gpu3 with 0.1 x cpu0 - cpu1 without gpu0 - gpu1" in out


def test_a_links_end_may_have_dashes(capsys, tmp_path):
    graph = nx.relabel_nodes(preset("book-pcie4").graph, {"gpu0": "gpu-a-0"})
    save(Topology("mine", "a test", graph), tmp_path / "mine.json")
    less = ["--slow", "gpu-a-0-pcie0=0.5"]
    assert main(["plan", "--topology", str(tmp_path / "mine.json"), "--size", "1MB", *less]) == 0
    assert "mine with 0.5 x gpu-a-0 - pcie0" in capsys.readouterr().out


def test_reads_a_file_and_networks_machines(capsys, tmp_path):
    save(preset("book-pcie4"), tmp_path / "mine.json")
    assert main(["plan", "--topology", str(tmp_path / "mine.json")]) == 0
    assert "4 ranks, book-pcie4" in capsys.readouterr().out
    cluster = ["--topology", "book-pcie4", "--machines", "2", "--gbit", "100"]
    assert main(["plan", *cluster, "--size", "1MB"]) == 0
    assert "8 ranks, 2 x book-pcie4" in capsys.readouterr().out


DGX1 = ("--topology", "dgx1")
STEP = ("--model", "gpt2", "--step", "1s")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--topology", "dgx9"], "dgx9"),
        (["--size", "12XB"], "'12XB' is no size; want bytes, such as 160MB"),
        (["--size", "0.5B"], "want a whole number of bytes, such as 1"),
        (["--size", "0"], "want at least 1 rank and 1 byte"),
        (["--topology", "dgx1", "--ranks", "9"], "9 ranks, but topology 'dgx1-v100' has 8 devices"),
        (["--trace", "x.json"], "--trace is about links of a machine: it needs a --topology"),
        (["--machines", "4"], "it needs a --topology"),
        (["--busy", "x.svg"], "--busy is about links of a machine: it needs a --topology"),
        (["--kill", "gpu0-gpu1"], "--kill is about links of a machine: it needs a --topology"),
        ([*DGX1, "--kill", "gpu0-gpu9"], "has no node 'gpu9'; it has gpu0, gpu1"),
        ([*DGX1, "--kill", "gup0-gpu1"], "did you mean 'gpu0'?"),
        ([*DGX1, "--kill", "gpu0-gpu4"], "no link between 'gpu0' and 'gpu4'; 'gpu0' is linked"),
        ([*DGX1, "--kill", "gpu0"], "--kill gpu0: want two nodes with a dash"),
        ([*DGX1, "--kill", ""], "--kill '': want two nodes with a dash"),
        ([*DGX1, "--kill", "-"], "--kill -: want two nodes with a dash"),
        (["--topology", "book-pcie4", "--kill", "gpu0-pcie0"], "no links lead from 'gpu0'"),
        ([*DGX1, "--slow", "gpu0-gpu1"], "--slow gpu0-gpu1: want a link and a share"),
        ([*DGX1, "--slow", "gpu0-gpu1=0"], "above 0 and at most 1, such as gpu0-gpu1=0.5"),
        ([*DGX1, "--slow", "gpu0-gpu1=2"], "above 0 and at most 1"),
        ([*DGX1, "--slow", "gpu0-gpu1=nan"], "above 0 and at most 1"),
        ([*DGX1, "--slow", "gpu0-gpu1=half"], "above 0 and at most 1"),
        (["--sizes", "1MB"], "'1MB' is no range of sizes; want two with a colon"),
        (["--sizes", "2MB:1MB"], "want a first size of at least 1 byte, and a last one no less"),
        (["--plot", "x.png"], "it needs --sizes or --model"),
        (["--step", "350ms"], "--step is about a training step: it needs a --model"),
        (["--dtype", "bf16"], "--dtype is about a training step"),
        (["--model", "gpt2"], "--model needs a --step"),
        ([*STEP, "--size", "1MB"], "--size is about one allreduce, --model about a training step"),
        ([*STEP, "--busy", "x.svg"], "--busy is about one allreduce"),
        ([*STEP, "--step", "350"], "'350' is no duration"),
        ([*STEP, "--step", "0s"], "want seconds above zero"),
        ([*STEP, "--model", "gpt-2"], "did you mean 'gpt2'?"),
        ([*STEP, "--model", "."], "'.' is a folder, want one file"),
        ([*STEP, "--dtype", "bf61"], "did you mean 'bf16'?"),
        ([*STEP, "--machines", "0"], "--machines: found '0', want a number from 1 to"),
        ([*STEP, "--machines", "two"], "--machines: found 'two', want a number from 1 to"),
        ([*STEP, "--machines", "1", "--gbit", "9"], "they need --machines, 2 or more"),
        ([*STEP, "--gbit", "0"], "--gbit: found '0', want Gbit/s, 0.001 to"),
        ([*STEP, "--gbit", "fast"], "--gbit: found 'fast', want Gbit/s"),
        ([*DGX1, "--machines", "2", "--gbit", "inf"], "--gbit: found 'inf', want Gbit/s"),
        ([*STEP, "--model", ""], "unknown model ''"),
        ([*STEP, "--topology", "dgx-h1000"], "did you mean 'dgx-h100'?"),
        ([*STEP, "--kill", "gpu0-gpu1"], "no link between 'gpu0' and 'gpu1'"),
        (["--topology", "dgx1", "--nics", "4"], "they need --machines"),
        (["--topology", "dgx1", "--algorithm", "rnig"], "unknown algorithm 'rnig'"),
        (["--topology", "dgx1", "--machines", "0"], "machines"),
        (["--topology", "."], "topology '.' is a folder, want a preset's name"),
        (["--topology", ""], "topology is '', want a preset's name"),
        (["--size", ""], "'' is no size; want bytes"),
        (["--algorithm", "file:"], "algorithm 'file:' names no file, want such as"),
        (["--algorithm", "file:no.json"], "--algorithm file:no.json: no such file"),
        ([*DGX1, "--machines", "2", "--nics", ""], "--nics: found '', want a number"),
        ([*DGX1, "--machines", "2", "--nics", "0"], "--nics: found '0', want a number from 1 to"),
        ([*DGX1, "--machines", "2", "--nics", "9" * 9], "want a number from 1 to 1024"),
        (["--ranks", "0"], "--ranks: found '0', want a number from 1 to 1024"),
        (["--ranks", "9" * 30], "want a number from 1 to 1024"),
        (
            [*DGX1, "--draw", "a.svg", "--busy", "./a.svg"],
            "--draw and --busy would both write a.svg",
        ),
        (["--draw", "a.json"], "--draw: found 'a.json', want a name that ends in .svg"),
        (["--topology", "dgx1", "--trace", "a.png"], "--trace: found 'a.png', want a name that"),
        (["--topology", "dgx1", "--timeline", "a"], "--timeline: found 'a', want a name that"),
        (["--topology", "dgx1", "--machines", "2", "--gbit", "0"], "gbit"),
        (["--topology", "dgx1", "--machines", "129"], "which makes 1,032 GPUs, want at most 1,024"),
    ],
)
def test_what_makes_no_sense_is_refused(capsys, monkeypatch, tmp_path, flags, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["plan", *flags])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "flag", ["--draw=x.svg", "--trace=x.json", "--timeline=x.png", "--html=x.html"]
)
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


@pytest.mark.parametrize(
    ("gpus", "medium", "flags", "words"),
    [
        (513, "pcie", ["--nics", "4"], "they need --machines, 2 or more"),
        (2, "nvlink", [], "attached to, or a plan of one machine (--machines 1)"),
    ],
    ids=["so many GPUs that it is one", "no place for a card"],
)
def test_machines_that_no_network_joins(capsys, tmp_path, gpus, medium, flags, words):
    graph = nx.DiGraph()
    graph.add_node("switch", kind="switch")
    for i in range(gpus):
        graph.add_node(f"gpu{i}", kind="gpu", memory_bytes_per_s=1e12)
        connect(graph, f"gpu{i}", "switch", medium, 1e9)
    save(Topology("mine", "a test", graph), tmp_path / "mine.json")
    with pytest.raises(SystemExit) as ended:
        main(["plan", "--topology", str(tmp_path / "mine.json"), *STEP, *flags])
    assert ended.value.code == 2 and words in capsys.readouterr().err


BAD_MACHINES = {
    "a rate of zero": (("links", 0, "bytes_per_s", 0), "bytes_per_s is 0, want bytes per second"),
    "no way": (("links", 0, "dst", "gpu1"), "no links lead from"),
    "an unknown kind": (("nodes", 0, "kind", "gup"), "kind"),
    "an unknown end": (("links", 0, "dst", "gpu77"), "gpu77"),
}


@pytest.mark.parametrize("what", BAD_MACHINES)
@pytest.mark.parametrize("flags", [[], STEP], ids=["size", "step"])
def test_a_machine_that_makes_no_sense_is_refused(capsys, tmp_path, what, flags):
    (part, number, key, value), words = BAD_MACHINES[what]
    path = tmp_path / "mine.json"
    save(preset("book-pcie4"), path)
    content = json.loads(path.read_text())
    content[part][number][key] = value
    path.write_text(json.dumps(content))
    with pytest.raises(SystemExit) as ended:
        main(["plan", "--topology", str(path), *flags])
    err = capsys.readouterr().err
    assert ended.value.code == 2 and words in err and "mine.json" in err


@pytest.mark.parametrize("name", ["text.txt", "text.safetensors", "text.json", "empty.pt"])
def test_a_file_that_is_no_model_is_refused(capsys, tmp_path, name):
    (tmp_path / name).write_text("" if name == "empty.pt" else "these are no tensors")
    with pytest.raises(SystemExit) as ended:
        main(["plan", "--step", "1s", "--model", str(tmp_path / name)])
    assert ended.value.code == 2 and f"{name} " in capsys.readouterr().err


def test_a_machine_that_cannot_be_read_is_one_line(capsys):
    """There is no driver where the tests run; where there is one, a plan comes out."""
    status = main(["plan", "--topology", "detect", "--size", "1MB"])
    captured = capsys.readouterr()
    if status:
        assert captured.err.startswith("fastreduce: error: looked for")
        assert len(captured.err.splitlines()) == 1
    else:
        assert "choice:" in captured.out
