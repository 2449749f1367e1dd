"""Every kind of bad tensor lists: what is raised, what it says, and that nothing was written."""

import re

import numpy as np
import pytest
import torch
from bad_inputs import (
    Apart,
    Declining,
    Flagged,
    Jax,
    Plain,
    Wrapper,
    assert_refused,
    f32,
    f64,
    failing,
    freed,
    i32,
    inferred,
    jagged,
    learned,
    lists,
    nested,
    of,
    on,
    ones,
    quantized,
    read_only,
    tied,
    views,
    windows,
)
from reference import bytes_of
from torch import nn

from fastreduce import all_gather, allreduce, broadcast, reduce_scatter

LEAF = "a leaf Variable that requires grad is being used in an in-place operation"

scatter, gather = reduce_scatter, all_gather

T, V, R = TypeError, ValueError, RuntimeError
# id: the call, its arguments, the exception, words of its message
# fmt: off
ROWS = {
    # no list of tensors at all
    "no ranks": (allreduce, lambda: [[]], V, "no ranks"),
    "tensor": (allreduce, lambda: [ones(2, 3)], T, "tensors is Tensor", "want a list"),
    "array": (allreduce, lambda: [np.ones(3)], T, "ndarray", "want a list"),
    "string": (allreduce, lambda: ["ab"], T, "tensors is str", "want a list"),
    "number": (allreduce, lambda: [3.0], T, "tensors is float", "want a list"),
    "nothing": (allreduce, lambda: [None], T, "tensors is NoneType", "want a list"),
    "dict": (allreduce, lambda: [{"w": ones(3)}], T, "rank 0, tensor 0 is str"),
    "generator that raises": (allreduce, lambda: [failing()], ZeroDivisionError, "no gradient"),
    "list that raises": (
        allreduce, lambda: [[[ones(3)], failing()]], ZeroDivisionError, "no gradient"),
    "no outputs": (gather, lambda: [None, [ones(3)]], T, "outputs is NoneType"),
    # something in the list that is no tensor
    "number for a rank": (allreduce, lambda: [[ones(3), 3]], T, "rank 1, tensor 0 is int"),
    "string among tensors": (
        allreduce, lambda: [[[ones(3), ones(2)], [ones(3), "x"]]], T, "rank 1, tensor 1 is str"),
    "lists too deep": (allreduce, lambda: [[[[ones(3)]]]], T, "rank 0, tensor 0 is list"),
    "no gradient": (
        allreduce, lambda: [[[ones(3), ones(2)], [ones(3), None]]], T,
        "rank 1, parameter 1 has no gradient"),
    "None for a rank": (
        allreduce, lambda: [[ones(3), None]], T, "rank 1, parameter 0 has no gradient"),
    "array of objects": (
        allreduce, lambda: [[ones(3), np.array([None] * 3)]], V, "rank 1, tensor 0"),
    "array of strings": (allreduce, lambda: [[np.array(["a"]), ones(1)]], V, "rank 0, tensor 0"),
    "foreign byte order": (
        allreduce, lambda: [[ones(3), np.ones(3, ">f4")]], V, "rank 1, tensor 0"),
    "read-only array": (
        allreduce, lambda: [[ones(3), read_only()]], V, "rank 1, tensor 0 is a read-only ndarray"),
    "array of JAX": (
        allreduce, lambda: [[ones(3), np.ones(3, np.float32).view(Jax)]], V,
        "rank 1, tensor 0 is a read-only Jax", "np.array(x)"),
    "masked array": (
        allreduce, lambda: [[ones(2, dtype=f64), np.ma.array([1.0, 2.0], mask=[0, 1])]], V,
        "rank 1, tensor 0 is a MaskedArray", ".filled(0)"),
    "masked array that is read": (
        gather, lambda: [of(f64, 2), [ones(1, dtype=f64), np.ma.array([1.0])]], V,
        "rank 1, tensor 0 is a MaskedArray"),
    "read-only export": (
        allreduce, lambda: [[ones(3), Flagged()]], V, "rank 1, tensor 0 is a read-only Flagged"),
    # ranks that differ
    "lengths": (
        allreduce, lambda: [[[ones(3)], [ones(3), ones(3)]]], V,
        "rank 1 has 2 tensors but rank 0 has 1"),
    "tensor beside list": (
        allreduce, lambda: [[ones(3), [ones(3), ones(3)]]], V, "rank 1 has 2 tensors"),
    "shapes": (
        allreduce, lambda: [[ones(3), ones(3), ones(4)]], V,
        "rank 2, tensor 0 has shape [4] but rank 0, tensor 0 has shape [3]"),
    "shapes of equal counts": (
        allreduce, lambda: [[[ones(1), ones(2, 3)], [ones(1), ones(3, 2)]]], V,
        "rank 1, tensor 1 has shape [3, 2]", "[2, 3]"),
    "0-dim and 1-dim": (allreduce, lambda: [[ones(), ones(1)]], V, "shape [1]", "shape []"),
    "dtypes": (
        allreduce, lambda: [[ones(3), ones(3, dtype=f64)]], V,
        "rank 1, tensor 0 is float64 but rank 0, tensor 0 is float32"),
    "dtypes, moved": (broadcast, lambda: [[ones(3), ones(3, dtype=i32)]], V, "is int32 but"),
    "devices": (
        allreduce, lambda: [[ones(3), on("meta")]], V, "rank 1, tensor 0 is on meta", "CPU"),
    # where the engine cannot go
    "meta": (allreduce, lambda: [[on("meta"), on("meta")]], V, "rank 0, tensor 0 is on meta"),
    "cuda": (allreduce, lambda: [[on("cuda"), on("cuda")]], V, "is on cuda:0", "CPU"),
    "cuda beside cpu": (allreduce, lambda: [[ones(3), on("cuda")]], V, "is on cuda:0"),
    "sparse": (
        allreduce, lambda: [[ones(3), ones(3).to_sparse()]], V,
        "rank 1, tensor 0 is sparse", "to_dense"),
    "compressed": (
        allreduce, lambda: [[ones(3, 3).to_sparse_csr(), ones(3, 3)]], V, "tensor 0 is sparse"),
    "quantized": (
        allreduce, lambda: [[quantized(), quantized()]], V,
        "rank 0, tensor 0 is quantized", "dequantize"),
    "nested": (
        allreduce, lambda: [[nested(), nested()]], V, "rank 0, tensor 0", "nested", "unbind"),
    "nested, jagged": (
        allreduce, lambda: [[jagged(), jagged()]], V,
        "rank 0, tensor 0 is NestedTensor", ".values()"),
    "subclass": (
        allreduce, lambda: [[ones(3), Wrapper(ones(3))]], V,
        "rank 1, tensor 0 is Wrapper", "the plain tensors inside it"),
    "subclass that leaves it to others": (
        allreduce, lambda: [[ones(3), Declining(ones(3))]], V,
        "rank 1, tensor 0 is Declining", "the plain tensors inside it"),
    "subclass that is not to be mixed": (
        allreduce, lambda: [[ones(3), Apart(ones(3))]], V,
        "rank 1, tensor 0 is Apart", "the plain tensors inside it"),
    "subclass behind one that is a tensor": (
        allreduce, lambda: [[ones(3).as_subclass(Plain), Wrapper(ones(3))]], V,
        "rank 1, tensor 0 is Wrapper"),
    "subclass beside arrays": (
        allreduce, lambda: [[np.ones(3, np.float32), Wrapper(ones(3))]], V,
        "rank 1, tensor 0 is Wrapper"),
    "subclass as an output": (
        gather, lambda: [[ones(6), Wrapper(ones(6))], of(f32, 3)], V,
        "the output of rank 1, tensor 0 is Wrapper"),
    "subclass as an input": (
        gather, lambda: [of(f32, 6), [ones(3), Wrapper(ones(3))]], V,
        "rank 1, tensor 0 is Wrapper"),
    # memory
    "freed": (allreduce, lambda: [[ones(3), freed()]], V, "rank 1, tensor 0 has no memory"),
    "freed behind a view": (
        allreduce, lambda: [[ones(3), freed(40)]], V, "rank 1, tensor 0 has no memory", "freed"),
    "storage made smaller": (
        allreduce, lambda: [[ones(3), freed(4, left_bytes=27)]], V,
        "rank 1, tensor 0 has no memory behind it", "too small"),
    "uninitialized parameter": (
        broadcast, lambda: [[[ones(3), nn.LazyLinear(2).weight], [ones(3), ones(0)]]], V,
        "rank 0, tensor 1 is an uninitialized parameter", "run one batch"),
    "one tensor twice": (
        allreduce, lambda: [[ones(3)] * 2], V,
        "rank 1, tensor 0 shares memory with rank 0, tensor 0", "clone"),
    "alias": (
        allreduce, lambda: [views(lambda x: x, lambda x: x.view(12))], V, "shares memory"),
    "overlap": (
        allreduce, lambda: [views(lambda x: x[:7], lambda x: x[5:])], V, "shares memory"),
    "overlap backwards": (
        allreduce, lambda: [views(lambda x: x[6:], lambda x: x[:6], lambda x: x[5:11])], V,
        "shares memory"),
    "steps that meet": (
        allreduce, lambda: [views(lambda x: x[::3], lambda x: x[1:9:2])], V, "shares memory"),
    "tied parameters": (
        allreduce, lambda: [tied()], V, "rank 0, tensor 2 shares memory with rank 0, tensor 0"),
    "expanded": (
        allreduce, lambda: [[ones(3, 4), ones(1, 4).expand(3, 4)]], V,
        "rank 1, tensor 0 overlaps itself", "contiguous"),
    "windows": (
        allreduce, lambda: [[windows(), ones(4, 3)]], V, "rank 0, tensor 0 overlaps itself"),
    "output over another's input": (
        scatter, lambda: [[(x := ones(4))[2:], ones(2)], [x, ones(4)]], V,
        "the output of rank 0, tensor 0", "shares memory"),
    "input over another's output": (
        gather, lambda: [[(x := ones(4)), ones(4)], [ones(2), x[2:]]], V,
        "the output of rank 0, tensor 0", "shares memory"),
    # outputs
    "too few outputs": (
        scatter, lambda: [[ones(2)], of(f32)], V,
        "outputs have 1 ranks of 1 tensors but tensors have 2 ranks of 1"),
    "too few lists": (
        gather, lambda: [[[ones(4)], [ones(4)]], [of(f32, 2), of(f32, 2)]], V,
        "outputs have 2 ranks of 1 tensors but tensors have 2 ranks of 2"),
    "inputs without tensors": (
        scatter, lambda: [of(f32), [[], []]], V,
        "outputs have 2 ranks of 1 tensors but tensors have 2 ranks of 0"),
    "outputs without tensors": (
        gather, lambda: [[[], []], of(f32)], V,
        "outputs have 2 ranks of 0 tensors but tensors have 2 ranks of 1"),
    "shards too large": (
        scatter, lambda: [of(f32, 3), of(f32, 4)], V,
        "rank 0, tensor 0 has 4 elements", "has 3", "2 times as many"),
    "a later shard too large": (
        scatter, lambda: [lists(2, 3), lists(4, 4)], V,
        "rank 0, tensor 1 has 4 elements", "has 3", "2 times as many"),
    "a later one gathered into too little": (
        gather, lambda: [lists(4, 3), lists(2, 2)], V,
        "the output of rank 0, tensor 1 has 3 elements"),
    "a later shard of another dtype": (
        scatter, lambda: [lists(2, 2), [[ones(4), ones(4, dtype=f64)] for _ in range(2)]], V,
        "tensor 1 is", "the same dtype"),
    "shards for wholes": (
        scatter, lambda: [of(f32, 4), of(f32, 2)], V,
        "the output of rank 0, tensor 0 has 4", "outputs are the first argument"),
    "wholes for shards": (
        gather, lambda: [of(f32, 2), of(f32, 4)], V,
        "the output of rank 0, tensor 0 has 2", "outputs are the first argument"),
    "not divisible": (scatter, lambda: [of(f32, 2), of(f32, 5)], V, "has 5 elements"),
    "gathered into too little": (
        gather, lambda: [of(f32, 3), of(f32, 2)], V,
        "the output of rank 0, tensor 0 has 3 elements"),
    "outputs of another dtype": (gather, lambda: [of(f64, 4), of(f32, 2)], V, "the same dtype"),
    "outputs that differ": (
        gather, lambda: [[ones(4), ones(2, 2)], of(f32, 2)], V,
        "the output of rank 1, tensor 0 has shape [2, 2]"),
    # autograd
    "leaf": (allreduce, lambda: [[ones(3), learned()]], R, LEAF, "rank 1, tensor 0"),
    "leaf as an output": (
        gather, lambda: [[ones(6), learned(6)], of(f32, 3)], R,
        LEAF, "the output of rank 1, tensor 0"),
    "result of an operation": (
        allreduce, lambda: [[learned() * 2, learned() * 2]], R,
        "rank 0, tensor 0 requires grad", "no_grad"),
    "a later result of an operation": (
        allreduce, lambda: [[[ones(3), ones(3)], [ones(3), learned() * 2]]], R,
        "rank 1, tensor 1 requires grad", "no_grad"),
    "inference tensor": (
        allreduce, lambda: [[ones(3), inferred()]], R,
        "Inplace update to inference tensor outside InferenceMode", "rank 1, tensor 0"),
}
# fmt: on


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.filterwarnings("ignore")  # torch's, of prototype layouts
def test_bad_input(row):
    if "cuda" in row and not torch.cuda.is_available():
        pytest.skip("no GPU")
    assert_refused(*ROWS[row])


def test_a_list_that_shrinks_while_it_is_read_counts_as_it_was():
    class Emptying(Flagged):
        def __dlpack__(self, **options):
            del items[1:]
            return super().__dlpack__(**options)

    items = [ones(3), ones(3)]
    items.insert(0, Emptying(writable=True))
    with pytest.raises(ValueError, match="rank 1 has 1 tensors but rank 0 has 3"):
        allreduce([items, [ones(3)]])


def test_control_what_was_written_shows():
    arguments = [[[ones(3), np.ones(2)], [ones(6)[::2], np.ones(2)]]]
    before = bytes_of(arguments)
    allreduce(*arguments)
    after = bytes_of(arguments)
    assert len(before) == 4
    assert all(one != other for one, other in zip(before, after, strict=True))


def test_messages_carry_no_stack_of_c_plus_plus():
    with pytest.raises(ValueError) as caught:
        allreduce([ones(3), ones(4)])
    assert not re.search(r"Exception raised from|frame #|\.cpp", str(caught.value))
