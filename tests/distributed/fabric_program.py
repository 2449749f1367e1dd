"""Lightning Fabric on CPUs: its strategy names the backend."""

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from lightning_fabric.strategies import DDPStrategy
from torch.nn import functional as F

import fastreduce.distributed  # noqa: F401

fabric = Fabric(
    accelerator="cpu", devices=2, strategy=DDPStrategy(process_group_backend="fastreduce")
)
fabric.launch()
fabric.seed_everything(0)
X = torch.randn(64, 20)
data = torch.utils.data.TensorDataset(X, X.sum(1, keepdim=True))
loader = fabric.setup_dataloaders(torch.utils.data.DataLoader(data, batch_size=8))
module = torch.nn.Linear(20, 1)
model, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.05))

for _ in range(20):
    for X, y in loader:
        optimizer.zero_grad()
        loss = F.mse_loss(model(X), y)
        fabric.backward(loss)
        optimizer.step()

weights = fabric.all_gather(module.weight.detach())
assert all(torch.equal(row, weights[0]) for row in weights)
assert loss < 0.1, loss
fabric.print(f"{fabric.world_size} processes, {dist.get_backend()}")
