"""The extension built from csrc/."""

from collections.abc import Sequence
from typing import Any

class Program:
    def __init__(
        self,
        ranks: int,
        buffers: int,
        shards: int,
        instructions: Sequence[tuple[int, int, Sequence[int], Sequence[int], bool, Sequence[int]]],
        launches: Sequence[Sequence[int]],
        whole_tensors: bool,
    ) -> None: ...
    def slices(self, nbytes: int) -> int: ...

def run(collective: str, outputs: Any, inputs: Any, op: Any, root: Any, algorithm: Any) -> None: ...
def forget_programs() -> None: ...
def cpu_kernels() -> str: ...
def set_lane_per_rank(on: bool) -> None: ...

cuda_engines: bool
built_for_torch: str
compiler: str
