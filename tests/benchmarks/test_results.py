"""The tables of the docs are those of benchmarks/results."""

import json
import statistics
from pathlib import Path

import pytest

from fastreduce.units import busbw

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"


def rows_of(page, header):
    """The cells of the table whose first line begins so, without its first column."""
    lines = (ROOT / page).read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(header))
    cells = {}
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        name, *rest = (cell.strip() for cell in line.strip("|").split("|"))
        cells[name] = rest
    return cells


def short(time_s):
    value, unit = (time_s * 1e6, "us") if time_s < 1e-3 else (time_s * 1e3, "ms")
    return f"{value:.1f} {unit}" if value < 100 else f"{value:.0f} {unit}"


@pytest.mark.parametrize("page", ["README.md", "docs/benchmarks.md"])
def test_allreduce(page):
    rows = json.loads((RESULTS / "allreduce.json").read_text())["rows"]
    found = {
        (row["count_elems"], row["k"]): row["called"]
        for row in rows
        if row["type"] == "float32" and row["algorithm"] == "auto" and row["tensors"] == 1
    }
    for name, cells in rows_of(page, "| elements per rank |").items():
        count = int(name.replace(",", "").replace("M", "")) * (2**20 if "M" in name else 1)
        called = [found[count, k] for k in (2, 4, 8)]
        wanted = [(short(x["time_s"]), f"{x['over_loop']:.1f}") for x in called]
        assert cells == [cell for pair in wanted for cell in pair], name


def test_training_steps():
    rows = json.loads((RESULTS / "data_parallel.json").read_text())["rows"]
    found = {(row["model"], row["contender"]): row for row in rows}
    names = {
        "LeNet": "LeNet (129k), 256",
        "MLP": "MLP (5.0M), 256",
        "CNN": "CNN (107k), 64",
        "ResNet-18": "ResNet-18 (11.2M), 16",
        "transformer": "transformer (10.0M), 8",
    }
    columns = (
        *("DataParallel, 1", "DataParallel, 2", "ten lines, 2", "sync_batchnorm, 2"),
        *("DataParallel, 4", "ten lines, 4", "reproducible=8", "DDP, Gloo, 2 processes"),
    )
    table = rows_of("docs/benchmarks.md", "| model (parameters), batch |")
    assert list(table) == list(names.values())
    for model, name in names.items():
        ratios = [found.get((model, column)) for column in columns]
        wanted = [f"{row['over_bare']:.2f}" if row else "-" for row in ratios]
        assert table[name] == [short(found[model, "bare"]["step_s"]), *wanted], name


def test_accuracies_of_lenet():
    text = " ".join((ROOT / "docs" / "benchmarks.md").read_text().split())
    files = [RESULTS / "fashion_mnist" / f"lenet-seed{seed}.jsonl" for seed in range(3)]
    runs = [[json.loads(line) for line in path.read_text().splitlines()] for path in files]
    one, two, three = (f"{run[10]['test_accuracy']:.3f}" for run in runs)
    assert f"test accuracy {one}, {two} and {three} for seeds 0, 1 and 2" in text
    seconds = statistics.median(epoch["epoch_s"] for epoch in runs[0][1:])
    assert f"seed 0 took {seconds:.0f} s" in text


def test_lenet_reaches_with_each_kind_of_store_what_it_reaches_without():
    def reached(name):
        lines = (RESULTS / "fashion_mnist" / f"lenet-{name}.jsonl").read_text().splitlines()
        settings = json.loads(lines[0])["config"]
        assert (settings["epochs"], settings["seed"]) == (10, 0)
        return settings["kvstore"] if name != "seed0" else None, json.loads(lines[10])

    found = {name: reached(name) for name in ("local", "dist_sync", "dist_async", "seed0")}
    assert all(kind == name for name, (kind, _) in found.items() if name != "seed0")
    accuracies = [epoch["test_accuracy"] for _, epoch in found.values()]
    assert max(accuracies) - min(accuracies) <= 0.02
    text = " ".join((ROOT / "docs" / "kvstore.md").read_text().split())
    a, b, c, without = (f"{x:.3f}" for x in accuracies)
    assert f"{a} with `local`, {b} with `dist_sync` and {c} with `dist_async`" in text
    assert f"without a store {without}, which `local` equals to the bit" in text
    assert found["local"][1]["loss"] == found["seed0"][1]["loss"]


def test_accuracy_of_resnet18():
    lines = (RESULTS / "fashion_mnist" / "resnet18-seed0.jsonl").read_text().splitlines()
    config, epoch = json.loads(lines[0])["config"], json.loads(lines[1])
    assert (config["batch_size"], config["lr"]) == (256, 0.1)
    text = " ".join((ROOT / "docs" / "benchmarks.md").read_text().split())
    minutes = epoch["epoch_s"] / 60
    assert f"reached {epoch['test_accuracy']:.3f} in {minutes:.0f} minutes" in text


def test_steps_of_ddp():
    wanted = {}
    for row in json.loads((RESULTS / "ddp_step.json").read_text())["rows"]:
        wanted.setdefault(row["model"], {})[row["contender"]] = row
    assert rows_of("docs/distributed.md", "| network | step, fastreduce |") == {
        model: [
            *(f"{by[name]['step_s'] * 1e3:.1f} ms" for name in ("fastreduce", "gloo", "no sums")),
            *(f"{by[name]['sync_s'] * 1e3:.1f} ms" for name in ("fastreduce", "gloo")),
        ]
        for model, by in wanted.items()
    }


def test_planner():
    rows = json.loads((RESULTS / "planner.json").read_text())["rows"]

    def shown(time_s):
        if time_s is None:
            return "-"
        return f"{time_s:.1f} s" if time_s >= 1 else f"{time_s * 1e3:.0f} ms"

    assert rows_of("docs/benchmarks.md", "| what | wall clock |") == {
        row["what"]: [shown(row[key]) for key in ("wall_s", "processor_s", "goal_s")]
        for row in rows
    }


class TestOneH100:
    """The tables of docs/cuda.md are those of the report of a GPU."""

    report = json.loads((RESULTS / "gpu" / "report.json").read_text())["results"]
    sheet_bytes_per_s = 3.35e12

    def rows(self, part, *key):
        return {tuple(row[x] for x in key): row for row in self.report[part]["rows"]}

    @staticmethod
    def shown(time_s):
        return f"{time_s * 1e6:.1f} us" if time_s < 1e-5 else f"{time_s * 1e6:.0f} us"

    @staticmethod
    def over(row, ours):
        captured, called = (row[x]["time_s"] / ours[x]["time_s"] for x in ("captured", "called"))
        return f"{captured:.2f} ({called:.2f})"

    def test_allreduce(self):
        found = self.rows("kernels", "type", "tensors", "algorithm", "size_bytes", "k")
        table = rows_of("docs/cuda.md", "| bytes per rank | 2 ranks | of limit |")
        assert len(table) == 4
        for name, cells in table.items():
            wanted = []
            for k in (2, 8):
                row = found["float32", 1, "auto", size_of(name), k]["captured"]
                of_sheet = row["moved_gb_per_s"] * 1e9 / self.sheet_bytes_per_s
                limits = [row["of_limit"], of_sheet] if row["of_limit"] else []
                wanted += [self.shown(row["time_s"]), *(f"{x:.2f}" for x in limits)]
                wanted += ["-"] * (2 - len(limits))
            assert cells == wanted, name

    def test_others(self):
        found = self.rows("peers", "algorithm", "size_bytes", "k")
        table = rows_of("docs/cuda.md", "| bytes per rank, ranks | the loop |")
        assert len(table) == len({case[1:] for case in found})
        for name, cells in table.items():
            size, k = name.split(", ")
            case = size_of(size), int(k)
            ours = found[("auto", *case)]
            others = [found[(x, *case)] for x in ("loop", "compile", "elementwise", "kernel")]
            assert cells == [self.over(row, ours) for row in others], name

    def test_gradients(self):
        found = self.rows("lists", "algorithm", "model", "k")
        table = rows_of("docs/cuda.md", "| gradients, ranks | ours |")
        assert len(table) == 8
        for name, cells in table.items():
            model, k = name.split(", ")
            ours, loop, foreach = (found[x, model, int(k)] for x in ("auto", "loop", "foreach"))
            ratios = [self.over(row, ours) for row in (loop, foreach)]
            assert cells == [self.shown(ours["captured"]["time_s"]), *ratios], name

    @pytest.mark.parametrize("page", ["cuda", "training", "fashion_mnist"])
    def test_epochs(self, page):
        text = " ".join((ROOT / "docs" / f"{page}.md").read_text().split())
        for run in ("train", "train_eager"):
            epochs = self.report[run][2:]
            assert f"{statistics.median(x['epoch_s'] for x in epochs):.2f} s" in text, run

    def test_a_graph_has_the_losses_of_the_run_without(self):
        graph, eager = (
            [x["loss"] for x in self.report[run][1:]] for run in ("train", "train_eager")
        )
        assert graph == eager


def test_predictions_for_eight_gpus():
    predicted = json.loads((RESULTS / "predicted.json").read_text())
    rows = {row["size_bytes"]: row for row in predicted["eight_gpus"]["H100"]}

    def shown(row, how):
        if row["size_bytes"] < 1 << 30:
            return short(row[how])
        return f"{busbw(row['size_bytes'], row[how], 8) / 1e9:.0f} GB/s busbw"

    table = rows_of("docs/planning.md", "| bytes on each of 8 H100 |")
    assert len(table) == 3
    for name, cells in table.items():
        count, unit = name.split()
        row = rows[int(count) * {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[unit]]
        others = [
            f"{x['what']} {x['figure']}" + (f" ({x['gpus']})" if x["gpus"] != "8 H100" else "")
            for x in predicted["public"]
            if x["size_bytes"] == row["size_bytes"]
        ]
        assert cells == [shown(row, "captured_s"), shown(row, "called_s"), "; ".join(others)]
    readme = " ".join((ROOT / "README.md").read_text().split())
    [small, *_], [large, *_] = table["1 MiB"], table["1 GiB"]
    assert f"1 MiB on each takes {small} in a CUDA graph, where NCCL takes 25 us" in readme
    assert f"1 GiB reaches {large}, where NCCL's ring has 370 and NCCL with NVLS 480" in readme


SIZES = {"KiB": 1 << 10, "MiB": 1 << 20}


def size_of(name):
    count, unit = name.split()
    return int(count) * SIZES[unit]


def all_reduces(*files):
    rows = [row for name in files for row in json.loads((RESULTS / name).read_text())["rows"]]
    mine = [row for row in rows if row["collective"] == "all_reduce"]
    return {(row["k"], row["contender"], row["nbytes"]): row for row in mine}


def test_processes():
    found = all_reduces("processes.json", "processes_many.json")
    table = rows_of("docs/distributed.md", "| bytes of each rank | 2 processes |")
    assert len(table) == 5
    for name, cells in table.items():
        wanted = []
        for k in (2, 4, 8):
            staged, in_place = (
                found[k, contender, size_of(name)]
                for contender in ("fastreduce", "fastreduce in place")
            )
            ratios = f"{staged['over_gloo']:.1f}, in place {in_place['over_gloo']:.1f}"
            wanted += [short(staged["time_s"]), ratios]
        assert cells == wanted, name


def test_machines():
    found = all_reduces("machines.json")
    table = rows_of("docs/distributed.md", "| bytes of each rank, machines |")
    assert len(table) == 5
    for name, cells in table.items():
        rows = [found[k, "fastreduce", size_of(name)] for k in (4, 6)]
        wanted = [(short(row["time_s"]), f"{row['over_gloo']:.2f}") for row in rows]
        assert cells == [cell for pair in wanted for cell in pair], name
