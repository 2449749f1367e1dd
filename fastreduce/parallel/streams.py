"""The streams of several GPUs in a thread of autograd's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

import torch


class Streams:
    """Those of these devices that are current when this is made, in a forward pass.

    Autograd calls a backward function on the stream of its first output, when the gradients of all
    of them are there. On other GPUs the default streams are current in that thread, which know
    nothing of the gradients, and which no capture may use.
    """

    def __init__(self, devices: Iterable[torch.device]) -> None:
        gpus = dict.fromkeys(device for device in devices if device.type == "cuda")
        self._streams = [torch.cuda.current_stream(gpu) for gpu in gpus]

    @contextmanager
    def current(self) -> Iterator[None]:
        """In here they are current again, and all of them come after the gradients."""
        with ExitStack() as stack:
            for stream in self._streams[1:]:
                stream.wait_stream(self._streams[0])
                stack.enter_context(torch.cuda.stream(stream))
            yield
