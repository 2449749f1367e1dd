import pytest
import torch

from fastreduce import KVStore


@pytest.fixture
def store():
    made = KVStore()
    made.init(["w", 3], [torch.zeros(2, 3), torch.ones(())])
    return made
