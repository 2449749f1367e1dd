"""The picture of the rows of benchmarks/processes.py."""

from __future__ import annotations

from pathlib import Path

from axes import one_legend, save_figure, show_sizes, show_times, show_title, where
from rows import Row

ON_EACH = 2  # processes on each machine
# Of each contender the colour, the same in all pictures, and the name there.
LINES = {
    "fastreduce": ("tab:blue", "fastreduce"),
    "fastreduce in place": ("tab:orange", "fastreduce in place"),
    "through the CPU": ("tab:purple", "fastreduce through the CPU"),
    "gloo": ("tab:green", "Gloo"),
    "mpi": ("tab:gray", "MPICH, called directly"),
    "one process": ("tab:red", "one process with all tensors"),
}


def draw(rows: list[Row], about: Row, path: Path) -> None:
    from matplotlib.figure import Figure

    on_gpu = any(x["contender"] == "through the CPU" for x in rows)
    order = list(dict.fromkeys(x["collective"] for x in rows))
    panels = sorted({(order.index(x["collective"]), x["k"]) for x in rows})
    columns = min(2, len(panels))
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(2 + 3.6 * columns, 1.2 + 2.8 * lines), layout="constrained")
    for i, (number, k) in enumerate(panels):
        axes = figure.add_subplot(lines, columns, i + 1)
        mine = [x for x in rows if (x["collective"], x["k"]) == (order[number], k)]
        for name, (color, label) in LINES.items():
            points = [(x["nbytes"], x["time_s"]) for x in mine if x["contender"] == name]
            if points:
                axes.plot(*zip(*points, strict=True), "o-", color=color, markersize=3, label=label)
        ranks = f"{k} processes" + " on one GPU" * on_gpu
        if "rate_mbit" in about:
            ranks = f"{k // ON_EACH} machines of {ON_EACH} processes each"
        axes.set(title=f"{order[number]}, {ranks}", xlabel="bytes of one rank")
        axes.set_ylabel("time of a call" if i % columns == 0 else "")
        show_sizes(axes, (x["nbytes"] for x in mine), most=7)
        show_times(axes)
    title = "torch.distributed by backend"
    if "rate_mbit" in about:
        rate = f"{about['rate_mbit'] / 1000:g} Gbit/s"
        title += f", between network namespaces as machines, links of {rate}"
    show_title(figure, f"{title}\n{where(about, on_gpu=on_gpu, each=' for each process')}")
    one_legend(figure)
    save_figure(figure, path)
