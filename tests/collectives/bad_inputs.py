"""Tensors, and what is taken for tensors, that no call may write, and how that is checked."""

import numpy as np
import pytest
import torch
from reference import bytes_of

f32, f64, i32 = torch.float32, torch.float64, torch.int32


def ones(*shape, dtype=f32, **options):
    return torch.ones(shape, dtype=dtype, **options)


def of(dtype, *shape):
    return [torch.ones(shape or 4, dtype=torch.uint8).to(dtype) for _ in range(2)]


def lists(*elems):
    """Of two ranks."""
    return [[ones(n) for n in elems] for _ in range(2)]


def read_only():
    array = np.ones(3, np.float32)
    array.setflags(write=False)
    return array


def on(device):
    return ones(3, device=device)


def learned(elems=3):
    return ones(elems, requires_grad=True)


def inferred():
    with torch.inference_mode():
        return ones(3)


def quantized():
    return torch.quantize_per_tensor(ones(3), 0.1, 0, torch.qint8)


def freed(begin=0, left_bytes=0):
    """Three elements of a storage of which so much is left."""
    tensor = ones(3 + begin)[begin:]
    tensor.untyped_storage().resize_(left_bytes)
    return tensor


def nested():
    return torch.nested.nested_tensor([ones(2), ones(3)])


class Jax(np.ndarray):
    """An array of JAX's, as far as it matters here: which package its type is from."""

    __module__ = "jaxlib._jax"


class Flagged:
    """Exports a tensor of its own through DLPack, with the read-only flag that NumPy can set."""

    def __init__(self, writable=False):
        self.array = np.ones(3, np.float32)
        self.array.setflags(write=writable)

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class Wrapper(torch.Tensor):
    """A subclass that holds another tensor and knows few operations."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, device="meta")

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise NotImplementedError(f"{function} of a Wrapper")


class Declining(Wrapper):
    """A subclass that leaves to others what it does not know."""

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return NotImplemented


class Apart(Wrapper):
    """As DTensor: what it knows, it wants for itself."""

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise RuntimeError(f"{function} got mixed torch.Tensor and Apart")


class Plain(torch.Tensor):
    """A subclass with a tensor's own memory."""


def jagged():
    return torch.nested.nested_tensor([ones(2), ones(3)], layout=torch.jagged)


def views(*cuts):
    memory = torch.arange(12.0)
    return [cut(memory) for cut in cuts]


def failing():
    """As a generator of gradients whose author made a mistake."""
    yield ones(3)
    raise ZeroDivisionError("no gradient")


def tied():
    weight = ones(3)
    return [[weight, ones(2), weight], [ones(3), ones(2), ones(3)]]


def windows():
    return torch.arange(6.0).as_strided((4, 3), (1, 1))


def assert_refused(call, arguments, exception, *words):
    """It raises `exception` with these words, and has written nothing."""
    arguments = arguments()
    before = bytes_of(arguments)
    with pytest.raises(exception) as caught:
        call(*arguments)
    assert type(caught.value) is exception
    for word in words:
        assert word in str(caught.value), caught.value
    assert bytes_of(arguments) == before
