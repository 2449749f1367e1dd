"""For every benchmark: timing in turn, the machine's description, results on disk."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import random
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from rows import Row

import fastreduce
from fastreduce import _C
from fastreduce.cli.paths import why_not_writable
from fastreduce.files import write_whole
from fastreduce.plan.machine import cpu
from fastreduce.units import busbw

K = TypeVar("K")
C = TypeVar("C")

# A sample lasts at least this long, so that the clock and the loop around it do not count.
SAMPLE_S = 1e-3


def in_turn(names: Iterable[K], rounds: int) -> Iterator[K]:
    """Each name once in each round, in another order in each, since a contender may find the caches
    as the one before it left them. All ranks have the same orders."""
    known = list(names)
    for round_ in range(rounds):
        yield from random.Random(round_).sample(known, len(known))


def alternate(
    contenders: Mapping[K, C],
    rounds: int,
    warmup: int = 2,
    timer: Callable[[C, int], float] | None = None,
    most_repeats: int = 1 << 20,
) -> dict[K, list[float]]:
    """Seconds of one call of each contender: a sample per round, all contenders in turn.

    ``timer(contender, repeats)`` returns the seconds of so many calls; default: the host's clock.
    """
    timer = timer or _seconds
    repeats = {}
    for name, call in contenders.items():
        timer(call, warmup)
        wanted = round(SAMPLE_S / max(timer(call, 1), 1e-7))
        repeats[name] = min(max(1, wanted), most_repeats)
    samples: dict[K, list[float]] = {name: [] for name in contenders}
    for name in in_turn(contenders, rounds):
        samples[name].append(timer(contenders[name], repeats[name]) / repeats[name])
    return samples


def _seconds(call: Any, repeats: int) -> float:
    begin = time.perf_counter()
    for _ in range(repeats):
        call()
    return time.perf_counter() - begin


def sample_s(call: Callable[[], object], calls: int) -> float:
    """Seconds of one of so many calls, which all ranks of the group begin together."""
    dist.barrier()
    begin_s = time.perf_counter()
    for _ in range(calls):
        call()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return (time.perf_counter() - begin_s) / calls


def slowest_s(
    contenders: Mapping[K, Callable[[], object]], calls: int, rounds: int
) -> dict[K, list[float]]:
    """Seconds of one call of each contender on the slowest rank of the group: a sample of so many
    calls per round, all contenders in turn. One more round comes first, which does not count."""
    samples: dict[K, list[float]] = {name: [] for name in contenders}
    for name in in_turn(contenders, 1 + rounds):
        samples[name].append(sample_s(contenders[name], calls))
    slowest = torch.tensor([found[1:] for found in samples.values()], dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return dict(zip(samples, slowest.tolist(), strict=True))


def medians(samples: Mapping[K, Iterable[float]]) -> dict[K, float]:
    return {name: statistics.median(found) for name, found in samples.items()}


def machine() -> dict[str, Any]:
    """Where and with what this was measured."""
    return {
        "date": datetime.date.today().isoformat(),
        **_gpu(),
        "cpu": cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "kernels": _C.cpu_kernels(),
        "fastreduce": fastreduce.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(terse=True),
    }


def _gpu() -> dict[str, Any]:
    if not torch.cuda.is_available():
        return {}
    count = torch.cuda.device_count()
    about = torch.cuda.get_device_properties(0)
    return {
        "gpu": f"{count} x {about.name}" if count > 1 else about.name,
        "gpu_memory_bytes": about.total_memory,
        "gpu_l2_bytes": about.L2_cache_size,
        "compute_capability": f"{about.major}.{about.minor}",
        "driver": _driver(),
        "cuda": torch.version.cuda,
    }


def _driver() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def preamble(about: Mapping[str, Any]) -> str:
    return "\n".join(f"# {key}: {value}" for key, value in about.items())


def bandwidth(nbytes: int, time_s: float, k: int, collective: str = "all_reduce") -> Row:
    """nccl-tests' columns: the time, algbw and busbw (`fastreduce.units.busbw`).

    ``nbytes`` are those of one rank's part; nccl-tests calls those of all parts the size of an
    all_gather or a reduce_scatter, and has the same busbw.
    """
    to_others = (k - 1) * nbytes
    moved = {"broadcast": nbytes, "all_gather": to_others, "reduce_scatter": to_others}
    rate = moved[collective] / time_s if collective in moved else busbw(nbytes, time_s, k)
    return {
        "time_s": time_s,
        "algbw_gb_per_s": nbytes / time_s / 1e9,
        "busbw_gb_per_s": rate / 1e9,
    }


def write(path: Path, content: Mapping[str, Any], indent: int | None = None) -> None:
    """Write it whole, so that a run that is killed leaves the earlier file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(content, indent=indent) + "\n")


def save(path: Path, content: Mapping[str, Any]) -> None:
    write(path, content, indent=1)
    print(f"# wrote {path}")


def size_bytes(text: str) -> int:
    """``256``, ``64K``, ``256M`` or ``1G``: powers of 1,024, as nccl-tests reads its -b and -e. For
    `fastreduce.units.parse_size` 64K are 64,000 bytes.
    """
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    number, unit = (text[:-1], units[text[-1].upper()]) if text[-1:].upper() in units else (text, 1)
    return at_least(1)(number) * unit


def stem(text: str) -> Path:
    """What argparse reads --out with: OUT.json can be written, which is asked before anything is
    measured. Behind another dot OUT would lose its end, and with it the difference to others."""
    path = Path(text)
    if path.suffix not in ("", ".json", ".png"):
        raise argparse.ArgumentTypeError(f"found {text!r}, wanted a name without {path.suffix!r}")
    if reason := why_not_writable(path.with_suffix(".json")):
        raise argparse.ArgumentTypeError(reason)
    return path


def at_least(least: int) -> Callable[[str], int]:
    """What argparse reads an argument with that is a whole number, ``least`` or more."""

    def whole_number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"found {text}, wanted {least} or more")
        return int(text)

    return whole_number


def parser_of_sizes(doc: str | None, *, rounds: int) -> argparse.ArgumentParser:
    """nccl-tests' flags for sizes, ranks and rounds, and where to write; a script adds its own."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-b", type=size_bytes, default=1 << 10, help="smallest size (1K)")
    parser.add_argument("-e", type=size_bytes, help="largest size, bytes per rank")
    parser.add_argument("-f", type=at_least(2), default=4, help="factor from size to size (4)")
    count, threads = at_least(1), torch.get_num_threads()
    parser.add_argument("-n", type=count, default=rounds, help=f"rounds; median shown ({rounds})")
    parser.add_argument("-k", type=count, nargs="+", default=[2, 4, 8], help="numbers of ranks")
    parser.add_argument("-t", type=count, default=threads, help="CPU threads (all)")
    parser.add_argument("--out", type=stem, help="write OUT.json and OUT.png")
    return parser


def check_elements(
    parser: argparse.ArgumentParser, smallest: int, dtypes: Iterable[torch.dtype]
) -> None:
    """End with words where a size has no element: there is nothing to measure."""
    for dtype in dtypes:
        if smallest < dtype.itemsize:
            name = str(dtype).removeprefix("torch.")
            parser.error(f"found -b {smallest}, wanted at least {dtype.itemsize}, of one {name}")


def sizes_bytes(smallest: int, largest: int, factor: int) -> Iterator[int]:
    if smallest > largest:
        raise SystemExit(f"found sizes from {smallest} to {largest} bytes, wanted -b up to -e")
    size = smallest
    while size <= largest:
        yield size
        size *= factor
