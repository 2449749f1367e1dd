"""Memory that a step has freed is there for the next one."""

from subprocesses import output_of

CODE = """
import resource, torch
from fastreduce.parallel.at_once import ShardThreads

def faults():
    begin = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        kept = [torch.ones(1 << 18) for _ in range(8)]  # 1 MiB each
        del kept
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - begin

before = faults()
ShardThreads(2, meet=False).get()
faults()  # memory is fetched once more
print(before, faults())
"""


def test_freed_memory_is_kept_for_the_next_step():
    before, after = map(int, output_of(CODE).split())
    assert after < 100 < 1000 < before
