"""A key-value store: the parameter server of *Dive into Deep Learning*, in this process or many."""

from fastreduce.kvstore.store import KVStore

__all__ = ["KVStore"]
