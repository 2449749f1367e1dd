"""torch's rules on GPUs: errors, autograd, torch.compile, and how many kernels a call launches."""

import ctypes

import numpy as np
import pytest
import torch
from places import ALGORITHMS
from reference import assert_same, noise, origin, reduced
from torch.distributed import ReduceOp

from fastreduce import _C, all_gather, allreduce, broadcast, reduce, reduce_scatter
from fastreduce.training import get_params, initial_params, train_batch
from fastreduce.training.lenet import SHAPES


def ones(place, k=2, size=3, **options):
    return [torch.ones(size, device=place.device(r), **options) for r in range(k)]


def values_of(tensors):
    return [x.tolist() for x in tensors]


@pytest.mark.gpu
class TestMixedDevices:
    @pytest.mark.parametrize("order", [("cpu", "cuda"), ("cuda", "cpu")], ids=str)
    @pytest.mark.parametrize("call", [allreduce, reduce, broadcast])
    def test_say_what_to_do_and_write_nothing(self, order, call):
        tensors = [torch.full((3,), r + 1.0, device=d) for r, d in enumerate(order)]
        first, second = (str(x.device) for x in tensors)
        words = f"rank 1, tensor 0 is on {second} but rank 0, tensor 0 is on {first}; move all"
        with pytest.raises(ValueError, match=words):
            call(tensors)
        assert values_of(tensors) == [[1.0] * 3, [2.0] * 3]

    def test_arrays_are_on_the_cpu(self):
        array = np.ones(3, dtype=np.float32)
        with pytest.raises(ValueError, match="rank 1, tensor 0 is on cpu"):
            allreduce([torch.ones(3, device="cuda"), array])
        assert array.tolist() == [1.0] * 3

    def test_outputs_beside_their_tensors(self):
        outputs = [torch.zeros(2) for _ in range(2)]
        words = "the output of rank 0, tensor 0 is on cpu but rank 0, tensor 0 is on cuda:0; want"
        with pytest.raises(ValueError, match=words):
            reduce_scatter(outputs, [torch.ones(4, device="cuda") for _ in range(2)])
        assert values_of(outputs) == [[0.0] * 2] * 2


class TestBadInput:
    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda x: x[:2], "shape"),
            (lambda x: x.double(), "dtype"),
            (lambda x: None, "no gradient"),
        ],
        ids=["shape", "dtype", "none"],
    )
    def test_is_an_error_before_anything_is_written(self, place, change, words):
        tensors = ones(place, 3)
        with pytest.raises((ValueError, TypeError), match=f"rank 2.*{words}"):
            allreduce([*tensors[:2], change(tensors[2])])
        assert values_of(tensors) == [[1.0] * 3] * 3

    def test_shared_memory(self, place):
        whole = torch.arange(6.0, device=place.device(0))
        with pytest.raises(ValueError, match="shares memory"):
            allreduce([whole[:4], whole[2:]])
        assert whole.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]

    def test_an_operation_that_the_dtype_does_not_have(self, place):
        tensors = ones(place)
        with pytest.raises(ValueError, match="'bxor' is not defined"):
            allreduce(tensors, "bxor")
        assert values_of(tensors) == [[1.0] * 3] * 2


class TestAutograd:
    def test_version_counters(self, place):
        tensors = ones(place, 3)
        allreduce(tensors)
        assert [x._version for x in tensors] == [1, 1, 1]
        reduce(tensors, root=1)
        assert [x._version for x in tensors] == [1, 2, 1]
        broadcast(tensors, root=1)
        assert [x._version for x in tensors] == [2, 2, 2]

    def test_a_saved_tensor_that_was_reduced_is_found_out(self, place):
        weight = torch.ones(3, device=place.device(0), requires_grad=True)
        saved = ones(place)
        loss = (weight * saved[0]).sum()
        allreduce(saved)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()

    def test_leaves_are_refused_in_grad_mode(self, place):
        leaves = ones(place, requires_grad=True)
        with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
            allreduce(leaves)
        assert values_of(leaves) == [[1.0] * 3] * 2
        with torch.no_grad():
            allreduce(leaves)
        assert values_of(leaves) == [[2.0] * 3] * 2

    def test_results_of_operations_are_refused_too(self, place):
        tensors = [x * 2 for x in ones(place, requires_grad=True)]
        with pytest.raises(RuntimeError, match=r"requires grad.*no_grad"):
            allreduce(tensors)
        allreduce([x.detach() for x in tensors])
        assert values_of(tensors) == [[4.0] * 3] * 2

    def test_inference_mode(self, place):
        with torch.inference_mode():
            tensors = ones(place)
            allreduce(tensors)
            assert values_of(tensors) == [[2.0] * 3] * 2
        with pytest.raises(RuntimeError, match="outside InferenceMode"):
            allreduce(tensors)


@pytest.fixture
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("fresh_compiler")
class TestCompile:
    @pytest.mark.parametrize("backend", ["eager", "aot_eager"])
    @pytest.mark.parametrize("op", ["sum", ReduceOp.AVG])
    def test_of_what_the_function_made(self, place, op, backend):
        def function(tensors):
            doubled = [x * 2 for x in tensors]
            allreduce(doubled, op, algorithm="sharded")
            return [x + 1 for x in doubled]

        tensors = place.put(noise(3, (1000,), torch.float32))
        compiled = torch.compile(function, fullgraph=True, backend=backend)
        for one, other in zip(compiled(tensors), function(tensors), strict=True):
            assert_same(one.cpu(), other.cpu())

    @pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
    def test_of_its_arguments(self, place, backend):
        tensors = place.put(origin(3, (1000,), torch.float32))
        torch.compile(allreduce, fullgraph=True, backend=backend)(tensors)
        for tensor in tensors:
            assert_same(tensor.cpu(), reduced("sum", origin(3, (1000,), torch.float32)))
            assert tensor._version > 0

    @pytest.mark.parametrize("backend", ["eager", "aot_eager"])
    def test_shards(self, place, backend):
        def there_and_back(tensors):
            shards = [x.new_empty(250) for x in tensors]
            reduce_scatter(shards, tensors)
            wholes = [torch.empty_like(x) for x in tensors]
            all_gather(wholes, shards)
            return wholes

        tensors = place.put(origin(4, (1000,), torch.float32))
        compiled = torch.compile(there_and_back, fullgraph=True, backend=backend)
        for whole in compiled(tensors):
            assert_same(whole.cpu(), reduced("sum", origin(4, (1000,), torch.float32)))


def test_training_leaves_equal_replicas(place):
    devices = [str(place.device(r)) for r in range(4)]
    start = initial_params(torch.Generator().manual_seed(0))
    replicas = [get_params(start, device) for device in devices]
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        images = torch.rand(32, 1, 28, 28, generator=generator)
        labels = torch.randint(10, (32,), generator=generator)
        train_batch(images, labels, replicas, devices, lr=0.1)
    for params in zip(*replicas, strict=True):
        for param in params[1:]:
            assert_same(param.detach().cpu(), params[0].detach().cpu())
    assert not torch.equal(replicas[0][0].detach().cpu(), start[0])


@pytest.fixture(scope="module")
def runtime():
    """The CUDA runtime that torch has loaded."""
    name = f"libcudart.so.{torch.version.cuda.split('.')[0]}"
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        pytest.skip(f"no CUDA runtime to count with: {error}")


@pytest.fixture
def nodes_of(runtime):
    """Counts the kernels and copies of a call, as nodes of a graph that it is captured into.

    torch's profiler would name them, but CUPTI of CUDA 12.6 to 13.0 drops the first records of a
    session (pytorch issue 192021).
    """

    def count(call):
        call()  # the first may not be captured
        torch.cuda.synchronize()
        graph, nodes = torch.cuda.CUDAGraph(keep_graph=True), ctypes.c_size_t()
        with torch.cuda.graph(graph):
            call()
        raw = ctypes.c_void_p(graph.raw_cuda_graph())
        assert runtime.cudaGraphGetNodes(raw, None, ctypes.byref(nodes)) == 0
        return nodes.value

    return count


@pytest.mark.gpu
class TestLaunches:
    @pytest.mark.parametrize("calls", [1, 2])
    def test_are_counted(self, nodes_of, calls):
        x = torch.ones(10, device="cuda")
        assert nodes_of(lambda: [x.add_(1) for _ in range(calls)]) == calls

    @pytest.mark.parametrize("k", [2, 4, 8])
    def test_one_for_all_of_lenets_gradients(self, nodes_of, k):
        ranks = [[torch.ones(shape, device="cuda") for shape in SHAPES] for _ in range(k)]
        assert nodes_of(lambda: allreduce(ranks)) == 1

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_one_for_every_program(self, nodes_of, algorithm):
        tensors = [torch.ones(1000, device="cuda") for _ in range(4)]
        assert nodes_of(lambda: allreduce(tensors, algorithm=algorithm)) == 1


def test_lanes_are_refused_without_cuda_engines():
    if _C.cuda_engines:
        pytest.skip("this build has CUDA engines")
    with pytest.raises(RuntimeError, match="no CUDA engines"):
        _C.set_lane_per_rank(True)
