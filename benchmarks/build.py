"""How long does the extension take to compile, and which file takes the time?

    python benchmarks/build.py                                  # the CPU's engines alone
    python benchmarks/build.py --cuda                           # and CUDA's, all architectures
    python benchmarks/build.py --cuda 9.0                       # for one
    python benchmarks/build.py --out benchmarks/results/build   # writes build.json

Compiles everything into a temporary folder, so nothing that is installed changes. It needs what the
build needs (torch, setuptools, ninja, a compiler; with --cuda nvcc), but not the extension, and no
GPU. The seconds of each translation unit are from ninja's log. Several compile at once, so together
they are more than the whole takes.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rows import Row

ROOT = Path(__file__).parent.parent


def build(root: Path, cuda: str | None, folder: Path) -> float:
    """Seconds of a build into ``folder``; raises SystemExit with its last lines if it fails.

    ``cuda`` names architectures as torch does ("9.0", or "" for all); None is for the CPU alone.
    """
    command = [sys.executable, "setup.py", "build_ext", "--force"]
    command += ["--build-temp", str(folder / "temp"), "--build-lib", str(folder / "lib")]
    environment = {**os.environ, "FASTREDUCE_CUDA": "0" if cuda is None else "1"}
    environment["CUDA_VISIBLE_DEVICES"] = ""  # a visible GPU would limit the architectures
    environment.pop("TORCH_CUDA_ARCH_LIST", None)
    if cuda:
        environment["TORCH_CUDA_ARCH_LIST"] = cuda
    begin = time.perf_counter()
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-30:])
        raise SystemExit(f"{last}\nthe build failed: exit status {done.returncode}")
    return time.perf_counter() - begin


def units(folder: Path) -> list[Row]:
    """What ninja compiled below ``folder``, the slowest first.

    A line of ninja's log has start and end in ms, a time stamp, the output and a hash, with tabs.
    """
    found: dict[str, Row] = {}
    for log in folder.rglob(".ninja_log"):
        for line in log.read_text().splitlines():
            if line.startswith("#"):
                continue
            start, end, _, output, _ = line.split("\t")
            unit = os.path.relpath(log.parent / output, log.parent).removesuffix(".o")
            found[unit] = {"unit": unit, "start_s": int(start) / 1e3, "end_s": int(end) / 1e3}
    rows = [{**row, "time_s": row["end_s"] - row["start_s"]} for row in found.values()]
    return sorted(rows, key=lambda row: -row["time_s"])


def machine() -> dict[str, Any]:
    import torch

    return {
        "date": datetime.date.today().isoformat(),
        "cores": os.cpu_count(),
        "jobs": os.environ.get("MAX_JOBS", "ninja's default"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(terse=True),
    }


def table(rows: list[Row], whole_s: float) -> str:
    lines = [f"{'#time (s)':>10}  {'from':>7} {'to':>7}  translation unit"]
    for row in rows:
        span = f"{row['start_s']:7.1f} {row['end_s']:7.1f}"
        lines.append(f"{row['time_s']:10.1f}  {span}  {row['unit']}")
    together = sum(row["time_s"] for row in rows)
    lines.append(f"# {len(rows)} units, {together:.0f} s together; the whole took {whole_s:.0f} s")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--cuda",
        nargs="?",
        const="",
        metavar="ARCHITECTURES",
        help='with CUDA, for these ("9.0", as in TORCH_CUDA_ARCH_LIST) or all',
    )
    parser.add_argument("--out", type=Path, help="write OUT.json")
    args = parser.parse_args()
    built = {None: "none", "": "all architectures"}.get(args.cuda, args.cuda)
    about = machine() | {"cuda": built}
    print("\n".join(f"# {key}: {value}" for key, value in about.items()), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        whole_s = build(ROOT, args.cuda, Path(folder))
        rows = units(Path(folder))
    print(table(rows, whole_s))
    if args.out:
        path = args.out.with_suffix(".json")
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {"machine": about, "whole_s": whole_s, "units": rows}
        path.write_text(json.dumps(content, indent=1) + "\n")
        print(f"# wrote {path}")


if __name__ == "__main__":
    main()
