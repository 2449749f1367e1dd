"""Calls inside a user's CUDA graph, and the graphs that the events engine makes for itself."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
import torch
from places import ALGORITHMS
from reference import assert_all_same, noise
from subprocesses import output_of

from fastreduce import allreduce, broadcast, reduce


def refill(tensors, values):
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)


def after(values, op="sum", **how):
    copies = [x.clone() for x in values]
    allreduce(copies, op, **how)
    return copies


@pytest.mark.parametrize("algorithm", ALGORITHMS)
class TestCapture:
    def test_replays_with_new_data(self, place, algorithm):
        tensors = place.put(noise(4, (30_011,), torch.float32))
        allreduce(tensors, algorithm=algorithm)
        replay = place.capture(lambda: allreduce(tensors, algorithm=algorithm))
        for seed in range(4):
            values = noise(4, (30_011,), torch.float32, seed=seed)
            refill(tensors, values)
            replay()
            assert_all_same(tensors, after(values, algorithm=algorithm))

    def test_among_other_work(self, place, algorithm):
        """Before, between and after it, within one graph."""
        if len(place.devices) > 1:
            pytest.skip("of several GPUs torch captures its own operations on one")
        tensors, seen = (place.put([torch.zeros(5003)] * 4) for _ in range(2))
        allreduce(tensors, algorithm=algorithm)

        def step():
            for rank, tensor in enumerate(tensors):
                tensor.add_(10.0**rank)
            allreduce(tensors, algorithm=algorithm)
            tensors[0].mul_(2)
            allreduce(tensors, "max", algorithm=algorithm)
            for tensor, copy in zip(tensors, seen, strict=True):
                copy.copy_(tensor)
                tensor.zero_()

        replay = place.capture(step)
        for _ in range(3):
            refill(tensors, [torch.ones(5003)] * 4)
            replay()
            assert_all_same(seen, [torch.full((5003,), 2230.0)] * 4)
            assert_all_same(tensors, [torch.zeros(5003)] * 4)

    def test_many_tensors(self, place, algorithm):
        values = [noise(4, (i * 53 % 401,), torch.bfloat16, seed=i) for i in range(300)]
        by_index = [place.put(x) for x in values]
        ranks = [list(x) for x in zip(*by_index, strict=True)]
        allreduce(ranks, algorithm=algorithm)
        replay = place.capture(lambda: allreduce(ranks, algorithm=algorithm))
        for tensors, value in zip(by_index, values, strict=True):
            refill(tensors, value)
        replay()
        for tensors, value in zip(by_index, values, strict=True):
            assert_all_same(tensors, after(value, algorithm=algorithm))

    def test_one_after_the_other(self, place, algorithm):
        """What a capture needed is used again when its graph is gone."""
        values = noise(4, (30_011,), torch.float32)
        wanted = after(values, algorithm=algorithm)
        tensors = place.put(values)
        allreduce(tensors, algorithm=algorithm)
        for _ in range(5):
            replay = place.capture(lambda: allreduce(tensors, algorithm=algorithm))
            for _ in range(2):
                refill(tensors, values)
                replay()
                assert_all_same(tensors, wanted)
            del replay

    def test_outlives_other_calls_and_captures(self, place, algorithm):
        values = noise(4, (30_011,), torch.float32)
        tensors, others = place.put(values), place.put(noise(4, (1_000_003,), torch.float32))
        for x in (tensors, others):
            allreduce(x, algorithm=algorithm)
        replay = place.capture(lambda: allreduce(tensors, algorithm=algorithm))
        replay_others = place.capture(lambda: allreduce(others, algorithm=algorithm))
        for _ in range(3):
            refill(tensors, values)
            allreduce(others, algorithm=algorithm)
            replay()
            replay_others()
            assert_all_same(tensors, after(values, algorithm=algorithm))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
class TestRepeatedCalls:
    """The events engine has a graph from the second call of a kind on."""

    def test_same_tensors_new_data(self, place, algorithm):
        tensors = place.put(noise(4, (30_011,), torch.float32))
        for seed in range(6):
            values = noise(4, (30_011,), torch.float32, seed=seed)
            refill(tensors, values)
            allreduce(tensors, algorithm=algorithm)
            assert_all_same(tensors, after(values, algorithm=algorithm))

    def test_other_tensors_in_between(self, place, algorithm):
        """Other addresses, other sizes at the same address, another dtype, another operation."""
        values = noise(4, (10_007,), torch.float32)
        first, second = place.put(values), place.put(values)
        cases = [(x, 10_007, "sum") for x in (first, second)]
        cases += [(first, 5_000, op) for op in ("sum", "max")]
        for _ in range(4):
            for tensors, elems, op in cases:
                refill(tensors, values)
                allreduce([x[:elems] for x in tensors], op, algorithm=algorithm)
                wanted = [x.clone() for x in values]
                allreduce([x[:elems] for x in wanted], op, algorithm=algorithm)
                assert_all_same(tensors, wanted)
            as_integers = [x.view(torch.int32) for x in first]
            integers = [x.view(torch.int32) for x in values]
            refill(as_integers, integers)
            allreduce(as_integers, algorithm=algorithm)
            assert_all_same(as_integers, after(integers, algorithm=algorithm))

    def test_tensors_that_move(self, place, algorithm):
        """None has the addresses of those before it: all are alive."""
        moved = []
        for seed in range(6):
            values = noise(4, (30_011,), torch.float32, seed=seed)
            moved.append((place.put(values), after(values, algorithm=algorithm)))
            allreduce(moved[-1][0], algorithm=algorithm)
        for tensors, wanted in moved:
            assert_all_same(tensors, wanted)

    def test_tensors_in_turn(self, place, algorithm):
        values = [noise(4, (30_011,), torch.float32, seed=i) for i in range(3)]
        wanted = [after(x, algorithm=algorithm) for x in values]
        sets = [place.put(x) for x in values]
        for _ in range(4):
            for tensors, value, result in zip(sets, values, wanted, strict=True):
                refill(tensors, value)
                allreduce(tensors, algorithm=algorithm)
                assert_all_same(tensors, result)

    def test_beside_a_thread_that_synchronizes(self, place, algorithm):
        """No call may be in a state in which CUDA forbids that."""
        values = noise(4, (101,), torch.float32)
        wanted = after(values, algorithm=algorithm)
        called = Event()

        def synchronize_until_called():
            while not called.is_set():
                place.synchronize()

        with ThreadPoolExecutor(1) as threads:
            synchronized = threads.submit(synchronize_until_called)
            try:
                for _ in range(100):
                    tensors = place.put(values)
                    for _ in range(3):
                        refill(tensors, values)
                        allreduce(tensors, algorithm=algorithm)
                    assert_all_same(tensors, wanted)
            finally:
                called.set()
            synchronized.result()

    def test_more_of_them_than_are_kept(self, place, algorithm):
        values = noise(4, (101,), torch.float32)
        wanted = after(values, algorithm=algorithm)
        sets = [place.put(values) for _ in range(70)]
        for _ in range(3):
            for tensors in sets:
                refill(tensors, values)
                allreduce(tensors, algorithm=algorithm)
                assert_all_same(tensors[-1:], wanted[-1:])


def test_repeated_reduce_and_broadcast(place):
    tensors = place.put(noise(4, (10_007,), torch.float32))
    for seed in range(4):
        values = noise(4, (10_007,), torch.float32, seed=seed)
        refill(tensors, values)
        reduce(tensors, root=1)
        broadcast(tensors, root=1)
        assert_all_same(tensors, after(values))


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="wants 2 GPUs")
def test_a_copy_that_the_capture_would_not_keep_is_an_error():
    tensors = [torch.zeros(4, 6, device=f"cuda:{rank}")[:, ::2] for rank in range(2)]
    allreduce(tensors)
    message = "rank 0, tensor 0 is not contiguous, and a capture"
    with pytest.raises(RuntimeError, match=message), torch.cuda.graph(torch.cuda.CUDAGraph()):
        allreduce(tensors)


FIRST_CALL = """
    import torch, fastreduce
    tensors = [torch.full((1000,), 10.0**rank, device="cuda") for rank in range(3)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fastreduce.allreduce(tensors)
    graph.replay()
    print({x for tensor in tensors for x in tensor.tolist()})
"""


@pytest.mark.gpu
def test_the_first_call_of_a_process_may_be_a_captured_one():
    assert output_of(FIRST_CALL) == "{111.0}"


WITHOUT_GRAPHS = """
    import torch
    from fastreduce import _C, allreduce
    _C.set_lane_per_rank(True)
    tensors = [torch.ones(1000, device="cuda") for rank in range(2)]
    for _ in range(4):
        allreduce(tensors, algorithm="ring")
    print({x for tensor in tensors for x in tensor.tolist()})
"""


@pytest.mark.gpu
@pytest.mark.parametrize("setting", ["0", "1"])
def test_the_engines_graphs_can_be_turned_off(setting):
    assert output_of(WITHOUT_GRAPHS, FASTREDUCE_GRAPHS=setting) == "{16.0}"
