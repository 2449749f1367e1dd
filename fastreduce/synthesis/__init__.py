"""Finds programs for a topology: seeds, a search over them, and a proof of each result."""
