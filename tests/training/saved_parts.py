"""What the tests of checkpoints save."""

import torch
from torch import nn

import fastreduce


def net(width=3):
    torch.manual_seed(width)
    return nn.Sequential(nn.Linear(2, width), nn.BatchNorm1d(width), nn.Linear(width, 1))


def made(width=3):
    """A model in training, and all that belongs to it."""
    model = fastreduce.DataParallel(net(width), ["cpu"] * 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 3])
    generator = torch.Generator().manual_seed(5)
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler, "draws": generator}
