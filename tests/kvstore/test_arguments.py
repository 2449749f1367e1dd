"""`KVStore("local")`: calls that are refused, and then nothing has changed."""

import pytest
import torch
from local_store import ONES, assert_nothing_changed

from fastreduce import KVStore


def of_inference():
    with torch.inference_mode():
        return torch.ones(2, 3)


class Wrapper(torch.Tensor):
    """As DTensor, whose values are in a tensor of its own."""

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise NotImplementedError


def elsewhere(inner):
    return torch.Tensor._make_wrapper_subclass(Wrapper, inner.shape, dtype=inner.dtype)


REFUSED = {
    "out of a pushpull": (
        lambda s: s.pushpull("w", ONES, out=torch.zeros(3)),
        ValueError,
        r"pull: key 'w', replica 0: found float32 of shape \(3,\)",
    ),
    "out of a broadcast": (
        lambda s: s.broadcast(["x", "y"], [ONES, ONES], out=[torch.zeros(2, 3), torch.zeros(3)]),
        ValueError,
        r"pull: key 'y', replica 0: found float32 of shape \(3,\), wanted float32",
    ),
    "no out of a broadcast": (
        lambda s: s.broadcast("x", ONES, out=None),
        ValueError,
        "pull: key 'x': found no tensor, wanted float32 of shape",
    ),
    "priorities of a broadcast": (
        lambda s: s.broadcast("x", ONES, torch.zeros(2, 3), [1, 2]),
        ValueError,
        "pull: found 2 priorities for 1 keys",
    ),
    "a tensor without values": (
        lambda s: s.init("x", torch.zeros(4, device="meta")),
        ValueError,
        "key 'x': found a meta tensor, wanted cpu or cuda",
    ),
    "a first value of other tensors": (
        lambda s: s.init("x", elsewhere(ONES)),
        ValueError,
        "init: key 'x': found a Wrapper, whose values are in other tensors, wanted a dense tensor",
    ),
    "a push of other tensors": (
        lambda s: s.push("w", [ONES, elsewhere(ONES)]),
        ValueError,
        r"push: key 'w', replica 1: found a Wrapper, .*, wanted float32 of shape \(2, 3\)",
    ),
    "a pull into other tensors": (
        lambda s: s.pull("w", elsewhere(ONES)),
        ValueError,
        "pull: key 'w', replica 0: found a Wrapper, whose values are in other tensors, wanted",
    ),
    "numbers of rows in other tensors": (
        lambda s: s.row_sparse_pull("w", ONES, elsewhere(torch.tensor([0, 1]))),
        ValueError,
        "found row_ids a Wrapper, whose values are in other tensors, wanted a dense tensor of int",
    ),
    "a nested tensor": (
        lambda s: s.init("x", torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])),
        ValueError,
        "init: key 'x': found a nested tensor, wanted a dense tensor",
    ),
    "a push without values": (
        lambda s: s.push("w", ONES.to("meta")),
        ValueError,
        "push: key 'w', replica 0: found a meta tensor, wanted cpu or cuda",
    ),
    "a pull into no values": (
        lambda s: s.pull("w", ONES.to("meta")),
        ValueError,
        "pull: key 'w', replica 0: found a meta tensor, wanted cpu or cuda",
    ),
    "a pull into one place": (
        lambda s: s.pull("w", torch.ones(1, 3).expand(2, 3)),
        ValueError,
        r"pull: key 'w', replica 0: found float32 .* with strides \(0, 1\), whose elements share",
    ),
    "a pull into places that overlap": (
        lambda s: s.pull("w", torch.zeros(7).as_strided((2, 3), (1, 1))),
        ValueError,
        r"with strides \(1, 1\), whose elements share memory",
    ),
    "a pull into what inference made": (
        lambda s: s.pull("w", of_inference()),
        ValueError,
        "found a tensor that was made in inference mode, wanted one that may be written to",
    ),
    "one place for a pushpull": (
        lambda s: s.pushpull("w", torch.ones(2, 1).expand(2, 3)),
        ValueError,
        "pull: key 'w', replica 0: found .* whose elements share memory",
    ),
    "one place for a broadcast": (
        lambda s: s.broadcast("x", ONES, torch.ones(2, 1).expand(2, 3)),
        ValueError,
        "pull: key 'x', replica 0: found .* whose elements share memory",
    ),
    "rows into one place": (
        lambda s: s.row_sparse_pull("w", torch.ones(1, 3).expand(2, 3), torch.tensor([0, 1])),
        ValueError,
        "row_sparse_pull: key 'w': found .* whose elements share memory",
    ),
    "rows into no values": (
        lambda s: s.row_sparse_pull("w", ONES.to("meta"), torch.tensor([0, 1])),
        ValueError,
        "row_sparse_pull: key 'w': found a meta tensor, wanted cpu or cuda",
    ),
    "rows without numbers": (
        lambda s: s.row_sparse_pull("w", ONES, torch.tensor([0, 1]).to("meta")),
        ValueError,
        "found row_ids int64 .*, wanted a dense tensor of int64 or int32 with values",
    ),
    "sparse numbers of rows": (
        lambda s: s.row_sparse_pull("w", ONES, torch.tensor([0, 1]).to_sparse()),
        ValueError,
        "found row_ids sparse int64 .*, wanted a dense tensor",
    ),
    "a parameter without a shape": (
        lambda s: s.init("x", torch.nn.LazyLinear(2).weight),
        ValueError,
        "init: key 'x': found a parameter that no batch has initialized yet, wanted a dense tensor",
    ),
    "no state": (lambda s: s.load_state_dict({}), ValueError, "found another thing than what s"),
    "no priority": (
        lambda s: s.push("w", ONES, None),
        TypeError,
        "found priority None, wanted a number, or a list with one per key",
    ),
    "a priority in words": (
        lambda s: s.push("w", ONES, ["high"]),
        TypeError,
        r"found priority \['high'\], wanted a number",
    ),
    "a flag as priority": (
        lambda s: s.push("w", ONES, [True]),
        TypeError,
        r"found priority \[True\], wanted a number",
    ),
    "a state of numbers": (
        lambda s: s.load_state_dict({"values": 1, "optimizers": 2, "pushes": 3, "ranks": 1}),
        ValueError,
        "found another thing than what state_dict returns",
    ),
    "rows of a key of another kind": (
        lambda s: s.row_sparse_pull(1.5, ONES, torch.tensor([0, 1])),
        TypeError,
        "row_sparse_pull: found the key 1.5, wanted a string or an integer, or a list",
    ),
    "rows of fewer values": (
        lambda s: s.row_sparse_pull(["w", 3], [ONES, ONES], [torch.tensor([0])]),
        ValueError,
        "row_sparse_pull: found 2 keys and, of values, 1",
    ),
    "rows in words": (
        lambda s: s.row_sparse_pull("w", ONES, [0, 1]),
        ValueError,
        "found row_ids list, wanted a dense tensor of int64 or int32",
    ),
    "second init": (lambda s: s.init("w", ONES), ValueError, "key 'w' has a value already"),
    "init, no tensor": (lambda s: s.init("x", 3.0), ValueError, "key 'x': found float, wanted a d"),
    "init, sparse": (
        lambda s: s.init("x", ONES.to_sparse()),
        ValueError,
        "found sparse float32 of shape",
    ),
    "dtype of the operation": (
        lambda s: KVStore(op="band").init("x", ONES),
        ValueError,
        r"key 'x': found float32 of shape \(2, 3\) with op 'band', wanted one of uint8, int8",
    ),
    "push before init": (lambda s: s.push("x", ONES), KeyError, "key 'x' has no value; init gives"),
    "a key that is another's nearly": (
        lambda s: s.push("W", ONES),
        KeyError,
        "push: key .*W.* has no value; init gives it one; did you mean .*w",
    ),
    "pull before init": (lambda s: s.pull("x", ONES), KeyError, "key 'x' has no value; init gives"),
    "shape": (
        lambda s: s.push("w", [ONES, torch.ones(3)]),
        ValueError,
        r"key 'w', replica 1: found float32 of shape \(3,\), wanted float32 of shape \(2, 3\)",
    ),
    "dtype": (
        lambda s: s.push("w", ONES.double()),
        ValueError,
        "replica 0: found float64 of",
    ),
    "nothing pushed": (lambda s: s.push("w", []), ValueError, "key 'w': found no tensor, wanted"),
    "pull into nothing": (
        lambda s: s.pull("w", None),
        ValueError,
        "found no tensor, wanted flo",
    ),
    "pull into a number": (lambda s: s.pull("w", 3), ValueError, "found int, wanted float32"),
    "no key": (lambda s: s.push([], []), ValueError, "found no key, wanted at least one"),
    "key of another kind": (
        lambda s: s.push(1.5, ONES),
        TypeError,
        "found the key 1.5, wanted",
    ),
    "fewer values": (
        lambda s: s.push(["w", 3], [ONES]),
        ValueError,
        "keys and, of values, 1",
    ),
    "a key twice": (lambda s: s.push(["w", "w"], [ONES] * 2), ValueError, "found a key twice"),
    "replicas": (
        lambda s: s.push(["w", 3], [[ONES, ONES + 1], torch.ones(())]),
        ValueError,
        r"found numbers of replicas \{'w': 2, 3: 1\}, wanted one number",
    ),
    "priorities": (
        lambda s: s.push(["w", 3], [ONES, torch.ones(())], [1]),
        ValueError,
        "found 1 priorities for 2 keys",
    ),
    "rows, out": (
        lambda s: s.row_sparse_pull("w", torch.empty(1, 3), torch.tensor([0, 1])),
        ValueError,
        r"found float32 of shape \(1, 3\) to copy into, wanted float32 of shape \(2, 3\)",
    ),
    "rows, numbers": (
        lambda s: s.row_sparse_pull("w", torch.empty(1, 3), torch.tensor([2])),
        ValueError,
        "found rows 2 to 2, wanted 0 to 1",
    ),
    "rows, dtype": (
        lambda s: s.row_sparse_pull("w", ONES, torch.tensor([0.5])),
        ValueError,
        r"found row_ids float32 of shape \(1,\), wanted a dense tensor of int64",
    ),
    "rows of a number": (
        lambda s: s.row_sparse_pull(3, torch.ones(1), torch.tensor([0])),
        ValueError,
        "found a value without dimensions",
    ),
}


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype stage:UserWarning")
@pytest.mark.parametrize(("call", "error", "words"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_and_changes_nothing(store, call, error, words):
    with pytest.raises(error, match=words):
        call(store)
    assert_nothing_changed(store)
