"""CuPy arrays are reduced where they lie, after what CuPy has enqueued on its current stream."""

import pytest
import torch
from places import SLEEP_CYCLES
from reference import assert_same, noise, reduced

from fastreduce import all_gather, allreduce, reduce_scatter

pytestmark = pytest.mark.gpu


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy")


def as_arrays(cupy, tensors):
    return [cupy.asarray(x.numpy()) for x in tensors]


def assert_hold(cupy, arrays, wanted):
    for array in arrays:
        assert_same(torch.from_numpy(cupy.asnumpy(array)), wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64], ids=str)
def test_without_a_copy(cupy, dtype):
    values = noise(3, (5003,), dtype)
    arrays = as_arrays(cupy, values)
    addresses = [x.data.ptr for x in arrays]
    allreduce(arrays)
    torch.cuda.synchronize()
    assert [x.data.ptr for x in arrays] == addresses
    assert_hold(cupy, arrays, reduced("sum", values))


def test_beside_tensors_and_in_lists(cupy):
    values = noise(2, (5003,), torch.float32)
    others = noise(2, (7, 3), torch.float32, seed=1)
    first = as_arrays(cupy, [values[0], others[0]])
    second = [values[1].cuda(), others[1].cuda()]
    allreduce([first, second])
    torch.cuda.synchronize()
    for array, tensor, whole in zip(first, second, (values, others), strict=True):
        assert_hold(cupy, [array], reduced("sum", whole))
        assert_same(tensor.cpu(), reduced("sum", whole))


def test_outputs_and_inputs(cupy):
    values = noise(2, (1000,), torch.float32)
    inputs, outputs = as_arrays(cupy, values), as_arrays(cupy, noise(2, (500,), torch.float32))
    reduce_scatter(outputs, inputs)
    all_gather(inputs, outputs)
    torch.cuda.synchronize()
    assert_hold(cupy, inputs, reduced("sum", values))


def test_views(cupy):
    values = noise(2, (60, 80), torch.float32)
    arrays = as_arrays(cupy, values)
    allreduce([x.T[::2, 1:] for x in arrays])
    torch.cuda.synchronize()
    wanted = values[1].clone()
    wanted.T[::2, 1:] = reduced("sum", [x.T[::2, 1:] for x in values])
    assert_hold(cupy, arrays[1:], wanted)


def busy(stream):
    """Enqueues a long kernel on a stream of CuPy's."""
    with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
        torch.cuda._sleep(SLEEP_CYCLES)


@pytest.mark.parametrize("async_op", [False, True])
def test_waits_for_cupys_current_stream(cupy, async_op):
    arrays = [cupy.zeros(5003, dtype=cupy.float32) for _ in range(3)]
    allreduce(arrays)
    torch.cuda.synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        busy(stream)
        for rank, array in enumerate(arrays):
            array.fill(10.0**rank)
        work = allreduce(arrays, async_op=async_op)
    assert work is None or work.wait()
    torch.cuda.synchronize()
    assert_hold(cupy, arrays, torch.full((5003,), 111.0))


def test_on_one_stream_with_cupy_what_comes_next_comes_after(cupy):
    arrays = [cupy.zeros(5003, dtype=cupy.float32) for _ in range(3)]
    seen = [cupy.zeros_like(x) for x in arrays]
    torch.cuda.synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream, torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
        for _ in range(3):
            torch.cuda._sleep(SLEEP_CYCLES)
            for rank, array in enumerate(arrays):
                array.fill(10.0**rank)
            allreduce(arrays)
            for array, copy in zip(arrays, seen, strict=True):
                copy[...] = array
                array.fill(0)
    torch.cuda.synchronize()
    assert_hold(cupy, seen, torch.full((5003,), 111.0))
    assert_hold(cupy, arrays, torch.zeros(5003))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="wants 2 GPUs")
@pytest.mark.parametrize("algorithm", ["leader", "sharded", "ring"])
def test_memory_of_pools_on_two_gpus(cupy, algorithm):
    """Peer access does not cover it, and a kernel without access to a pool ends the context."""
    values = noise(2, (100_003,), torch.float32)
    arrays = []
    for device, value in enumerate(values):
        with cupy.cuda.Device(device), cupy.cuda.using_allocator(cupy.cuda.malloc_async):
            arrays.append(cupy.asarray(value.numpy()))
    for _ in range(3):
        for device, (array, value) in enumerate(zip(arrays, values, strict=True)):
            with cupy.cuda.Device(device):
                array.set(value.numpy())
        allreduce(arrays, algorithm=algorithm)
        for device in range(2):
            torch.cuda.synchronize(device)
        assert_hold(cupy, arrays, reduced("sum", values))
