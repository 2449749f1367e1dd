"""The modes that torch keeps for each thread, for work that another thread does for this one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import torch

from fastreduce import _C


def modes_of_this_thread() -> Callable[[], AbstractContextManager[None]]:
    """Makes a context manager that gives another thread what this one has now: gradients on or
    off, inference mode, autocast, how floats are rounded and whether denormals are flushed to zero,
    and the current CUDA device and streams.
    """
    floats = _C.FloatModes()
    inference, gradients = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
    autocasts = [
        (device, torch.get_autocast_dtype(device), torch.is_autocast_cache_enabled())
        for device in ("cpu", "cuda")
        if torch.is_autocast_enabled(device)
    ]
    initialized = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    gpus = range(torch.cuda.device_count()) if initialized else range(0)
    # On a GPU without a context nothing runs, and making a stream current there would create one,
    # which takes hundreds of MB of its memory.
    used = [gpu for gpu in gpus if torch._C._cuda_hasPrimaryContext(gpu)]  # type: ignore[attr-defined]
    streams = [torch.cuda.current_stream(gpu) for gpu in used]
    current = torch.cuda.current_device() if gpus else None

    @contextmanager
    def modes() -> Iterator[None]:
        with ExitStack() as stack:
            stack.callback(_C.FloatModes().set)
            floats.set()
            stack.enter_context(torch.inference_mode(inference))
            stack.enter_context(torch.set_grad_enabled(gradients))
            for device, dtype, cached in autocasts:
                stack.enter_context(torch.autocast(device, dtype, cache_enabled=cached))
            for stream in streams:
                # On its own device: when it ends, torch.cuda.stream makes a stream of the device
                # from before current again, which creates a context there.
                stack.enter_context(torch.cuda.device(stream.device))
                stack.enter_context(torch.cuda.stream(stream))
            if current is not None:  # unlike torch.cuda.device, this creates no context
                before = torch.cuda._maybe_exchange_device(current)
                stack.callback(torch.cuda._maybe_exchange_device, before)
            yield

    return modes
