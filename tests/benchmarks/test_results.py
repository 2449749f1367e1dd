"""The tables of the docs are those of benchmarks/results: what was measured on CPUs."""

import statistics

import pytest
from kept_results import kept, rows_of, short, size_of, text_of


@pytest.mark.parametrize("page", ["README.md", "docs/benchmarks.md"])
def test_allreduce(page):
    rows = kept("allreduce.json")["rows"]
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
    rows = kept("data_parallel.json")["rows"]
    found = {(row["model"], row["contender"]): row for row in rows}
    names = {
        "LeNet": "LeNet (129k), 256",
        "MLP": "MLP (5.0M), 256",
        "CNN": "CNN (107k), 64",
        "ResNet-18": "ResNet-18 (11.2M), 16",
        "transformer": "transformer (10.0M), 8",
    }
    columns = (
        *("DataParallel, 1", "DataParallel, 2", "one by one, 2", "ten lines, 2"),
        *("sync_batchnorm, 2", "DataParallel, 4", "one by one, 4", "ten lines, 4"),
        "accumulated, 4",
        *("reproducible=8", "DDP, Gloo, 2 processes"),
    )
    table = rows_of("docs/benchmarks.md", "| model (parameters), batch |")
    assert list(table) == list(names.values())
    for model, name in names.items():
        ratios = [found.get((model, column)) for column in columns]
        wanted = [f"{row['over_bare']:.2f}" if row else "-" for row in ratios]
        assert table[name] == [short(found[model, "bare"]["step_s"]), *wanted], name


def test_replicas_at_the_same_time_and_one_by_one():
    rows = kept("data_parallel.json")["rows"]
    found = {(row["model"], row["contender"]): row for row in rows}
    models = dict.fromkeys(row["model"] for row in rows)
    text = " ".join(text_of("docs/benchmarks.md").split())

    def shares(k, other):
        own = (found[x, f"DataParallel, {k}"]["step_s"] for x in models)
        return {
            x: step_s / found[x, f"{other}, {k}"]["step_s"]
            for x, step_s in zip(models, own, strict=True)
        }

    two, four = shares(2, "one by one"), shares(4, "one by one")
    transformer = f"{two.pop('transformer'):.2f} (2 replicas) and {four.pop('transformer'):.2f} (4)"
    others = [*two.values(), *four.values()]
    assert f"takes {transformer} of the time" in text
    assert f"other models {min(others):.2f} to {max(others):.2f}." in text
    two, four = (sorted(shares(k, "ten lines").values()) for k in (2, 4))
    words = f"2 replicas take {two[0]:.2f} to {two[-1]:.2f} of the time, 4 take {four[0]:.2f} to"
    assert f"{words} {four[-1]:.2f}." in text
    largest = max(
        row["share"] for row in rows if "DataParallel" in row["contender"] and row["share"]
    )
    assert f"The sum takes {largest:.1%}".replace("%", " %") in text
    assert "None of it is hidden" in text
    assert {row["hidden"] for row in rows} == {0, None}


def test_accuracies_of_lenet():
    text = text_of("docs/benchmarks.md")
    runs = [kept(f"fashion_mnist/lenet-seed{seed}.jsonl") for seed in range(3)]
    one, two, three = (f"{run[10]['test_accuracy']:.3f}" for run in runs)
    assert f"test accuracy {one}, {two} and {three} for seeds 0, 1 and 2" in text
    seconds = statistics.median(epoch["epoch_s"] for epoch in runs[0][1:])
    assert f"seed 0 took {seconds:.0f} s" in text


def test_lenet_reaches_with_each_kind_of_store_what_it_reaches_without():
    def reached(name):
        about, *epochs = kept(f"fashion_mnist/lenet-{name}.jsonl")
        settings = about["config"]
        assert (settings["epochs"], settings["seed"]) == (10, 0)
        return settings["kvstore"] if name != "seed0" else None, epochs[9]

    found = {name: reached(name) for name in ("local", "dist_sync", "dist_async", "seed0")}
    assert all(kind == name for name, (kind, _) in found.items() if name != "seed0")
    accuracies = [epoch["test_accuracy"] for _, epoch in found.values()]
    assert max(accuracies) - min(accuracies) <= 0.02
    text = text_of("docs/kvstore.md")
    a, b, c, without = (f"{x:.3f}" for x in accuracies)
    assert f"{a} with `local`, {b} with `dist_sync` and {c} with `dist_async`" in text
    assert f"without a store {without}, which `local` equals to the bit" in text
    assert found["local"][1]["loss"] == found["seed0"][1]["loss"]


def test_accuracy_of_resnet18():
    about, epoch, *_ = kept("fashion_mnist/resnet18-seed0.jsonl")
    assert (about["config"]["batch_size"], about["config"]["lr"]) == (256, 0.1)
    reached = f"reached {epoch['test_accuracy']:.3f} in {epoch['epoch_s'] / 60:.0f} minutes"
    assert reached in text_of("docs/benchmarks.md")


def test_steps_of_ddp():
    wanted = {}
    for row in kept("ddp_step.json")["rows"]:
        wanted.setdefault(row["model"], {})[row["contender"]] = row
    assert rows_of("docs/distributed.md", "| network | step, fastreduce |") == {
        model: [
            *(f"{by[name]['step_s'] * 1e3:.1f} ms" for name in ("fastreduce", "gloo", "no sums")),
            *(f"{by[name]['sync_s'] * 1e3:.1f} ms" for name in ("fastreduce", "gloo")),
        ]
        for model, by in wanted.items()
    }


def test_planner():
    rows = kept("planner.json")["rows"]

    def shown(time_s):
        if time_s is None:
            return "-"
        return f"{time_s:.1f} s" if time_s >= 1 else f"{time_s * 1e3:.0f} ms"

    assert rows_of("docs/benchmarks.md", "| what | wall clock |") == {
        row["what"]: [shown(row[key]) for key in ("wall_s", "processor_s", "goal_s")]
        for row in rows
    }


def all_reduces(*files):
    rows = [row for name in files for row in kept(name)["rows"]]
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
            if k == 2:
                of_mpi = found[k, "mpi", size_of(name)]["time_s"]
                wanted.append(f"{of_mpi / staged['time_s']:.1f}")
        assert cells == wanted, name


def test_machines():
    found = all_reduces("machines.json")
    table = rows_of("docs/distributed.md", "| bytes of each rank, machines |")
    assert len(table) == 7
    for name, cells in table.items():
        rows = [found[k, "fastreduce", size_of(name)] for k in (4, 6)]
        wanted = [(short(row["time_s"]), f"{row['over_gloo']:.2f}") for row in rows]
        assert cells == [cell for pair in wanted for cell in pair], name
