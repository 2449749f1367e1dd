"""The pages of the book as notebooks, executed; pictures and figures of full-size runs are kept.

    python docs/book/run.py              # every page, a minute each
    python docs/book/run.py asynchrony   # one

A page saves a picture and a JSON file under its own name into the folder it runs in: NAME.png, and
NAME.json with the figures that its table has, each as it is printed there.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jupytext
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PAGES = {path.stem: path for path in sorted(HERE.glob("*.md")) if path.stem != "index"}


def notebook(text: str, values: Mapping[str, Any] | None = None) -> NotebookNode:
    """A page's notebook; ``values`` are assigned after its first code cell, which has the sizes."""
    found = jupytext.reads(text, fmt="md")
    if values:
        lines = "\n".join(f"{name} = {value!r}" for name, value in values.items())
        first = next(i for i, cell in enumerate(found.cells) if cell.cell_type == "code")
        found.cells.insert(first + 1, new_code_cell(lines))
    return found


def execute(found: NotebookNode, folder: Path) -> None:
    """Run a notebook in a fresh kernel, in this folder; raises CellExecutionError as it fails."""
    about = {"metadata": {"path": str(folder)}}
    NotebookClient(found, timeout=600, kernel_name="python3", resources=about).execute()


def main(names: list[str]) -> None:
    RESULTS.mkdir(exist_ok=True)
    for name in names or PAGES:
        begin_s = time.perf_counter()
        execute(notebook(PAGES[name].read_text(encoding="utf-8")), RESULTS)
        print(f"{name}, {time.perf_counter() - begin_s:.0f} s; the rows of its table:")
        for what, figure in json.loads((RESULTS / f"{name}.json").read_text()).items():
            print(f"| {what} | {figure} |")


if __name__ == "__main__":
    main(sys.argv[1:])
