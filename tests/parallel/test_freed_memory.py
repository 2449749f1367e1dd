"""Memory that a step has freed is there for the next one."""

import pytest
from subprocesses import output_of

CODE = """
import resource, torch
from concurrent.futures import ThreadPoolExecutor
from fastreduce.parallel.at_once import ShardThreads

def use(times):
    for _ in range(times):
        kept = [torch.ones(1 << 18) for _ in range(BLOCKS)]  # 1 MiB each
        del kept

def faults():
    use(10)  # memory is fetched once more
    begin = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    use(20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - begin

found = []
for _ in range(2):
    with ThreadPoolExecutor(1) as other:
        found.append(other.submit(faults).result())
    ShardThreads(2, meet=False).get()
print(*found)
"""


# A thread takes its memory from heaps of 64 MiB. A rule of its own says when empty ones go back.
@pytest.mark.parametrize("blocks", [8, 150])
def test_freed_memory_is_kept_for_the_next_step(blocks):
    before, after = map(int, output_of(f"BLOCKS = {blocks}{CODE}").split())
    assert before > 1000 and after < before / 10


@pytest.mark.parametrize(
    "variable", [{"MALLOC_TOP_PAD_": "131072"}, {"GLIBC_TUNABLES": "glibc.malloc.top_pad=131072"}]
)
def test_but_not_where_the_user_has_said_what_is_kept(variable):
    before, after = map(int, output_of(f"BLOCKS = 8{CODE}", **variable).split())
    assert min(before, after) > 1000
