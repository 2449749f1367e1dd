"""Users' programs whose tensors are spread over the ranks; each returns whole tensors."""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.checkpoint as dcp
from ddp_programs import Complex, Net, in_shared_memory, train
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional as F

WIDTH, WORDS, LETTERS = 32, 12, 16


class Transformer(torch.nn.Module):
    """That guesses each next letter."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(LETTERS, WIDTH)
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
            for _ in range(2)
        )
        self.head = torch.nn.Linear(WIDTH, LETTERS)

    def forward(self, X):
        hidden = self.embedding(X)
        mask = torch.nn.Transformer.generate_square_subsequent_mask(X.shape[1])
        for layer in self.layers:
            hidden = layer(hidden, src_mask=mask, is_causal=True)
        return self.head(hidden)


def learn_to_count(model, rank, steps=4):
    """One step after the other, each letter follows the one before."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    losses = []
    for step in range(steps):
        start = torch.randint(LETTERS, (8, 1), generator=torch.Generator().manual_seed(step + rank))
        letters = (start + torch.arange(WORDS)) % LETTERS
        loss = F.cross_entropy(model(letters[:, :-1]).flatten(0, 1), letters[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def whole(module):
    """Its parameters, gathered where they are spread."""
    return {
        name: (p.full_tensor() if isinstance(p, DTensor) else p).detach().clone()
        for name, p in module.named_parameters()
    }


def sharded():
    model = Transformer()
    for layer in model.layers:
        fully_shard(layer)
    return fully_shard(model)


# ---- the programs


def fsdp2(rank, size):
    model = sharded()
    losses = learn_to_count(model, rank, steps=12)
    assert losses[-1] < losses[0] / 2, losses
    return whole(model)


def fsdp2_in_memory_of_the_group(rank, size):
    model = sharded()
    model.set_allocate_memory_from_process_group_for_comm(True)
    for layer in model.layers:
        layer.set_allocate_memory_from_process_group_for_comm(True)
    shared, seen = dist.get_backend() == "fastreduce", []
    own = dist.all_gather_single

    def spied(output, *args, **options):
        seen.append(in_shared_memory(output))
        return own(output, *args, **options)

    dist.all_gather_single = spied
    learn_to_count(model, rank)
    assert seen and all(found == shared for found in seen)
    return whole(model)


def complex_shards(rank, size):
    """In memory of the group: as many complex numbers as FSDP2 asks for."""
    model = fully_shard(Complex())
    model.set_allocate_memory_from_process_group_for_comm(True)
    train(model, rank)
    return whole(model)


def hybrid_shards(rank, size):
    """Spread over one axis of the mesh, copies over the other: sub-groups, and two at once."""
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("copies", "shards"))
    model = Transformer()
    for module in (*model.layers, model):
        fully_shard(module, mesh=mesh)
    learn_to_count(model, rank)
    return whole(model)


def dtensors(rank, size):
    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(0)
    a, b = torch.randn(13, 24), torch.randn(24, 7)  # 13 rows: not as many for each rank
    rows, columns = distribute_tensor(a, mesh, [Shard(0)]), distribute_tensor(a, mesh, [Shard(1)])
    torch.testing.assert_close(rows.redistribute(mesh, [Replicate()]).to_local(), a, rtol=0, atol=0)
    assert torch.equal(rows.redistribute(mesh, [Shard(1)]).to_local(), columns.to_local())
    product = columns @ distribute_tensor(b, mesh, [Shard(0)])  # one summand on each rank
    return {"product": product.full_tensor(), "mean": rows.mean().full_tensor()}


def tensor_parallel(rank, size):
    module = Net()
    plan = {"first": ColwiseParallel(), "branches.0": RowwiseParallel()}
    parallelize_module(module, init_device_mesh("cpu", (size,)), plan)
    train(module, 0)  # all ranks see the same batch
    return whole(module)


def checkpoint(rank, size):
    """Saved by all ranks, each its own shards, and loaded into another model."""
    names = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(names)
    model, other = sharded(), sharded()
    learn_to_count(model, rank)
    dcp.save(model.state_dict(), checkpoint_id=names[0])
    state = other.state_dict()
    dcp.load(state, checkpoint_id=names[0])
    other.load_state_dict(state)
    assert len(list(Path(names[0]).glob("*.distcp"))) == size
    found, saved = whole(other), whole(model)
    assert all(torch.equal(found[name], saved[name]) for name in saved)
    return found


def functional(rank, size):
    """As torch.compile sees them, and compiled."""
    group = dist.group.WORLD

    def all_of_them(x):
        gathered = funcol.all_gather_tensor(x, 0, group)
        part = funcol.reduce_scatter_tensor(gathered, "sum", 0, group)
        several = funcol.all_reduce_coalesced([x, 2 * x], "max", group)
        return (
            funcol.all_reduce(x, "sum", group) + 1,
            funcol.all_reduce(x, "avg", group),
            funcol.all_gather_tensor(part, 0, group).sum(0),
            funcol.broadcast(x, 0, group),
            *(x.clone() for x in several),
        )

    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(rank))
    found = all_of_them(x)
    for own, wanted in zip(torch.compile(all_of_them)(x), found, strict=True):
        torch.testing.assert_close(own, wanted)
    swapped = funcol.all_to_all_single(torch.full((size,), float(rank)), None, None, group)
    assert swapped.tolist() == list(range(size))
    return {str(i): x.clone() for i, x in enumerate(found)}
