"""A key-value store: the parameter server of *Dive into Deep Learning*, in this process or many."""

from fastreduce.kvstore.peers import RankEnded
from fastreduce.kvstore.store import KVStore
from fastreduce.kvstore.updates import UpdaterFailed

__all__ = ["KVStore", "RankEnded", "UpdaterFailed"]
