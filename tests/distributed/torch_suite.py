"""torch's own tests of torch.distributed, many of them in one set of processes.

Torch starts the processes anew for every test, which takes most of the time.
"""

import importlib
import os
import traceback
import unittest
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import fastreduce.distributed  # noqa: F401 - the backend

# Torch's tests that cannot pass, where Gloo's do, by the reason; each is the beginning of a name.
EXCEPTED = {
    "torch calls every other backend 'custom' there": ["test_ddp_logging_data_cpu"],
    "torch has monitored_barrier for the backend whose name is gloo": ["test_monitored_barrier"],
    "in profiles, what Gloo does for us has Gloo's name": [
        *("test_isend_autograd_profiler", "test_isend_torch_profiler"),
        *("test_send_recv_autograd_profiler", "test_send_recv_torch_profiler"),
        *("test_send_recv_any_source_autograd", "test_send_recv_any_source_torch"),
        *("test_send_recv_with_tag_autograd", "test_send_recv_with_tag_torch"),
    ],
}


def load(size, folder):
    """The module, for groups of so many processes; while it decides what to skip, for gloo."""
    os.environ |= {
        **{"BACKEND": "gloo", "WORLD_SIZE": str(size), "TEMP_DIR": str(folder)},
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "IN_CI": "0"},
    }
    return importlib.import_module("torch.testing._internal.distributed.distributed_test")


def run(rank, size, folder, backend, tests=None):
    """These tests, or all but those excepted: "passed", "skipped" or why not, to a file."""
    module = load(size, folder)
    base = module.DistributedTest._DistTestBase
    if tests is None:
        every = unittest.TestLoader().getTestCaseNames(base)
        excepted = tuple(name for names in EXCEPTED.values() for name in names)
        possible = [x for x in every if not x.startswith(excepted)]
        tests = [x for x in possible if not hasattr(getattr(base, x), "__unittest_skip__")]
    module.PROFILING_SUPPORTED_BACKENDS.append(backend)
    module.SEND_RECV_PROFILING_SUPPORTED_BACKENDS.append(backend)

    class Case(module.TestDistBackend, base):
        pass

    found = {}
    for name in tests:
        dist.destroy_process_group()
        # These know of no other backend that has CPU tensors. The group is ours all the same.
        by_name = name.startswith("test_accumulate_gradients_no_sync")
        module.BACKEND = "gloo" if by_name else backend
        own = Path(folder, name)
        for part in ("barrier", "test_dir", "init_dir"):
            (own / part).mkdir(parents=True, exist_ok=True)
        os.environ["TEMP_DIR"] = str(own)
        module.Barrier.barrier_id = 0
        dist.init_process_group(
            backend, f"file://{own}/meeting", timedelta(seconds=60), rank=rank, world_size=size
        )
        found[name] = _outcome(Case(name), name, rank, f"{own}/suite")
        torch.save(found, f"{folder}/found-{rank}")


def _outcome(case, name, rank, file_name):
    case.rank, case.file_name = rank, file_name
    torch.manual_seed(0)
    try:
        case._barrier()  # who skips the test closes connections that others are only making
        getattr(case, name)()
        case._barrier()
    except (unittest.SkipTest, SystemExit) as skipped:
        return f"skipped: {skipped}"
    except BaseException:
        return traceback.format_exc()
    return "passed"
