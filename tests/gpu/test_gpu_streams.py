"""A call comes after what is enqueued on the current streams, and before what comes next."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
import torch
from places import ALGORITHMS, SLEEP_CYCLES
from reference import assert_all_same, assert_same, noise, reduced

from fastreduce import all_gather, allreduce

ELEMS = 10_007


@pytest.mark.parametrize("side", [False, True], ids=["default stream", "side stream"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_order_with_the_current_stream(place, algorithm, side):
    """Four calls: what the engine does from the third on, it has recorded for the second."""
    k = 3
    tensors = place.put([torch.zeros(ELEMS)] * k)
    seen = place.put([torch.zeros(ELEMS)] * k)
    for _ in range(4):
        with place.side_streams() if side else nullcontext():
            place.sleep()
            for rank, tensor in enumerate(tensors):
                tensor.fill_(10.0**rank)
            allreduce(tensors, algorithm=algorithm)
            for tensor, copy in zip(tensors, seen, strict=True):
                copy.copy_(tensor)
                tensor.zero_()
        place.synchronize()
        for tensor, copy in zip(tensors, seen, strict=True):
            assert_same(copy.cpu(), torch.full((ELEMS,), float("1" * k)))
            assert_same(tensor.cpu(), torch.zeros(ELEMS))


def test_calls_one_after_the_other(place):
    """Nothing waits in between: the results of one are the tensors of the next."""
    values = noise(4, (ELEMS,), torch.float32)
    tensors, wanted = place.put(values), [x.clone() for x in values]
    place.sleep()
    for op in ("sum", "max", "avg", "min"):
        for x in (tensors, wanted):
            x[0].mul_(0.5)
            allreduce(x, op, algorithm="sharded")
    assert_all_same(tensors, wanted)


def test_copies_of_strided_tensors_keep_the_order(place):
    tensors = place.put([torch.zeros(100, 100)] * 3)
    with place.side_streams():
        place.sleep()
        for rank, tensor in enumerate(tensors):
            tensor.fill_(10.0**rank)
        allreduce([x[:, ::2] for x in tensors])
        after = [x.clone() for x in tensors]
    for rank, tensor in enumerate(after):
        assert tensor[0, :4].tolist() == [111.0, 10.0**rank] * 2


def test_memory_freed_after_a_call_is_not_reused_too_early(place):
    """torch gives it to the next tensor of the same stream while the call may still run."""
    for _ in range(5):
        values = noise(2, (300_000,), torch.float32)
        outputs, tensors = place.put([torch.zeros(600_000)] * 2), place.put(values)
        place.sleep()
        all_gather(outputs, tensors)
        del tensors
        junk = [torch.full((300_000,), -1.0, device=place.device(r)) for r in range(2)]
        for output in outputs:
            assert_same(output.cpu(), torch.cat(values))
        assert all(x[0].item() == -1.0 for x in junk)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_several_threads_with_streams_of_their_own(place, algorithm):
    values = [noise(4, (5003,), torch.float32, seed=i) for i in range(4)]

    def repeatedly(mine):
        wanted = [x.clone() for x in mine]
        allreduce(wanted, algorithm=algorithm)
        for _ in range(10):
            with place.side_streams():
                tensors = place.put(mine)
                allreduce(tensors, algorithm=algorithm)
            assert_all_same(tensors, wanted)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(repeatedly, values))


def test_threads_that_have_not_used_a_gpu_before(place):
    """A new thread has no CUDA context. The first call is made here, and loads the kernels."""
    values = noise(3, (ELEMS,), torch.float32)
    tensors, wanted = place.put(values), [x.clone() for x in values]
    allreduce(tensors)
    allreduce(wanted)
    for _ in range(3):
        place.synchronize()
        with ThreadPoolExecutor(1) as threads:
            threads.submit(allreduce, tensors).result()
        allreduce(wanted)
    assert_all_same(tensors, wanted)


def test_the_current_device_and_stream_stay(place):
    if not place.on_gpu:
        pytest.skip("the CPU has none")
    with place.side_streams():
        before = torch.cuda.current_device(), torch.cuda.current_stream()
        allreduce(place.put(noise(3, (ELEMS,), torch.float32)), algorithm="ring")
        assert (torch.cuda.current_device(), torch.cuda.current_stream()) == before


@pytest.mark.gpu
def test_control_a_stream_that_does_not_wait_shows():
    tensor, seen = (torch.zeros(ELEMS, device="cuda") for _ in range(2))
    other = torch.cuda.Stream()
    torch.cuda.synchronize()
    torch.cuda._sleep(SLEEP_CYCLES)
    tensor.fill_(1)
    with torch.cuda.stream(other):
        seen.copy_(tensor)
    torch.cuda.synchronize()
    assert seen.sum().item() == 0.0


@pytest.mark.gpu
def test_control_sums_are_those_of_the_loop():
    tensors = [x.cuda() for x in noise(3, (ELEMS,), torch.float32)]
    allreduce(tensors, algorithm="leader")
    assert_same(tensors[2].cpu(), reduced("sum", noise(3, (ELEMS,), torch.float32)))
