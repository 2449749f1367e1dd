"""Data-parallel training on Fashion-MNIST, and checkpoints for any training.

`Trainer` trains a network of `models.MODELS` with `fastreduce.DataParallel`, or LeNet with the
functions of *Dive into Deep Learning*, "Training on Multiple GPUs", which have the book's names and
roles here; the gradients of a step go through one `fastreduce.allreduce`.
"""

from fastreduce.parallel.losses import NonFiniteLoss
from fastreduce.parallel.same_bits import ReplicasDiffer, check_replicas

from .book import train
from .checkpoint import Checkpoint, CheckpointError, load, save
from .config import Config
from .data import DataError, FashionMNIST, Split, load_fashion_mnist
from .lenet import get_params, initial_params, lenet, loss
from .parallel import (
    accuracy,
    loop_allreduce,
    sgd,
    split_batch,
    train_batch,
)
from .progress import Epoch
from .trainer import Trainer

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "Config",
    "DataError",
    "Epoch",
    "FashionMNIST",
    "NonFiniteLoss",
    "ReplicasDiffer",
    "Split",
    "Trainer",
    "accuracy",
    "check_replicas",
    "get_params",
    "initial_params",
    "lenet",
    "load",
    "load_fashion_mnist",
    "loop_allreduce",
    "loss",
    "save",
    "sgd",
    "split_batch",
    "train",
    "train_batch",
]
