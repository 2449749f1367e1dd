"""Memory that a step has freed is there for the next one."""

import pytest
import torch
from subprocesses import output_of

from fastreduce import _C
from fastreduce.parallel.at_once import ShardThreads

CODE = """
import resource, torch
from concurrent.futures import ThreadPoolExecutor
from fastreduce import _C
from fastreduce.parallel.at_once import ShardThreads

def use(times):
    for _ in range(times):
        kept = [torch.ones(1 << 18) for _ in range(150)]  # 1 MiB each
        del kept

def faults():
    use(10)  # memory is fetched once more
    begin = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    use(20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - begin

def faults_of_a_thread():  # which takes its memory from heaps of 64 MiB
    with ThreadPoolExecutor(1) as other:
        return other.submit(faults).result()

before = faults_of_a_thread()
"""
# Each block is mapped for itself, and goes back when it is freed.
NOTHING_IS_KEPT = [
    {"MALLOC_MMAP_THRESHOLD_": "65536"},
    {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=65536"},
]


def test_freed_memory_is_kept_for_the_next_step():
    code = CODE + "_C.keep_freed_memory(); print(before, faults_of_a_thread())"
    before, after = map(int, output_of(code, **NOTHING_IS_KEPT[0]).split())
    assert after < 100 < 1000 < before


@pytest.mark.parametrize("variable", NOTHING_IS_KEPT)
def test_but_not_where_the_user_has_said_what_is_kept(variable):
    code = CODE + "ShardThreads(2, meet=False).get(); print(before, faults_of_a_thread())"
    before, after = map(int, output_of(code, **variable).split())
    assert min(before, after) > 100_000


def test_it_is_asked_for_once(monkeypatch):
    calls = []
    for variable in (*NOTHING_IS_KEPT[0], *NOTHING_IS_KEPT[1]):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(_C, "keep_freed_memory", lambda: calls.append(1))
    torch.set_num_threads(2)
    threads = ShardThreads(2, meet=False)
    assert threads.get() == threads.get() and calls == [1]
