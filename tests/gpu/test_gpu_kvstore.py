"""KVStore with replicas and values on GPUs, and on the CPU, where the same must hold."""

import torch

from fastreduce import KVStore

K = 3


def test_values_and_replicas_on_different_devices(place):
    home = torch.device("cpu")
    store = KVStore()
    store.set_optimizer(torch.optim.SGD, lr=0.5)
    store.init(["here", "there"], [torch.ones(5, 2, device=place.device(0)), torch.ones(3)])
    pushed = [
        [torch.full((5, 2), rank + 1.0, device=place.device(rank)) for rank in range(K)],
        [torch.full((3,), rank + 1.0, device=place.device(rank)) for rank in range(K)],
    ]
    store.push(["here", "there"], pushed)
    outs = [
        [torch.empty_like(x) for x in replicas] + [torch.empty(s)]
        for replicas, s in zip(pushed, ((5, 2), (3,)), strict=True)
    ]
    store.pull(["here", "there"], outs)
    for replicas in outs:
        assert replicas[-1].device == home
        assert all(torch.equal(x.cpu(), torch.full(x.shape, -2.0)) for x in replicas)
    store.row_sparse_pull("here", out := torch.empty(2, 2), torch.tensor([4, 0]))
    assert torch.equal(out, torch.full((2, 2), -2.0))
