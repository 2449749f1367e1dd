"""Predicts the time of programs without running them, and draws them.

`fastreduce.simulate` gives a `Timeline`; `fastreduce.draw` gives a picture of a program.
"""

from fastreduce.simulation.costs import BOOK, EVENTS, Costs
from fastreduce.simulation.pictures import draw
from fastreduce.simulation.run import seconds
from fastreduce.simulation.simulate import simulate
from fastreduce.simulation.timeline import Event, Timeline

__all__ = ["BOOK", "EVENTS", "Costs", "Event", "Timeline", "draw", "seconds", "simulate"]
