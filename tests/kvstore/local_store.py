"""The values of conftest.py's store."""

import torch

ONES = torch.ones(2, 3)


def value(store, key):
    shape = (2, 3) if key == "w" else ()
    store.pull(key, out := torch.empty(shape))
    return out
