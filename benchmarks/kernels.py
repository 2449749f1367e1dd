"""How near do the kernels come to memory's own speed, and how far ahead of what one would write?

    python benchmarks/kernels.py                           # everything, some minutes
    python benchmarks/kernels.py -b 1M -e 64M -k 4 -n 5    # a quick look
    python benchmarks/kernels.py --engine events --algorithm ring

Engines: "tiles" (all ranks on one GPU, one launch), "events" (the engine for several GPUs on one,
each rank on a stream of its own) and "gpus" (the same engine, ranks dealt to all GPUs, where there
are several). Without a GPU, or without CUDA engines, the CPU's tiles engine is measured instead.

Flags and columns are those of nccl-tests: size is bytes a rank, algbw = size / time, busbw = algbw
* 2(k-1)/k, GB is 1e9 bytes. Every contender is checked against exact results before it is timed;
#wrong counts elements. Times are medians of CUDA events around calls that go round sets of buffers
of twice the L2 cache together (at most 60 sets: small sizes stay in the cache), all contenders of a
size in turn: called one by one from Python, and captured in one torch.cuda.graph. "host" is what
one call costs the caller's thread.

"of limit" is the limit's time over this one's. On one device the limit is a copy of as many bytes
as the ranks hold: it reads and writes 2 k n bytes, as an allreduce must. Over several GPUs it is a
copy of the 2(k-1)/k n bytes that each rank must receive, from one GPU to another. On the CPU it is
one in-place pass over all ranks' buffers.
"""

from __future__ import annotations

import argparse
import traceback
from pathlib import Path
from typing import Any

import torch
from competitors import Contender, absent, ours, theirs
from kernels_report import HEADER, draw, show, summary
from measure import Row, alternate, machine, preamble, save, size_bytes
from rotation import CALLS_A_SET, Buffers, Rotation

from fastreduce import _C, algorithms, goals
from fastreduce.training.lenet import SHAPES

DTYPES = ["float32", "float64", "float16", "bfloat16", "uint8", "int8", "int16", "int32", "int64"]
Shapes = list[tuple[int, ...]]


def has_gpu() -> bool:
    return torch.cuda.is_available() and _C.cuda_engines


def devices_of(engine: str) -> list[torch.device]:
    if not has_gpu():
        return [torch.device("cpu")]
    count = torch.cuda.device_count() if engine == "gpus" else 1
    return [torch.device("cuda", i) for i in range(count)]


def engines_here(wanted: list[str]) -> list[str]:
    known = ["tiles"]
    if has_gpu():
        known += ["events"] + ["gpus"] * (torch.cuda.device_count() > 1)
    return [name for name in wanted or known if name in known]


def cache_bytes() -> int:
    """Of the L2; unknown on the CPU, where one set of buffers is used as often as it takes."""
    return torch.cuda.get_device_properties(0).L2_cache_size if has_gpu() else 0


def serves(algorithm: str, k: int) -> bool:
    if algorithm == "auto":
        return True
    try:
        goals.program("allreduce", k, algorithm=algorithm)
    except ValueError:
        return False  # halving-doubling, say, wants a power of two
    return True


def limit(buffers: Buffers) -> Rotation:
    """What no allreduce over these buffers can beat once they are larger than the cache."""
    first, *others = buffers.devices
    sets = list(buffers.pools[0])
    if first.type == "cpu":
        calls = [lambda x=x: x.mul_(1) for x in sets]
    elif not others:
        target = torch.empty_like(buffers.pools[0])
        calls = [lambda x=x, y=y: y.copy_(x) for x, y in zip(sets, target, strict=True)]
    else:
        elems = max(1, 2 * (buffers.k - 1) * buffers.count_elems // buffers.k)
        source = torch.empty(elems, dtype=buffers.dtype, device=first)
        target = torch.empty_like(source, device=others[0])
        calls = [lambda: target.copy_(source)]
    return Rotation(buffers, Contender("limit", "copy", lambda ranks: ranks), calls)


def seconds_of(rotations: dict[str, Rotation], args: argparse.Namespace) -> dict[str, float]:
    """Of one call; warmed up in turns over all sets, as each has its own graph in the engine."""
    calls = max(len(x.calls) for x in rotations.values())
    return alternate(rotations, args.n, args.w * calls, Rotation.seconds, CALLS_A_SET * calls)


def measure(
    shapes: Shapes, dtype: torch.dtype, k: int, engines: list[str], args: argparse.Namespace
) -> list[Row]:
    """All contenders that share the devices of these engines."""
    devices = devices_of(engines[0])
    on_gpu, several = devices[0].type == "cuda", len(devices) > 1
    buffers = Buffers(shapes, dtype, k, devices, cache_bytes())
    served = [x for x in args.algorithm if serves(x, k)]
    contenders = [ours(engine, name, args.o) for engine in engines for name in served]
    contenders += [
        x for x in theirs(dtype, args.o, k, on_gpu) if x.algorithm == "loop" or not several
    ]
    rotations = {x.name: Rotation.of(buffers, x) for x in contenders}
    copy = limit(buffers)
    wrong = {name: buffers.count_wrong(args.o, x.run_all) for name, x in rotations.items()}
    eager = seconds_of({"limit": copy, **rotations}, args)
    captured: dict[str, float] = {}
    if on_gpu and not several:
        copy.run_all()
        replays = {name: x.captured() for name, x in rotations.items()}
        for name, replay in replays.items():
            wrong[name] += buffers.count_wrong(args.o, replay.run_all)
        seconds = seconds_of({"limit": copy.captured(), **replays}, args)
        captured = {name: value / len(buffers.sets) for name, value in seconds.items()}
    return [
        {
            **case(buffers, args.o, len(shapes)),
            "engine": x.engine,
            "algorithm": x.algorithm,
            "eager": speed(buffers, eager, x.name),
            "captured": speed(buffers, captured, x.name) if captured else None,
            "host_s": rotations[x.name].host_seconds(args.n) if on_gpu else None,
            "wrong_elems": wrong[x.name],
        }
        for x in contenders
    ]


def case(buffers: Buffers, op: str, tensors: int) -> Row:
    return {
        "size_bytes": buffers.size_bytes,
        "count_elems": buffers.count_elems,
        "tensors": tensors,
        "type": str(buffers.dtype).removeprefix("torch."),
        "redop": op,
        "k": buffers.k,
        "working_set_bytes": buffers.working_set_bytes,
    }


def speed(buffers: Buffers, seconds: dict[str, float], name: str) -> dict[str, Any]:
    size, k = buffers.size_bytes, buffers.k
    loop_s = seconds.get("torch loop")
    return {
        "time_s": seconds[name],
        "algbw_gb_per_s": size / seconds[name] / 1e9,
        "busbw_gb_per_s": size / seconds[name] / 1e9 * 2 * (k - 1) / k,
        "moved_gb_per_s": 2 * k * size / seconds[name] / 1e9,
        "of_limit": seconds["limit"] / seconds[name],
        "over_loop": loop_s / seconds[name] if loop_s else None,
    }


def fits(size: int, dtype: torch.dtype, k: int) -> bool:
    if not has_gpu():
        return True
    torch.cuda.empty_cache()
    needed = Buffers.needed_bytes(size, k, dtype, cache_bytes())
    free, _ = torch.cuda.mem_get_info()
    if needed > free:
        print(f"# {size} B a rank, k = {k}: left out, needs {needed / 1e9:.0f} GB of GPU memory")
    return needed <= free


def sweep(args: argparse.Namespace, rows: list[Row]) -> None:
    """Engines that use the same devices are measured side by side."""
    engines = engines_here(args.engine)
    groups = [[x for x in engines if x != "gpus"], [x for x in engines if x == "gpus"]]
    cases: list[tuple[Shapes, torch.dtype, int]] = []
    for dtype in (getattr(torch, name) for name in args.d):
        size = args.b
        while size <= args.e:
            cases += [([(size // dtype.itemsize,)], dtype, k) for k in args.k]
            size *= args.f
    if args.o == "sum":
        cases += [(list(SHAPES), torch.float32, k) for k in sorted({*args.k, 4, 8})]
    for group in filter(None, groups):
        for shapes, dtype, k in cases:
            elems = sum(torch.Size(shape).numel() for shape in shapes)
            if not fits(elems * dtype.itemsize, dtype, k):
                continue
            fresh = measure(shapes, dtype, k, group, args)
            rows += fresh
            for row in fresh:
                show(row)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-b", type=size_bytes, default=1 << 10, help="smallest size (1K)")
    parser.add_argument("-e", type=size_bytes, default=1 << 30, help="largest size (1G)")
    parser.add_argument("-f", type=int, default=4, help="factor from size to size (4)")
    parser.add_argument("-n", type=int, default=11, help="samples; the median is shown (11)")
    parser.add_argument("-w", type=int, default=2, help="warm-up turns over all sets (2)")
    parser.add_argument("-k", type=int, nargs="+", default=[2, 4, 8], help="numbers of ranks")
    parser.add_argument("-d", nargs="+", default=["float32", "bfloat16"], choices=DTYPES)
    parser.add_argument("-o", default="sum", help="op (sum); others have no competitors")
    parser.add_argument("-t", type=int, default=2, help="threads, on the CPU (2)")
    parser.add_argument("--engine", nargs="+", default=[], choices=["tiles", "events", "gpus"])
    names = ["auto", *algorithms.names()]
    parser.add_argument("--algorithm", nargs="+", default=names, choices=names, help="(all)")
    parser.add_argument("--out", type=Path, help="write OUT.json and OUT.png")
    return parser.parse_args()


def about_this_run() -> dict[str, Any]:
    engine = "on GPU" if has_gpu() else "on the CPU: "
    if not has_gpu():
        engine += "no GPU here" if not torch.cuda.is_available() else "built without CUDA engines"
    return {"engines": engine, "not installed": ", ".join(absent()) or "nothing", **machine()}


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.t)
    about = about_this_run()
    print(preamble(about))
    if not engines_here(args.engine):
        raise SystemExit(f"# none of the engines {', '.join(args.engine)} can run here")
    print(HEADER)
    rows: list[Row] = []
    try:
        sweep(args, rows)
    except (Exception, KeyboardInterrupt) as error:  # what was measured until then is kept
        traceback.print_exc()
        about["interrupted"] = f"{type(error).__name__}: {error}"
    figures = summary(rows)
    for name, value in figures.items():
        print(f"# {name}: {value:.2f}" if isinstance(value, float) else f"# {name}: {value}")
    wrong = sum(row["wrong_elems"] for row in rows)
    print(f"# Out of bounds values : {wrong} {'OK' if wrong == 0 else 'FAILED'}")
    if args.out:
        save(args.out.with_suffix(".json"), {"machine": about, "summary": figures, "rows": rows})
        draw(rows, about, args.out.with_suffix(".png"))
    if wrong or "interrupted" in about:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
