"""How fast is fastreduce.allreduce, compared with a user's own code, with memory, and with auto?

    python benchmarks/allreduce.py                                   # everything, some minutes
    python benchmarks/allreduce.py -b 64K -e 16M -k 4 -n 5 -d float32    # a quick look
    python benchmarks/allreduce.py --algorithm all --against -d float32  # is auto ever slower?
    python benchmarks/allreduce.py --engine events --algorithm ring      # one engine's program

The contenders, on the CPU and on GPUs: the algorithms of fastreduce, the loop of *Dive into Deep
Learning* (section 12.5.4: sum into rank 0, copy back), torch.stack and sum, torch._foreach_add_, a
sum over the lists compiled by torch.compile, and a CuPy and a Triton kernel if these are installed.
The first lines name what cannot run here, with the reason.

Engines: "tiles" (all ranks in one memory); on GPUs also "events" (the engine for several GPUs, run
on one GPU, each rank on its own stream), "flags" (the same with engine="flags"), and "gpus" and
"gpus-flags" (the same with the ranks dealt to all GPUs, if there are several). Without a GPU, or
without CUDA engines, tiles runs on the CPU.

Flags and columns are those of nccl-tests: size is bytes per rank, algbw = size / time, busbw =
algbw * 2(k-1)/k, GB is 1e9 bytes. Every contender is checked against exact results before it is
timed; #wrong counts elements. Times are medians. Calls use several sets of buffers in turn, and all
contenders of a size are timed in turn. On GPUs, CUDA events take the times, once of calls one by
one from Python and once of calls captured in one torch.cuda.graph. "host" is the time that one call
takes from the caller's thread.

If --sets (64) sets are enough for it, all sets together are twice as large as the last-level cache
(the GPU's L2); then every byte comes from memory. The engine of "events" and "gpus" keeps 64
graphs, one for each program and set, so with twelve programs there are at most 5 sets. On an H100
(50 MB of L2) these are enough if all ranks together have 20 MB or more; with "--engine tiles" 1.6
MB are enough. "--sets 1" uses one set again and again, so that small sizes come from the nearest
cache. LeNet's gradients on the CPU also use one set, as in training. The JSON has
"working_set_bytes", and "devices", on how many the ranks are.

"of limit" is the limit's time divided by the contender's, if data comes from memory; otherwise the
table says "in cache". An allreduce must read and write all ranks' buffers, 2 k n bytes. One pass
that does only that is timed beside the contenders: on the CPU torch's x += 0 over all buffers, on
one GPU a copy of as many bytes and a kernel that negates all buffers in place, over several GPUs a
copy from one GPU to another of the 2(k-1)/k n bytes that each rank must receive. The limit is the
fastest round of all, called or captured, passes and contenders: nothing that ran here moved these
bytes faster, so no median is above 1. A pass alone is not a limit: a kernel that reads k buffers at
once may keep more of the memory busy (1.6 times as much on one core of a Xeon, measured
2026-11-21), and in a cache it reads k times what the pass reads once. "of_pass" in the JSON
compares with the fastest pass.

"over best" is a contender's time divided by that of the fastest algorithm on the same engine
(without auto). For auto at most 1.1 is wanted. auto and the algorithm that it stands for run the
same program, so the difference between these two is the machine's noise.

A contender that raises is named and left out, and so is a size at which nothing could be measured
(for example for lack of memory). The rest goes on. The exit status is 1 if one of fastreduce's
engines failed. OUT.json is written after each case, so a run that is cut off leaves what it has;
OUT.png and OUT_over_best.png are drawn at the end.
"""

from __future__ import annotations

import argparse
import itertools
import signal
import traceback
from collections.abc import Iterator
from typing import Any

import torch
from buffers import GRAPHS_KEPT, cache_bytes, has_gpu
from contenders import AGAINST, absent
from contest import Case, fits, measure
from expected import can_be_checked, is_exact
from figures import OURS, summary
from measure import (
    at_least,
    check_elements,
    machine,
    parser_of_sizes,
    preamble,
    save,
    sizes_bytes,
    write,
)
from nets import GRADIENTS
from report import conclude, describe, header, line
from rows import Row

from fastreduce import _C, algorithms

DTYPES = [str(dtype).removeprefix("torch.") for dtype in _C.ops()["sum"] if can_be_checked(dtype)]
ENGINES = list(OURS)
LARGEST_BYTES = {"cpu": 1 << 28, "gpu": 1 << 30}


def engines_here(wanted: list[str]) -> list[str]:
    known = ["tiles"]
    if has_gpu():
        known += [x for x in ENGINES[1:] if "gpus" not in x or torch.cuda.device_count() > 1]
    return [name for name in wanted or known if name in known]


def cases(args: argparse.Namespace) -> Iterator[Case]:
    """Models, then by size in all dtypes, so that a run that is cut off has some of each dtype."""
    engines = engines_here(args.engine)
    groups = [[x for x in engines if ("gpus" in x) == several] for several in (False, True)]
    largest = args.e or LARGEST_BYTES["gpu" if has_gpu() else "cpu"]
    for group in filter(None, groups):
        lists = args.lists if args.o == "sum" else []
        for model, k in itertools.product(lists, args.k):
            yield Case(GRADIENTS[model], torch.float32, k, args.o, group, model)
        for size in sizes_bytes(args.b, largest, args.f):
            for dtype in (getattr(torch, name) for name in args.d):
                for k in args.k:
                    yield Case([(size // dtype.itemsize,)], dtype, k, args.o, group)


def add(case: Case, args: argparse.Namespace, rows: list[Row], failures: list[Row]) -> None:
    """Measure a case; add its rows and its failures, and print them."""
    before = len(rows), len(failures)
    try:
        if fits(case):
            rows += measure(case, args, failures)
    except Exception as error:
        traceback.print_exc()
        failures.append(case.failure(None, error))
    if case.model:
        print(f"# {case.model}'s {len(case.shapes)} gradients in one call, k = {case.k}:")
    for row in rows[before[0] :]:
        print(line(row, has_gpu()), flush=True)
    for failure in failures[before[1] :]:
        print(f"# failed: {describe(failure)}", flush=True)


def arguments() -> argparse.Namespace:
    parser = parser_of_sizes(__doc__, rounds=11)
    parser.add_argument("-w", type=at_least(0), default=2, help="warm-up turns over all sets (2)")
    dtypes = ["float32", "bfloat16", "float16"]
    parser.add_argument("-d", nargs="+", default=dtypes, choices=DTYPES, metavar="DTYPE")
    lists = f"sums of these models' gradients in one call: {' '.join(GRADIENTS)}, or none (LeNet)"
    parser.add_argument(
        "--lists", nargs="*", default=["LeNet"], choices=GRADIENTS, metavar="MODEL", help=lists
    )
    op = "op (sum); others are compared with nothing"
    parser.add_argument("-o", default="sum", choices=_C.ops(), metavar="OP", help=op)
    parser.add_argument("--sets", type=at_least(1), default=GRAPHS_KEPT, help="sets of buffers")
    parser.add_argument("--engine", nargs="+", default=[], choices=ENGINES, help="(all)")
    known = ["auto", *algorithms.names()]
    some = ["auto", "leader", "sharded", "ring"]
    choices = {"choices": ["all", *known], "metavar": "NAME"}
    parser.add_argument(
        "--algorithm", nargs="+", default=some, **choices, help=f"all, or ({' '.join(some)})"
    )
    names = f"{' '.join(AGAINST)}; nothing for none (all)"
    parser.add_argument(
        "--against", nargs="*", default=AGAINST, choices=AGAINST, metavar="WHAT", help=names
    )
    args = parser.parse_args()
    args.algorithm = known if "all" in args.algorithm else args.algorithm
    check_elements(parser, args.b, [getattr(torch, name) for name in args.d])
    for name, k in itertools.product(args.d, args.k):
        if not is_exact(args.o, getattr(torch, name), k):
            parser.error(
                f"found -d {name} with -k {k}: sums of so many ranks are rounded, so that their "
                "results cannot be checked; wanted fewer ranks, or another dtype"
            )
    return args


def about_this_run() -> dict[str, Any]:
    from fastreduce.plan.table_files import tuned

    engine = "on GPU" if has_gpu() else "on the CPU: "
    if not has_gpu():
        engine += "no GPU here" if not torch.cuda.is_available() else "built without CUDA engines"
    lacking = ", ".join(f"{name} ({why})" for name, why in absent(has_gpu()).items())
    table = tuned()
    return {
        "engines": engine,
        "left out": lacking or "nothing",
        **machine(),
        "cache_bytes": cache_bytes(),
        "auto": f"tuned on {table.date}" if table else "documented defaults",
    }


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    args = arguments()
    torch.set_num_threads(args.t)
    about = about_this_run()
    print(preamble(about))
    if not engines_here(args.engine):
        raise SystemExit(f"# none of the engines {', '.join(args.engine)} can run here")
    print(header(has_gpu()))
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
        from pictures import draw  # now that all is saved: matplotlib may be missing

        draw(rows, about, args.out.with_suffix(".png"))
    failed = conclude(rows, failures)
    if failed or not complete:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
