"""How fast is the backend "fastreduce" of torch.distributed, and Gloo beside it?

Processes of one machine, one thread each, through torch.distributed's functions; or, with
--machines, network namespaces as machines of two processes each, at links that tc slows down (needs
root, ip and tc). Each result is compared with what it must be before it is timed. All contenders
take turns in one run, in another order in each round; the time of a call is that of the slowest
rank, the median over rounds.

    python benchmarks/processes.py                                   # a minute
    python benchmarks/processes.py -k 2 4 --out benchmarks/results/processes
    sudo python benchmarks/processes.py --machines 2 3 --rate-mbit 1000
    python benchmarks/processes.py --device cuda -e 256M              # all ranks on one GPU
    pip install mpich mpi4py; python benchmarks/processes.py          # and MPI, called directly,
                                                                     # if each rank has a core

"in place" are tensors of fastreduce.distributed.empty; "one process" is fastreduce.allreduce on the
tensors of all ranks, with a thread for each: the limit of what processes can reach. "through the
CPU" is what tensors on GPUs get that cannot share their memory. "bytes" are those of one rank's
part, and algbw is theirs over the time; busbw is that of nccl-tests for each collective.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

import torch
import torch.distributed as dist
from measure import (
    at_least,
    bandwidth,
    check_elements,
    machine,
    medians,
    parser_of_sizes,
    preamble,
    save,
    sizes_bytes,
    slowest_s,
)
from namespaces import missing_commands, namespaces, start_in
from processes_picture import ON_EACH, draw
from rows import Row

import fastreduce
from fastreduce import _C
from fastreduce.distributed import empty, register

COLLECTIVES = ("all_reduce", "broadcast", "all_gather", "reduce_scatter")
MPI_RANK = "PMI_RANK"  # as mpiexec of MPICH calls it
CALLS_BYTES = 4 << 20  # a sample is as many calls as move this, at most 200


# By collective, what is called with a rank's part and with the tensor of all ranks' parts.
Calls = dict[str, Callable[[torch.Tensor, torch.Tensor], Any]]


def calls_of_torch(group: Any) -> Calls:
    return {
        "all_reduce": lambda x, _: dist.all_reduce(x, group=group),
        "broadcast": lambda x, _: dist.broadcast(x, 0, group=group),
        "all_gather": lambda x, whole: dist.all_gather_into_tensor(whole, x, group=group),
        "reduce_scatter": lambda x, whole: dist.reduce_scatter_tensor(x, whole, group=group),
    }


def calls_of_mpi() -> Calls:
    from mpi4py.MPI import COMM_WORLD, IN_PLACE

    return {
        "all_reduce": lambda x, _: COMM_WORLD.Allreduce(IN_PLACE, x.numpy()),
        "broadcast": lambda x, _: COMM_WORLD.Bcast(x.numpy(), 0),
        "all_gather": lambda x, whole: COMM_WORLD.Allgather(x.numpy(), whole.numpy()),
        "reduce_scatter": lambda x, whole: COMM_WORLD.Reduce_scatter_block(
            whole.numpy(), x.numpy()
        ),
    }


def call_of(collective: str, make: Any, elems: int, calls: Calls) -> Callable[[], None]:
    """A call on tensors from ``make``, whose result was right once; ``elems`` are of one rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    total = size * (size + 1) / 2
    x, whole = make(elems), make(elems * size)
    device = x.device
    run = partial(calls[collective], x, whole)
    wanted = {"broadcast": 1.0, "all_gather": None}.get(collective, total)
    result = x if wanted else whole
    x.fill_(rank + 1)
    whole.fill_(rank + 1)
    run()
    ranks = torch.arange(1.0, size + 1, device=device)
    right = torch.full_like(x, wanted) if wanted else ranks
    if not torch.equal(result, right if wanted else right.repeat_interleave(elems)):
        raise SystemExit(f"{collective} of {elems} elements is wrong on rank {rank}")
    x.zero_()
    return run


def one_process(make: Any, elems: int, size: int) -> Callable[[], None]:
    """The same sum in rank 0 alone, while the others wait."""
    tensors = [make(elems).zero_() for _ in range(size)] if dist.get_rank() == 0 else []

    def run() -> None:
        if tensors:
            torch.set_num_threads(size)
            fastreduce.allreduce(tensors)
            torch.set_num_threads(1)

    return run


def rows_of(
    collective: str, nbytes: int, rounds: int, device: str, groups: dict[str, Any]
) -> Iterator[Row]:
    size, elems = dist.get_world_size(), nbytes // 4
    nbytes = 4 * elems  # what is left of an odd size, as in nccl-tests
    plain = partial(torch.empty, device=device)
    own = calls_of_torch(None)
    # By name, how tensors are made and what is called.
    found = {"fastreduce": (plain, own), "gloo": (plain, calls_of_torch(groups["gloo"]))}
    if device == "cpu":
        found["fastreduce in place"] = (empty, own)
    else:
        found["through the CPU"] = (plain, calls_of_torch(groups["through the CPU"]))
    if MPI_RANK in os.environ:
        found["mpi"] = (plain, calls_of_mpi())
    contenders = {
        name: call_of(collective, make, elems, calls) for name, (make, calls) in found.items()
    }
    if collective == "all_reduce":
        contenders["one process"] = one_process(plain, elems, size)
    calls = max(1, min(200, CALLS_BYTES // nbytes))
    times_s = medians(slowest_s(contenders, calls, rounds))
    for name, time_s in times_s.items():
        row = {"k": size, "collective": collective, "contender": name, "nbytes": nbytes}
        speed = bandwidth(nbytes, time_s, size, collective)
        yield {**row, **speed, "over_gloo": times_s["gloo"] / time_s}


def work(settings: dict[str, Any], path: Path) -> None:
    """What each rank does; rank 0 writes the rows."""
    torch.set_num_threads(1)
    register()
    for ours, of_mpi in (("RANK", MPI_RANK), ("WORLD_SIZE", "PMI_SIZE")):
        os.environ.setdefault(ours, os.environ.get(of_mpi, ""))
    dist.init_process_group("fastreduce")
    groups = {"gloo": dist.new_group(backend="gloo")}
    if settings["device"] != "cpu":
        _C.set_share_device_memory(False)
        groups["through the CPU"] = dist.new_group()
        _C.set_share_device_memory(True)
    rows = [
        row
        for collective in settings["collectives"]
        for nbytes in settings["sizes"]
        for row in rows_of(collective, nbytes, settings["rounds"], settings["device"], groups)
    ]
    if dist.get_rank() == 0:
        path.write_text(json.dumps(rows))
    dist.destroy_process_group()


def in_processes(k: int, settings: dict[str, Any], path: Path) -> None:
    """Started by MPI where it is installed, so that it can take part."""
    # Else the threads of "one process" spin for a while after its call, on the others' time.
    os.environ["OMP_WAIT_POLICY"] = "passive"
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29411"}
    beside_python = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    # MPICH's ranks keep their cores while they wait; and it is asked for tensors of the CPU alone.
    can = settings["device"] == "cpu" and k <= (os.cpu_count() or 1)
    has_mpi = can and find_spec("mpi4py")
    mpiexec = which("mpiexec", path=beside_python) if has_mpi else None
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node"]
    start = [mpiexec, "-n"] if mpiexec else torchrun
    subprocess.run([*start, str(k), *worker(settings, path)], check=True)


def worker(settings: dict[str, Any], path: Path) -> list[str]:
    return [sys.executable, "-W", "ignore", __file__, "--worker", json.dumps(settings), str(path)]


def on_machines(count: int, rate_mbit: int, settings: dict[str, Any], path: Path) -> None:
    with namespaces(count, rate_mbit) as names:
        started = [
            start_in(name, worker(settings, path), {"RANK": rank, "WORLD_SIZE": ON_EACH * count})
            for i, name in enumerate(names)
            for rank in range(ON_EACH * i, ON_EACH * (i + 1))
        ]
        if any(process.wait() for process in started):
            raise SystemExit("a rank failed")


def table(rows: list[Row]) -> Iterator[str]:
    """nccl-tests' columns."""
    header = f"{'bytes':>10}{'time us':>11}{'algbw':>8}{'busbw':>8}{'over gloo':>11}"
    yield f"{'k':>2} {'collective':<15}{'contender':<22}{header}"
    for x in rows:
        rates = f"{x['algbw_gb_per_s']:>8.2f}{x['busbw_gb_per_s']:>8.2f}{x['over_gloo']:>11.2f}"
        size = f"{x['nbytes']:>10}{1e6 * x['time_s']:>11.1f}"
        yield f"{x['k']:>2} {x['collective']:<15}{x['contender']:<22}{size}{rates}"


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        work(json.loads(sys.argv[2]), Path(sys.argv[3]))
        return
    parser = parser_of_sizes(__doc__, rounds=9)
    parser.set_defaults(k=[2])
    parser.add_argument("--collectives", nargs="+", choices=COLLECTIVES, default=COLLECTIVES)
    parser.add_argument(
        "--machines", type=at_least(1), nargs="+", help="so many, of two processes each"
    )
    parser.add_argument(
        "--rate-mbit", type=at_least(1), default=1000, help="of their links (default: 1000)"
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="of all ranks")
    args = parser.parse_args()
    check_elements(parser, args.b, [torch.float32])
    if args.device == "cuda":
        # Gloo has not the others for GPUs.
        args.collectives = [x for x in args.collectives if x in ("all_reduce", "broadcast")]
    if args.machines and (missing := missing_commands()):
        parser.error(f"--machines needs {missing}")
    about = machine() | {"threads": 1} | ({"rate_mbit": args.rate_mbit} if args.machines else {})
    print(preamble(about))
    settings = {"collectives": [*args.collectives], "rounds": args.n, "device": args.device}
    settings["sizes"] = list(sizes_bytes(args.b, args.e or 64 << 20, args.f))
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.json")
        for count in args.machines or args.k:
            if args.machines:
                on_machines(count, args.rate_mbit, settings, path)
            else:
                in_processes(count, settings, path)
            rows += json.loads(path.read_text())
    print(*table(rows), sep="\n")
    if args.out:
        save(args.out.with_suffix(".json"), {"machine": about, "rows": rows})
        draw(rows, about, args.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
