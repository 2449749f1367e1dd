"""Predicts the time of programs without running them: `fastreduce.simulate` gives a `Timeline`."""

from fastreduce.simulation.costs import BOOK, EVENTS, Costs
from fastreduce.simulation.run import seconds
from fastreduce.simulation.simulate import simulate
from fastreduce.simulation.timeline import Event, Timeline

__all__ = ["BOOK", "EVENTS", "Costs", "Event", "Timeline", "seconds", "simulate"]
