"""benchmarks/hidden.py: how much of the sums' time other threads compute."""

import time
from threading import Thread

import pytest
import torch
from hidden import SUM, Span, hidden_share, spans_of
from torch.profiler import record_function

from fastreduce.parallel.meeting import as_in_this_thread

CASES = {
    "nothing is summed": ([Span("aten::mul", 2, 0, 9)], None),
    "nothing beside it": ([Span(SUM, 1, 2, 4), Span("aten::mul", 2, 4, 9)], 0),
    "its own thread is busy with it": ([Span(SUM, 1, 2, 4), Span("aten::add", 1, 2, 4)], 0),
    "another thread is busy all the time": ([Span(SUM, 1, 2, 4), Span("aten::mul", 2, 0, 9)], 1),
    "one inside of another counts once": (
        [Span(SUM, 1, 0, 4), Span("MulBackward0", 2, 3, 5), Span("aten::mul", 2, 3, 4)],
        0.25,
    ),
    "before and after": (
        [Span("a", 2, 0, 2), Span(SUM, 1, 1, 5), Span("b", 3, 4, 9), Span("c", 2, 4.5, 6)],
        0.5,
    ),
    "several sums": (
        [Span(f"{SUM}, bucket 0", 1, 0, 1), Span(f"{SUM}, bucket 1", 1, 2, 5), Span("a", 2, 0, 1)],
        0.25,
    ),
    "other sums are no computing": ([Span(SUM, 1, 0, 1), Span(SUM, 2, 0, 1)], 0),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_hidden(case):
    spans, wanted = CASES[case]
    assert hidden_share(spans) == wanted


@pytest.mark.parametrize("computing", [False, True])
def test_from_a_trace(computing):
    def other() -> None:
        while not done:
            if computing:
                X.add_(1)
            time.sleep(1e-4)

    def step() -> None:
        with record_function(SUM):
            time.sleep(0.02)

    def beside() -> None:
        thread = Thread(target=as_in_this_thread(other))  # or the trace would not have it
        thread.start()
        step()
        done.append(True)
        thread.join()

    X, done = torch.ones(8), []
    share = hidden_share(spans_of(beside))
    assert share is not None and (share > 0) == computing
