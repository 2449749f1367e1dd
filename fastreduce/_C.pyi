"""The extension built from csrc/."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch

class Schedule:
    def __init__(
        self,
        ranks: int,
        buffers: int,
        shards: int,
        instructions: Sequence[tuple[int, int, Sequence[int], Sequence[int], bool, Sequence[int]]],
        launches: Sequence[Sequence[int]],
        whole_tensors: bool,
        sliced: int = 0,
    ) -> None: ...

def run(collective: str, outputs: Any, inputs: Any, op: Any, root: Any, algorithm: Any) -> None: ...
def place(devices: Sequence[torch.device]) -> str: ...
def size_class(nbytes: int) -> int: ...
def slices(nbytes: int, shards: int, one_step: bool) -> int: ...
def forget_schedules() -> None: ...
def cpu_kernels() -> str: ...
def is_read_only(capsule: object) -> bool: ...
def replicate(
    params: Sequence[torch.Tensor], memories: Sequence[Sequence[torch.Tensor]], name: str
) -> list[list[torch.Tensor]]: ...
def ops() -> dict[str, list[torch.dtype]]: ...
def set_lane_per_rank(on: bool) -> None: ...
def process_backend(
    rank: int,
    names: Sequence[str],
    timeout: timedelta,
    shared_bytes: int,
    exchange: Callable[[str], Sequence[str]],
    rest: Any,
    machines: Sequence[tuple[str, Sequence[int]]] = ...,
    across: Any = None,
) -> Any: ...
def shared_empty(sizes: Sequence[int], dtype: torch.dtype) -> torch.Tensor: ...
def set_share_device_memory(share: bool) -> None: ...

cuda_engines: bool
built_for_torch: str
compiler: str
