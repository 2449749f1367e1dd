"""Which devices replicas run on, and which replica is on which device."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fastreduce import _C

CPU = torch.device("cpu")


def usable_devices(names: Sequence[str] | None = None) -> list[torch.device]:
    """Return the devices of these names; without names all GPUs, or the CPU if there is none.

    GPUs count only if fastreduce was built with its CUDA engines.

    Raises ValueError for a name that is not a device, or not one of this machine.

    >>> usable_devices(["cpu", "cpu"])
    [device(type='cpu'), device(type='cpu')]
    """
    if names is None:
        count = torch.cuda.device_count() if _C.cuda_engines else 0
        return [torch.device("cuda", i) for i in range(count)] or [CPU]
    return [_usable_device(name) for name in names]


def _usable_device(name: str) -> torch.device:
    each = name.replace(",", " ").split()
    if len(each) > 1:
        raise ValueError(
            f"devices: found {name!r}, wanted each device by itself: --devices {' '.join(each)} in "
            f"a shell, {each} in Python"
        )
    try:
        probe = torch.zeros((), device=name)
        # Read back, because the "meta" device makes tensors, but no values.
        probe.item()
    # What torch raises depends on what is missing; a build without CUDA raises AssertionError.
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        here = ", ".join(map(str, usable_devices()))
        raise ValueError(
            f"devices: found {name!r}, which cannot be used here ({reason}), wanted such as {here}"
        ) from None
    if probe.device.type not in ("cpu", "cuda"):
        raise ValueError(f"devices: found {name!r}, wanted cpu or cuda devices")
    if probe.is_cuda and not _C.cuda_engines:
        raise ValueError(
            f"devices: found {name!r}, but this build of fastreduce has no CUDA engines; "
            "FASTREDUCE_CUDA=1 pip install builds them, or says what is missing"
        )
    return probe.device


def default_replicas(devices: Sequence[torch.device]) -> int:
    """Return one replica per device, but two where the only device is the CPU.

    >>> default_replicas([CPU])
    2
    """
    return 2 if list(devices) == [CPU] else len(devices)


def deal_devices(devices: Sequence[torch.device], replicas: int) -> tuple[torch.device, ...]:
    """Return the device of each of ``replicas``, dealt out over ``devices`` in turn.

    Raises ValueError if a device would get no replica.

    >>> deal_devices([CPU], 2)
    (device(type='cpu'), device(type='cpu'))
    """
    if replicas < max(1, len(devices)):
        raise ValueError(
            f"replicas: found {replicas}, wanted at least {max(1, len(devices))}, one per device"
        )
    return tuple(devices[i % len(devices)] for i in range(replicas))
