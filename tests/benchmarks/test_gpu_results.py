"""The tables of docs/cuda.md are near what benchmarks/results/gpu holds."""

import json
from itertools import product

import pytest
from test_results import RESULTS, rows_of

PAGE = "docs/cuda.md"
FOUND = json.loads((RESULTS / "gpu" / "report.json").read_text())["results"]
# A report that is taken anew may differ by so much before the page has to follow. Calls from Python
# depend on a busy CPU.
NEAR = {"captured": 0.12, "called": 0.5}
SIZES = {"1 KiB": 1 << 10, "64 KiB": 1 << 16, "4 MiB": 1 << 22, "256 MiB": 1 << 28}


def speeds(step, how):
    """By what is reduced, number of ranks and contender."""
    return {
        (row["model"] or row["size_bytes"], row["k"], row["algorithm"]): row[how]
        for row in FOUND[step]["rows"]
        if row["type"] == "float32"
    }


def wrong_ratios(cells, step, case, others):
    """Cells like "1.4 (2.7)": the time of the others over ours, in a graph and called."""
    wrong = []
    for cell, other in zip(cells, others, strict=True):
        shown = dict(zip(NEAR, map(float, cell.rstrip(")").split(" (")), strict=True))
        for how, value in shown.items():
            of = speeds(step, how)
            ratio = of[(*case, other)]["time_s"] / of[(*case, "auto")]["time_s"]
            if value != pytest.approx(ratio, rel=NEAR[how]):
                wrong.append((other, how, value, ratio))
    return wrong


def microseconds(cell):
    value, unit = cell.split()
    assert unit == "us"
    return float(value)


def test_times_and_shares():
    table, of = rows_of(PAGE, "| bytes per rank | 2 ranks |"), speeds("kernels", "captured")
    sheet_gb_per_s = 3350
    assert list(table) == list(SIZES)
    for (name, cells), (i, k) in product(table.items(), enumerate((2, 8))):
        time, of_limit, of_sheet = cells[3 * i : 3 * i + 3]
        found = of[SIZES[name], k, "auto"]
        assert microseconds(time) * 1e-6 == pytest.approx(found["time_s"], rel=NEAR["captured"])
        if found["of_limit"] is None:
            assert (of_limit, of_sheet) == ("-", "-"), name
        else:
            assert float(of_limit) == pytest.approx(found["of_limit"], abs=0.03)
            share = found["moved_gb_per_s"] / sheet_gb_per_s
            assert float(of_sheet) == pytest.approx(share, abs=0.03)


def test_others():
    table = rows_of(PAGE, "| bytes per rank, ranks |")
    assert len(table) == 6
    for name, cells in table.items():
        size, k = name.split(", ")
        others = ("loop", "compile", "elementwise", "kernel")
        assert wrong_ratios(cells, "peers", (SIZES[size], int(k)), others) == [], name


def test_gradients_of_models():
    table, of = rows_of(PAGE, "| gradients, ranks |"), speeds("lists", "captured")
    assert len(table) == 4
    for name, (ours, *cells) in table.items():
        model, k = name.split(", ")
        found_s = of[model, int(k), "auto"]["time_s"]
        assert microseconds(ours) * 1e-6 == pytest.approx(found_s, rel=NEAR["captured"])
        assert wrong_ratios(cells, "lists", (model, int(k)), ("loop", "foreach")) == [], name


def test_control_a_wrong_ratio_is_noticed():
    assert wrong_ratios(["1.4 (2.7)"], "peers", (1 << 16, 2), ["loop"]) == []
    assert len(wrong_ratios(["1.8 (5.7)"], "peers", (1 << 16, 2), ["loop"])) == 2


def test_epochs_of_lenet():
    (graph_s, losses), (eager_s, eager_losses) = (
        ([x["epoch_s"] for x in found[2:]], [x["loss"] for x in found[1:]])
        for found in (FOUND["train"], FOUND["train_eager"])
    )
    assert losses == eager_losses
    assert sorted(graph_s)[len(graph_s) // 2] == pytest.approx(0.25, rel=0.2)
    assert sorted(eager_s)[len(eager_s) // 2] == pytest.approx(0.88, rel=0.2)
