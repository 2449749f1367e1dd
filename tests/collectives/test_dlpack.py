"""Arrays that speak __dlpack__ are taken beside tensors, without a copy."""

import ctypes
import itertools

import numpy as np
import pytest
import torch
from reference import assert_same, noise, reduced
from subprocesses import run_python

from fastreduce import all_gather, allreduce, reduce_scatter


class Exporter:
    """An array of a library that torch has never heard of."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **options):
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.int64, torch.uint8, torch.bool]
)
def test_numpy_arrays_are_reduced_where_they_lie(dtype):
    tensors = noise(3, (500,), dtype)
    arrays = [x.clone().numpy() for x in tensors]
    addresses = [x.ctypes.data for x in arrays]
    allreduce(arrays)
    for array, address in zip(arrays, addresses, strict=True):
        assert array.ctypes.data == address
        assert_same(torch.from_numpy(array), reduced("sum", tensors))


def test_all_kinds_together():
    values = noise(4, (100,), torch.float32)
    mixed = [values[0].clone(), values[1].numpy().copy(), Exporter(values[2].clone())]
    mixed.append(torch.nn.Parameter(values[3].clone(), requires_grad=False))
    allreduce(mixed)
    for item in (mixed[0], torch.from_numpy(mixed[1]), mixed[2].tensor, mixed[3].data):
        assert_same(item, reduced("sum", values))


def test_lists_of_arrays():
    ranks = [[np.full(3, 10.0**r), Exporter(torch.full((2,), r))] for r in range(3)]
    allreduce(ranks)
    for array, exporter in ranks:
        assert array.tolist() == [111.0] * 3
        assert exporter.tensor.tolist() == [3, 3]


def test_outputs_and_inputs():
    inputs = [np.arange(4.0), np.arange(4.0) * 10]
    outputs = [np.zeros(2), np.zeros(2)]
    reduce_scatter(outputs, inputs)
    assert [x.tolist() for x in outputs] == [[0.0, 11.0], [22.0, 33.0]]
    all_gather(inputs, outputs)
    assert [x.tolist() for x in inputs] == [[0.0, 11.0, 22.0, 33.0]] * 2


@pytest.mark.parametrize(
    "view",
    [lambda x: x.T, lambda x: x[:, ::2], lambda x: x[1:], lambda x: x[3, 4:5].reshape(())],
    ids=["transposed", "stepped", "sliced", "0-dim"],
)
def test_views_of_arrays(view):
    arrays = [x.numpy() for x in noise(2, (6, 8), torch.float64)]
    wanted = view(arrays[0]) + view(arrays[1])
    rest = [x.copy() for x in arrays]
    allreduce([view(x) for x in arrays])
    for array, old in zip(arrays, rest, strict=True):
        np.testing.assert_array_equal(view(array), wanted)
        view(old)[...] = wanted
        np.testing.assert_array_equal(array, old)  # and nothing else changed


def test_read_only_arrays_are_refused():
    arrays = [np.ones(3), np.ones(3)]
    arrays[1].setflags(write=False)
    with pytest.raises(ValueError, match=r"rank 1, tensor 0 is a read-only ndarray.*reduce a copy"):
        allreduce(arrays)
    assert [x.tolist() for x in arrays] == [[1.0] * 3] * 2


def test_a_capsule_without_a_name_is_refused():
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p] * 3

    class Nameless:
        def __dlpack__(self, **_):
            return new(1, None, None)

        def __dlpack_device__(self):
            return 1, 0

    with pytest.raises(ValueError, match="rank 1, tensor 0 cannot be taken"):
        allreduce([torch.ones(1), Nameless()])


def test_read_only_arrays_are_read():
    inputs = [np.ones(2, np.float32), np.full(2, 2, np.float32)]
    for array in inputs:
        array.setflags(write=False)
    whole, part = [torch.empty(4), torch.empty(4)], [torch.empty(1), torch.empty(1)]
    all_gather(whole, inputs)
    reduce_scatter(part, inputs)
    assert [x.tolist() for x in whole] == [[1, 1, 2, 2]] * 2
    assert [x.tolist() for x in part] == [[3], [3]]


# Of an array of three dimensions: every way to walk one or several of them backwards.
BACKWARDS = {
    f"{ndim}-D, signs {signs}": signs
    for ndim in (1, 2, 3)
    for signs in itertools.product((1, -1), repeat=ndim)
    if -1 in signs
}


def test_negative_strides_are_an_error_in_any_dimension():
    """torch.from_dlpack ends the process on them, so they must not reach it."""
    done = run_python(f"""
        import numpy as np, fastreduce
        for name, signs in {BACKWARDS!r}.items():
            for step in (1, 2):
                for rank in (0, 1):
                    cut = tuple(slice(None, None, sign * step) for sign in signs)
                    arrays = [np.arange(5.0 ** len(signs)).reshape((5,) * len(signs))[cut]
                              for _ in range(2)]
                    arrays[1 - rank] = arrays[1 - rank].copy()
                    before = [x.tolist() for x in arrays]
                    try:
                        fastreduce.allreduce(arrays)
                    except ValueError as error:
                        assert [x.tolist() for x in arrays] == before
                        found = [stride // 8 for stride in arrays[rank].strides]
                        wanted = f"rank {{rank}}, tensor 0 has negative strides, {{found}} in el"
                        print(name, wanted in str(error))
    """)
    assert done.returncode == 0, done.stderr[-300:]
    assert done.stdout.splitlines() == [f"{name} True" for name in BACKWARDS for _ in range(4)]


@pytest.mark.parametrize("strides", [None, "[-8]"])
@pytest.mark.parametrize("versions", ["**options", ""])
@pytest.mark.parametrize("written", [True, False])
def test_negative_strides_are_an_error_whatever_the_array_says(strides, versions, written):
    """The library may have no `strides`, or a list of them, and may know DLPack before 1.0 only."""
    done = run_python(f"""
        import numpy as np, fastreduce
        class Exporter:
            def __init__(self, array): self.array = array
            def __dlpack__(self, {versions}): return self.array.__dlpack__({versions})
            def __dlpack_device__(self): return self.array.__dlpack_device__()
            {f"strides = {strides}" if strides else ""}
        backwards, straight = np.arange(6.0)[::-1], np.arange(6.0)
        arrays = [Exporter(straight), Exporter(backwards)]
        try:
            if {written}: fastreduce.allreduce(arrays)
            else: fastreduce.all_gather([np.zeros(12), np.zeros(12)], arrays)
        except ValueError as error:
            print("rank 1, tensor 0 has negative strides, [-1] in elements" in str(error))
        assert straight.tolist() == backwards[::-1].tolist() == [0, 1, 2, 3, 4, 5]
    """)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr[-300:]


def test_control_negative_strides_reverse_an_array_and_others_do_not():
    for signs in BACKWARDS.values():
        whole = np.zeros((5,) * len(signs))
        view = whole[tuple(slice(None, None, sign) for sign in signs)]
        assert [stride < 0 for stride in view.strides] == [sign < 0 for sign in signs]


@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_a_reversed_copy_is_taken(ndim):
    arrays = [np.flip(np.arange(3.0**ndim).reshape((3,) * ndim)).copy() for _ in range(2)]
    wanted = arrays[0] + arrays[1]
    allreduce(arrays)
    np.testing.assert_array_equal(arrays[0], wanted)


def test_the_memory_of_one_array_in_two_ranks_is_refused():
    array = np.arange(6.0)
    with pytest.raises(ValueError, match="rank 1, tensor 0 shares memory with rank 0, tensor 0"):
        allreduce([array[:4], array[2:]])
    assert array.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
