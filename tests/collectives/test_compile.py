"""The dispatcher's way: torch.compile, opcheck, modes, and the profiler."""

from contextlib import nullcontext

import pytest
import torch
from reference import assert_same, noise, origin, reduced
from torch.distributed import ReduceOp
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

from fastreduce import all_gather, allreduce, broadcast, reduce, reduce_scatter

BACKENDS = ("eager", "aot_eager")


@pytest.fixture(autouse=True)
def forget_compiled():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(function, backend):
    return torch.compile(function, fullgraph=True, backend=backend)


def summed(tensors, op="sum", algorithm="auto"):
    doubled = [x * 2 for x in tensors]
    allreduce(doubled, op, algorithm=algorithm)
    return doubled[0] + 1


@pytest.mark.parametrize("backend", BACKENDS)
class TestCompile:
    @pytest.mark.parametrize("op", ["sum", "max", ReduceOp.AVG])
    @pytest.mark.parametrize("algorithm", ["auto", "sharded"])
    def test_of_what_the_function_made(self, algorithm, op, backend):
        tensors = noise(3, (10, 5), torch.float32)
        eager = summed(tensors, op, algorithm)
        assert_same(compiled(summed, backend)(tensors, op, algorithm), eager)

    def test_of_its_arguments(self, backend):
        tensors = origin(3, (100,), torch.float32)
        wanted = reduced("sum", tensors)
        compiled(allreduce, backend)(tensors)
        for tensor in tensors:
            assert_same(tensor, wanted)
            assert tensor._version > 0

    def test_of_nested_lists(self, backend):
        @torch.no_grad()
        def step(ranks):
            allreduce([[x * r for x in rank] for r, rank in enumerate(ranks)])
            allreduce(ranks, "avg")
            return [ranks[1][0] + 1, ranks[0][1]]

        ranks = [[torch.full((2,), 10.0**r), torch.full((3, 1), 4.0 * r)] for r in range(2)]
        found = compiled(step, backend)(ranks)
        assert [x.flatten().tolist() for x in found] == [[6.5, 6.5], [2.0, 2.0, 2.0]]

    def test_reduce_and_broadcast(self, backend):
        def to_last_and_back(tensors):
            reduce(tensors, root=2, op="max")
            broadcast(tensors, root=2)
            return tensors[0] - 1

        tensors = origin(3, (50,), torch.float32)
        wanted = reduced("max", tensors)
        assert_same(compiled(to_last_and_back, backend)(tensors), wanted - 1)
        assert_same(tensors[1], wanted)

    def test_reduce_scatter_and_all_gather(self, backend):
        def in_two_steps(tensors):
            shards = [x.new_empty(25) for x in tensors]
            reduce_scatter(shards, tensors)
            wholes = [torch.empty_like(x) for x in tensors]
            all_gather(wholes, shards)
            return wholes

        tensors = origin(4, (100,), torch.float32)
        for whole in compiled(in_two_steps, backend)(tensors):
            assert_same(whole, reduced("sum", tensors))

    def test_shared_memory_is_still_found(self, backend):
        """torch.compile may turn views and aliases into tensors of their own."""

        def of_views(x, cut):
            y = x * 2
            allreduce([y[:cut], y[10 - cut :]])
            return y

        function, x = compiled(of_views, backend), torch.arange(10.0)
        assert function(x, 5).tolist() == [10, 14, 18, 22, 26] * 2
        for cut in (6, 10):
            with pytest.raises(ValueError, match="shares memory"):
                function(x, cut)

    def test_in_place_forms(self, backend):
        def scatter_and_gather(x, y):
            wholes = [x + 1, y + 2]
            shards = [wholes[0][:2], wholes[1][2:]]
            reduce_scatter(shards, wholes)
            all_gather(wholes, shards)
            return wholes

        x, y = origin(2, (4,), torch.float32)
        for whole in compiled(scatter_and_gather, backend)(x, y):
            assert_same(whole, x + y + 3)

    def test_other_shapes_later(self, backend):
        function = compiled(summed, backend)
        for size in (4, 5, 9):
            tensors = origin(3, (size,), torch.float32)
            assert_same(function(tensors), summed(tensors))

    def test_no_tensors(self, backend):
        assert compiled(lambda: allreduce([[], []]), backend)() is None

    def test_bad_input_is_an_error_and_writes_nothing(self, backend):
        tensors = [torch.ones(3), torch.ones(3, dtype=torch.float64)]
        with pytest.raises(Exception, match="rank 1, tensor 0 is float64"):
            compiled(allreduce, backend)(tensors)
        assert [x.tolist() for x in tensors] == [[1.0] * 3] * 2

    @pytest.mark.parametrize("wrong", [{"engine": "flags"}, {"algorithm": "pears"}, {"op": "summ"}])
    def test_what_is_asked_for_arrives(self, wrong, backend):
        with pytest.raises(Exception, match=next(iter(wrong.values()))):
            compiled(lambda tensors: allreduce(tensors, **wrong), backend)([torch.ones(3)])


def test_inductor():
    """Nothing but the call, so that there is no kernel to compile for half a minute."""
    tensors = noise(2, (33,), torch.float32)
    wanted = reduced("sum", tensors)
    compiled(allreduce, "inductor")(tensors)
    assert_same(tensors[1], wanted)


def call(collective, outputs, inputs, ranks, op="sum", root=0, algorithm="auto"):
    return (collective, outputs, inputs, ranks, op, root, algorithm)


OPERATOR_CALLS = {
    "allreduce": lambda: call("allreduce", origin(3, (5,), torch.float32), [], 3),
    "lists": lambda: call("allreduce", origin(6, (5,), torch.float16), [], 3, "avg"),
    "ring": lambda: call("allreduce", origin(3, (5,), torch.int32), [], 3, algorithm="ring"),
    "reduce": lambda: call("reduce", origin(3, (5,), torch.float32), [], 3, "max", 1),
    "broadcast": lambda: call("broadcast", origin(3, (5,), torch.bool), [], 3, root=2),
    "reduce_scatter": lambda: call(
        "reduce_scatter", origin(2, (3,), torch.float32), origin(2, (6,), torch.float32), 2
    ),
    "all_gather": lambda: call(
        "all_gather", origin(2, (6,), torch.float32), origin(2, (3,), torch.float32), 2
    ),
    "strided": lambda: call("allreduce", [torch.ones(4, 6).t() for _ in range(2)], [], 2),
}


@pytest.mark.parametrize("name", OPERATOR_CALLS)
def test_opcheck(name):
    torch.library.opcheck(torch.ops.fastreduce.collective_.default, OPERATOR_CALLS[name]())


class TestOperator:
    def test_equals_the_call(self):
        tensors = noise(3, (100,), torch.bfloat16)
        wanted = reduced("avg", tensors)
        torch.ops.fastreduce.collective_(*call("allreduce", tensors, [], 3, "avg"))
        assert_same(tensors[2], wanted)

    def test_refuses_leaves(self):
        tensors = [torch.ones(3, requires_grad=True) for _ in range(2)]
        with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
            torch.ops.fastreduce.collective_(*call("allreduce", tensors, [], 2))
        with torch.no_grad():
            torch.ops.fastreduce.collective_(*call("allreduce", tensors, [], 2))
        assert tensors[0].tolist() == [2.0] * 3

    @pytest.mark.parametrize(("tensors", "ranks"), [(3, 2), (2, 0), (2, -1)])
    def test_refuses_tensors_that_belong_to_no_rank(self, tensors, ranks):
        with pytest.raises(ValueError, match=rf"{tensors} tensors cannot belong to {ranks} ranks"):
            torch.ops.fastreduce.collective_(
                *call("allreduce", origin(tensors, (3,), torch.float32), [], ranks)
            )

    @pytest.mark.parametrize("collective", ["allreduce", "reduce", "broadcast"])
    @pytest.mark.parametrize("requires_grad", [False, True])
    def test_refuses_inputs_of_what_works_in_place(self, collective, requires_grad):
        outputs, inputs = ([torch.ones(3, requires_grad=requires_grad)] * 2 for _ in range(2))
        with pytest.raises(ValueError, match=f"{collective} has 2 inputs; want none"):
            torch.ops.fastreduce.collective_(*call(collective, outputs, inputs, 2))

    def test_refuses_an_unknown_collective(self):
        with pytest.raises(ValueError, match="unknown collective 'scan'; known are allreduce"):
            torch.ops.fastreduce.collective_(*call("scan", [torch.ones(3)], [], 1))


def test_dispatch_modes_see_the_operator():
    seen = []

    class Seeing(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    tensors = origin(2, (4,), torch.float32)
    wanted = reduced("sum", tensors)
    with Seeing():
        allreduce(tensors)
    assert seen == ["fastreduce.collective_.default"]
    assert_same(tensors[1], wanted)
    assert tensors[1]._version == 1


def test_a_trace_of_jit_is_refused():
    """It would drop the call from its graph."""

    def doubled(x, y):
        tensors = [x * 2, y * 2]
        allreduce(tensors)
        return tensors[0]

    with pytest.raises(RuntimeError, match=r"allreduce: torch.jit.trace would leave it out"):
        torch.jit.trace(doubled, (torch.ones(3), torch.ones(3)))


class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


# What is asked for, and the error; None for none.
UNDER_A_MODE = {
    "inference tensors": (lambda: allreduce(inferred), "Inplace update to inference tensor"),
    "a root beyond": (lambda: reduce([torch.ones(1)], root=1), "root 1 is not a rank: there are 1"),
    "a root below": (lambda: reduce([torch.ones(1)], root=-1), "root -1 is not a rank"),
    "no tensors": (lambda: allreduce([[], []]), None),
}
with torch.inference_mode():
    inferred = [torch.ones(3), torch.ones(3)]


@pytest.mark.parametrize("name", UNDER_A_MODE)
@pytest.mark.parametrize("mode", [Mode, nullcontext])
def test_errors_are_those_of_the_plain_call(name, mode):
    call, words = UNDER_A_MODE[name]
    with pytest.raises((RuntimeError, ValueError), match=words) if words else nullcontext(), mode():
        call()
    assert [x.tolist() for x in inferred] == [[1.0] * 3] * 2


def test_tensors_made_of_tensors():
    tensors = [TwoTensor(torch.full((3,), 1.0 + r), torch.full((3,), 5.0)) for r in range(2)]
    allreduce(tensors)
    assert [tensors[0].a.tolist(), tensors[1].b.tolist()] == [[3.0] * 3, [10.0] * 3]


@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("allreduce", lambda x, y: allreduce(x)),
        ("reduce", lambda x, y: reduce(x)),
        ("broadcast", lambda x, y: broadcast(x)),
        ("all_gather", lambda x, y: all_gather(y, x)),
        ("reduce_scatter", lambda x, y: reduce_scatter(x, y)),
    ],
)
def test_the_profiler_sees_the_call(name, run):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run(origin(2, (3,), torch.float32), origin(2, (6,), torch.float32))
    assert [x.name for x in profile.events()].count(f"fastreduce::{name}") == 1
