"""Data-parallel training of LeNet on Fashion-MNIST, with the functions of the book.

The names and roles are those of *Dive into Deep Learning*, "Training on Multiple GPUs"; the
gradients of a step go through one `fastreduce.allreduce`.
"""

from fastreduce.parallel.same_bits import ReplicasDiffer, check_replicas

from .data import DataError, FashionMNIST, Split, load
from .lenet import get_params, initial_params, lenet, loss
from .parallel import (
    accuracy,
    loop_allreduce,
    sgd,
    split_batch,
    train_batch,
)
from .trainer import Config, Epoch, Trainer, train

__all__ = [
    "Config",
    "DataError",
    "Epoch",
    "FashionMNIST",
    "ReplicasDiffer",
    "Split",
    "Trainer",
    "accuracy",
    "check_replicas",
    "get_params",
    "initial_params",
    "lenet",
    "load",
    "loop_allreduce",
    "loss",
    "sgd",
    "split_batch",
    "train",
    "train_batch",
]
