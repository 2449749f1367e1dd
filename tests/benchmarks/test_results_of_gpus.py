"""The tables of the docs are those of benchmarks/results: one H200, what eight H100 should take."""

import statistics

import pytest
from kept_results import kept, rows_of, short, size_of, text_of

from fastreduce.units import busbw


class TestOneH200:
    """The tables of docs/cuda.md are those of the report of a GPU."""

    report = kept("h200/report.json")["results"]
    sheet_bytes_per_s = 4.8e12

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
        assert len(table) == 5
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
        text = text_of(f"docs/{page}.md")
        for run in ("train", "train_eager"):
            epochs = self.report[run][2:]
            assert f"{statistics.median(x['epoch_s'] for x in epochs):.2f} s" in text, run

    def test_a_graph_has_the_losses_of_the_run_without(self):
        graph, eager = (
            [x["loss"] for x in self.report[run][1:]] for run in ("train", "train_eager")
        )
        assert graph == eager


def test_predictions_for_eight_gpus():
    predicted = kept("predicted.json")
    rows = {row["size_bytes"]: row for row in predicted["eight_gpus"]["H100"]}

    def shown(row, how):
        if row["size_bytes"] < 1 << 30:
            return short(row[how])
        return f"{busbw(row['size_bytes'], row[how], 8) / 1e9:.0f} GB/s busbw"

    table = rows_of("docs/planning.md", "| bytes on each of 8 H100 |")
    assert len(table) == 3
    for name, cells in table.items():
        row = rows[size_of(name)]
        others = [
            f"{x['what']} {x['figure']}" + (f" ({x['gpus']})" if x["gpus"] != "8 H100" else "")
            for x in predicted["public"]
            if x["size_bytes"] == row["size_bytes"]
        ]
        assert cells == [shown(row, "captured_s"), shown(row, "called_s"), "; ".join(others)]
    readme = text_of("README.md")
    [small, *_], [large, *_] = table["1 MiB"], table["1 GiB"]
    assert f"1 MiB on each takes {small} in a CUDA graph, where NCCL takes 25 us" in readme
    assert f"1 GiB reaches {large}, where NCCL's ring has 370 and NCCL with NVLS 480" in readme
