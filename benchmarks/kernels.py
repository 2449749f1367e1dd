"""How near do the kernels come to memory's own speed, and how far ahead of what one would write?

    python benchmarks/kernels.py                           # everything, some minutes
    python benchmarks/kernels.py -b 1M -e 64M -k 4 -n 5    # a quick look
    python benchmarks/kernels.py --engine events --algorithm ring

Engines: "tiles" (all ranks on one GPU, one launch), "events" (the engine for several GPUs on one,
each rank on a stream of its own) and "gpus" (the same engine, ranks dealt to all GPUs, where there
are several). Without a GPU, or without CUDA engines, the CPU's tiles engine is measured instead.

Flags and columns are those of nccl-tests: size is bytes a rank, algbw = size / time, busbw = algbw
* 2(k-1)/k, GB is 1e9 bytes. Every contender is checked against exact results before it is timed;
#wrong counts elements. Times are medians of CUDA events around calls that go round several sets of
buffers, all contenders of a size in turn: called one by one from Python, and captured in one
torch.cuda.graph. "host" is what one call costs the caller's thread.

Small sizes come from the L2, not from memory. The sets together are twice as large as the L2 where
they can be, but the engine of "events" and "gpus" keeps 64 graphs, one for each program and set, so
with twelve programs there are at most 5 sets. On an H100 (50 MB of L2) these are enough from 20 MB
on, all ranks together; below, the data is partly or wholly in the L2, for the limit as for all.
"--engine tiles" alone has up to 64 sets: enough from 1.6 MB on. "working_set_bytes" in the JSON is
what the sets came to.

A contender that raises is named and left out, and so is a size that none could be measured at (out
of memory, say): the rest goes on, and the exit status is 1 unless only others than fastreduce's
engines failed. OUT.json is written after each case, so a run that is cut off leaves what it has.

"of limit" is the limit's time over this one's. On one device the limit is a copy of as many bytes
as the ranks hold: it reads and writes 2 k n bytes, as an allreduce must. Over several GPUs it is a
copy of the 2(k-1)/k n bytes that each rank must receive, from one GPU to another. On the CPU it is
one in-place pass over all ranks' buffers.
"""

from __future__ import annotations

import argparse
import signal
import traceback
from collections.abc import Iterator
from typing import Any

import torch
from competitors import absent
from kernels_case import Case, fits, has_gpu, measure
from kernels_report import HEADER, OURS, describe, draw, show, summary
from measure import Row, machine, parser_of_sizes, preamble, save, sizes_bytes, write

from fastreduce import algorithms
from fastreduce.training.lenet import SHAPES

DTYPES = ["float32", "float64", "float16", "bfloat16", "uint8", "int8", "int16", "int32", "int64"]


def engines_here(wanted: list[str]) -> list[str]:
    known = ["tiles"]
    if has_gpu():
        known += ["events"] + ["gpus"] * (torch.cuda.device_count() > 1)
    return [name for name in wanted or known if name in known]


def cases(args: argparse.Namespace) -> Iterator[Case]:
    """LeNet's, then size by size in all dtypes: of these a run that is cut off has some of each."""
    engines = engines_here(args.engine)
    groups = [[x for x in engines if x != "gpus"], [x for x in engines if x == "gpus"]]
    for group in filter(None, groups):
        for k in sorted({*args.k, 4, 8}) if args.o == "sum" else ():
            yield Case(list(SHAPES), torch.float32, k, args.o, group)
        for size in sizes_bytes(args):
            for dtype in (getattr(torch, name) for name in args.d):
                for k in args.k:
                    yield Case([(size // dtype.itemsize,)], dtype, k, args.o, group)


def add(case: Case, args: argparse.Namespace, rows: list[Row], failures: list[Row]) -> None:
    """What is measured of it, and what fails instead."""
    before = len(rows), len(failures)
    try:
        if fits(case):
            rows += measure(case, args, failures)
    except Exception as error:
        traceback.print_exc()
        failures.append(case.failure(None, error))
    if len(case.shapes) > 1:
        print(f"# LeNet's {len(case.shapes)} gradients in one call, k = {case.k}:")
    for row in rows[before[0] :]:
        show(row)
    for failure in failures[before[1] :]:
        print(f"# failed: {describe(failure)}", flush=True)


def arguments() -> argparse.Namespace:
    parser = parser_of_sizes(__doc__, largest_bytes=1 << 30, rounds=11)
    parser.add_argument("-w", type=int, default=2, help="warm-up turns over all sets (2)")
    parser.add_argument("-d", nargs="+", default=["float32", "bfloat16"], choices=DTYPES)
    parser.add_argument("-o", default="sum", help="op (sum); others have no competitors")
    parser.add_argument("--engine", nargs="+", default=[], choices=["tiles", "events", "gpus"])
    names = ["auto", *algorithms.names()]
    parser.add_argument("--algorithm", nargs="+", default=names, choices=names, help="(all)")
    return parser.parse_args()


def about_this_run() -> dict[str, Any]:
    engine = "on GPU" if has_gpu() else "on the CPU: "
    if not has_gpu():
        engine += "no GPU here" if not torch.cuda.is_available() else "built without CUDA engines"
    return {"engines": engine, "not installed": ", ".join(absent()) or "nothing", **machine()}


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    args = arguments()
    torch.set_num_threads(args.t)
    about = about_this_run()
    print(preamble(about))
    if not engines_here(args.engine):
        raise SystemExit(f"# none of the engines {', '.join(args.engine)} can run here")
    print(HEADER)
    rows: list[Row] = []
    failures: list[Row] = []

    def results(complete: bool) -> dict[str, Any]:
        found = {"summary": summary(rows), "failures": failures, "rows": rows}
        return {"machine": about, "complete": complete, **found}

    complete = False
    try:
        for case in cases(args):
            add(case, args, rows, failures)
            if args.out:
                write(args.out.with_suffix(".json"), results(complete))
        complete = True
    except KeyboardInterrupt:  # what was measured until then is kept
        print("# interrupted", flush=True)
    if args.out:
        save(args.out.with_suffix(".json"), results(complete))
        draw(rows, about, args.out.with_suffix(".png"))
    failed = conclude(rows, failures)
    if failed or not complete:
        raise SystemExit(1)


def conclude(rows: list[Row], failures: list[Row]) -> bool:
    """Prints what to remember of all this; whether any of it is fastreduce's failure."""
    for name, value in summary(rows).items():
        print(f"# {name}: {value:.2f}" if isinstance(value, float) else f"# {name}: {value}")
    own = [x for x in failures if x["engine"] in (*OURS, None)]
    print(f"# failed: {len(own)} of fastreduce's, {len(failures) - len(own)} of the others")
    wrong = sum(row["wrong_elems"] for row in rows if row["engine"] in OURS)
    others = sum(row["wrong_elems"] for row in rows if row["engine"] not in OURS)
    if others:
        print(f"# Out of bounds values of those compared with: {others}")
    print(f"# Out of bounds values : {wrong} {'OK' if wrong == 0 else 'FAILED'}")
    return bool(own or wrong)


if __name__ == "__main__":
    main()
