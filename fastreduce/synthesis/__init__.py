"""Finds programs for a topology: seeds, a search over them, and a proof of each result.

`synthesize` gives a `Synthesis`; its program can be saved, exported and run.
"""

from fastreduce.synthesis.search import Synthesis, synthesize

__all__ = ["Synthesis", "synthesize"]
