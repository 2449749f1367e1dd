"""Processes that begin with torch imported: they are forks of one that has imported it."""

import contextlib
import faulthandler
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from datetime import timedelta
from multiprocessing import get_context

import torch
import torch.distributed as dist
from torch.multiprocessing import start_processes

import fastreduce.distributed.backend as making

# torch.optim and DistributedDataParallel import the second when they are first used, for seconds.
IMPORTED = ["fastreduce.distributed", "torch._dynamo"]


def preload(function):
    """The context of processes that are forks of one that has imported the function's module."""
    context = get_context("forkserver")
    context.set_forkserver_preload([*IMPORTED, function.__module__])
    return context


def in_a_group(
    scenario,
    args,
    count,
    folder,
    killed=None,
    backend="gloo",
    timeout_s=60,
    within_s=120,
    machines=1,
):
    """``scenario(rank, *args)`` in the processes of a group; raises what fails in one of them.

    ``timeout_s`` is the group's. ``killed`` ends by a signal, and the others go on. Nothing takes
    more than ``within_s``. The processes take themselves for those of so many ``machines``.
    """
    preload(scenario)
    own = (scenario, args, count, str(folder), killed, backend, timeout_s, machines)
    context = start_processes(_in_group, own, count, join=False, start_method="forkserver")
    end = time.monotonic() + within_s
    for rank, process in enumerate(context.processes):
        if rank != killed:
            process.join(max(0, end - time.monotonic()))
    if killed is not None:
        context.processes[killed].join(0.1)
    hung = [rank for rank, process in enumerate(context.processes) if process.exitcode is None]
    pids = {rank: context.processes[rank].pid for rank in hung if rank != killed}
    hangs = {rank: f"hangs: {_stacks(pid, folder, rank)}" for rank, pid in pids.items()}
    for rank in hung:
        context.processes[rank].kill()  # ends also one that is stopped
    failed = {r: torch.load(folder / str(r)) for r in range(count) if (folder / str(r)).exists()}
    failed |= hangs
    ended = [r for r in range(count) if r not in failed and r != killed]
    failed |= {r: f"ended with {context.processes[r].exitcode}" for r in ended}
    assert not any(failed.values()), "\n".join(f"rank {r}: {x}" for r, x in failed.items() if x)
    if killed is not None:
        assert hung or context.processes[killed].exitcode == -signal.SIGKILL


def _stacks(pid, folder, rank):
    """Where all threads of a process are, as far as it still tells."""
    with contextlib.suppress(ProcessLookupError):  # it has just ended
        os.kill(pid, signal.SIGUSR1)
    time.sleep(0.2)
    told = folder / f"stacks{rank}"
    return (told.exists() and told.read_text()) or "it does not tell where"


def _in_group(rank, scenario, args, count, folder, killed, backend, timeout_s, machines):
    stacks = os.open(f"{folder}/stacks{rank}", os.O_WRONLY | os.O_CREAT)
    faulthandler.register(signal.SIGUSR1, stacks)
    torch.set_num_threads(1)
    if machines > 1:
        making.machine = lambda: f"machine{rank * machines // count}"
    meeting = f"file://{folder}/meeting"
    limit = timedelta(seconds=timeout_s)
    failed = ""
    try:
        dist.init_process_group(backend, meeting, limit, rank=rank, world_size=count)
        scenario(rank, *args)
    except BaseException:
        failed = traceback.format_exc()
    torch.save(failed, f"{folder}/{rank}")
    if killed is None and dist.is_initialized():
        dist.destroy_process_group()


def begin(function, *args, said, **environment):
    """A process that calls a function, in an environment, and appends to a file what it says."""
    own = (function, args, str(said), environment)
    process = preload(function).Process(target=_call, args=own, daemon=True)
    process.start()
    return process


def _call(function, args, said, environment):
    torch.set_num_threads(1)
    os.environ.update(environment)
    file = os.open(said, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(file, stream.fileno())
    sys.stdout.reconfigure(line_buffering=True)
    sys.exit(function(*args))


def as_by_torchrun(function, *args, processes=2, status=0):
    """What both streams of processes got that call a function in the environment of torchrun's.

    Each must end by itself: torchrun ends the others when one fails.
    """
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = {
        "WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    with tempfile.NamedTemporaryFile("r") as said:
        ranks = [
            begin(function, *args, said=said.name, RANK=str(i), LOCAL_RANK=str(i), **environment)
            for i in range(processes)
        ]
        for rank in ranks:
            rank.join(60)
        ended = [rank.exitcode for rank in ranks]
        for rank in ranks:
            rank.kill()
        text = said.read()
    assert ended == [status] * processes, text
    return text


def torchrun(*program, processes=2, restarts=0, status=0):
    """What both streams of a program under torchrun got."""
    flags = ["--standalone", "--nproc-per-node", str(processes), "--max-restarts", str(restarts)]
    flags += ["--log-dir", os.devnull]  # or it leaves a folder behind
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *flags, *map(str, program)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == status, done.stdout
    return done.stdout
