"""Python threads, the GIL, and forked processes."""

import ctypes
import sys
import threading

import pytest
import torch
from reference import assert_same, noise, origin, reduced, threads
from subprocesses import output_of

import fastreduce
from fastreduce import Program, allreduce
from fastreduce.algorithms import leader, registry


def in_threads(works):
    """Run all at once; errors of any come out."""
    errors, barrier = [], threading.Barrier(len(works))

    def run(work):
        try:
            barrier.wait()
            work()
        except BaseException as error:
            errors.append(error)

    started = [threading.Thread(target=run, args=[work]) for work in works]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.parametrize("algorithm", ["leader", "sharded", "ring"])
def test_calls_from_several_threads_on_different_tensors(algorithm):
    def repeatedly(k, dtype):
        for size in (3, 1000, 50_000):
            tensors = origin(k, (size,), dtype)
            wanted = reduced("sum", tensors)
            for _ in range(10):
                copies = [x.clone() for x in tensors]
                allreduce(copies, algorithm=algorithm)
                assert_same(copies[-1], wanted)

    kinds = [(k, dtype) for k in (2, 3, 5) for dtype in (torch.float32, torch.float16)]
    in_threads([lambda kind=kind: repeatedly(*kind) for kind in kinds])


def test_control_errors_in_threads_come_out():
    with pytest.raises(ValueError, match="no ranks"):
        in_threads([lambda: allreduce([]), lambda: None])


def test_the_first_use_of_an_algorithm_may_be_in_all_threads_at_once():
    verified = []

    class Counted(Program):
        def verify(self, goal=None):
            verified.append(self.k)
            super().verify(goal)

    @fastreduce.algorithm("raced")
    def raced(k):
        return Counted(k, 1, leader(k).instructions)

    try:
        ranks = [noise(3, (100,), torch.float32) for _ in range(8)]
        in_threads([lambda x=x: allreduce(x, algorithm="raced") for x in ranks])
        allreduce(noise(3, (4,), torch.float32), algorithm="raced")
    finally:
        del registry["raced"]
    assert 1 <= len(verified) <= 8
    for tensors in ranks:
        assert_same(tensors[2], reduced("sum", noise(3, (100,), torch.float32)))


def runs_during(work):
    """Whether another thread gets the GIL while ``work`` runs: as Python forces nobody to yield
    it (the switch interval is an hour), only if ``work`` gives it away."""
    gate, ran, interval = threading.Lock(), threading.Event(), sys.getswitchinterval()
    gate.acquire()

    def waiting():
        with gate:
            ran.set()

    thread = threading.Thread(target=waiting)
    thread.start()
    sys.setswitchinterval(3600)
    try:
        gate.release()
        for _ in range(100):  # the system may be slow to wake the thread, but not for ever
            work()
            if ran.is_set():
                return True
        return False
    finally:
        sys.setswitchinterval(interval)
        thread.join()


def test_the_gil_is_released_while_data_moves():
    tensors = noise(4, (1_000_000,), torch.float32)
    assert runs_during(lambda: allreduce(tensors, "max"))


def test_control_a_call_that_keeps_the_gil_shows():
    keep_for_a_millisecond = ctypes.PyDLL(None).usleep
    assert not runs_during(lambda: keep_for_a_millisecond(1000))


CHANGED_ENVIRONMENT = """
    import os, threading, time, torch, fastreduce

    torch.set_num_threads(1)
    ended, count = threading.Event(), 1000  # the more there are, the longer a look takes

    def call():
        tensors = [torch.zeros(2) for _ in range(2)]
        while not ended.is_set():
            fastreduce.allreduce(tensors)

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    end_s = time.monotonic() + 3
    while time.monotonic() < end_s:
        for number in range(count):  # each may move the array of all variables
            os.environ[f"ADDED_{number}"] = "x"
            others = [b"A" * (600 + 8 * (number + i)) for i in range(8)]  # in the memory it had
        for number in range(count):
            del os.environ[f"ADDED_{number}"]
    ended.set()
    for thread in threads:
        thread.join()
    print("went on")
"""


def test_another_thread_may_change_the_environment():
    assert output_of(CHANGED_ENVIRONMENT) == "went on"


FORKED = """
    import os, signal, torch, fastreduce
    from reference import assert_same, noise, reduced, threads

    def check():
        for size in (10, 100_003):
            tensors = noise(3, (size,), torch.float32)
            wanted = reduced("sum", tensors)
            fastreduce.allreduce(tensors)
            assert_same(tensors[1], wanted)

    with threads(2):
        check()  # the parent's threads exist now; the child has none of them
    child = os.fork()
    if child == 0:
        signal.alarm(100)  # a hang is a failure
        torch.set_num_threads(1)  # as DataLoader's workers do
        check()
        os._exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    with threads(2):
        check()
"""


@pytest.mark.sweep("processes")
@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_a_forked_child_can_call():
    assert output_of(FORKED) == "7"


FORKED_DURING_CALLS = """
    import os, signal, threading, torch, fastreduce

    ends, tensors = threading.Event(), [torch.ones(1) for _ in range(2)]

    def call():
        fastreduce.allreduce(tensors)

    def call_until_it_ends():
        own = [torch.ones(1) for _ in range(2)]
        while not ends.is_set():
            fastreduce.allreduce(own)

    call()
    thread = threading.Thread(target=call_until_it_ends)
    thread.start()
    found = set()
    for _ in range(400):
        child = os.fork()
        if child == 0:
            signal.alarm(100)  # a hang is a failure
            call()
            os._exit(7)
        found.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        if found != {7}:
            break
    ends.set()
    thread.join()
    print(found)
"""


@pytest.mark.sweep("processes")
@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_a_child_that_was_forked_during_calls_can_call():
    assert output_of(FORKED_DURING_CALLS) == "{7}"


LOADER = """
    import torch, fastreduce
    from torch.utils.data import DataLoader, Dataset

    class Sums(Dataset):
        def __len__(self):
            return 6
        def __getitem__(self, index):
            parts = [torch.full((50_000,), float(index)), torch.ones(50_000)]
            fastreduce.allreduce(parts)
            return parts[0].unique()

    Sums()[0]
    loader = DataLoader(Sums(), batch_size=3, num_workers=2, timeout=100)
    print([batch.flatten().tolist() for batch in loader])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
@pytest.mark.sweep("processes")
def test_a_data_loaders_workers_can_call():
    assert output_of(LOADER) == "[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]"


@pytest.mark.parametrize("count", [1, 2, 4])
def test_many_threads_of_python_on_many_of_torch(count):
    with threads(count):
        ranks = [noise(3, (60_000,), torch.float32) for _ in range(4)]
        in_threads([lambda x=x: allreduce(x) for x in ranks])
    for tensors in ranks:
        assert_same(tensors[0], reduced("sum", noise(3, (60_000,), torch.float32)))
