"""Accelerate on CPUs takes the group that there is; it would make one with Gloo."""

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch.nn import functional as F

import fastreduce.distributed  # noqa: F401

dist.init_process_group("fastreduce")
accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
X = torch.randn(64, 20)
data = torch.utils.data.TensorDataset(X, X.sum(1, keepdim=True))
loader = torch.utils.data.DataLoader(data, batch_size=8)
model = torch.nn.Linear(20, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for _ in range(20):
    for X, y in loader:
        optimizer.zero_grad()
        loss = F.mse_loss(model(X), y)
        accelerator.backward(loss)
        optimizer.step()

weights = accelerator.gather(accelerator.unwrap_model(model).weight.detach())
assert all(torch.equal(row, weights[0]) for row in weights)
assert loss < 0.1, loss
accelerator.print(f"{accelerator.num_processes} processes, {dist.get_backend()}")
accelerator.end_training()
