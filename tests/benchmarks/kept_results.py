"""What the benchmarks have kept, and the tables of the docs that must say the same."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
SIZES = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def kept(name):
    """What a benchmark wrote into benchmarks/results: JSON, or JSON lines as a list."""
    text = (ROOT / "benchmarks" / "results" / name).read_text()
    if name.endswith(".jsonl"):
        return [json.loads(line) for line in text.splitlines()]
    return json.loads(text)


def text_of(page):
    return " ".join((ROOT / page).read_text().split())


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


def size_of(name):
    count, unit = name.split()
    return int(count) * SIZES[unit]


def short(time_s):
    value, unit = (time_s * 1e6, "us") if time_s < 1e-3 else (time_s * 1e3, "ms")
    return f"{value:.1f} {unit}" if value < 100 else f"{value:.0f} {unit}"
