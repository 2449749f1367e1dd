"""What is found only when it is asked for, beside other threads, and until somebody interrupts."""

import copy
import pickle
import signal
import threading
import time

import exactly
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import run, star, timed
from programs import any_programs

from fastreduce import HOST, Program, algorithms, simulate
from fastreduce.algorithms.collectives import program as collective
from fastreduce.listing import Listing
from fastreduce.simulation import BOOK, EVENTS, Costs, seconds
from fastreduce.simulation.run import Run
from fastreduce.topology import preset

MB = 1_000_000
EVERYONE = (0, 1, 2, 3)

rates = st.lists(st.sampled_from([1e9, 2e9, 5e9]), min_size=4, max_size=4).map(tuple)
costs = st.builds(
    Costs,
    call_s=st.sampled_from([0.0, 1e-3]),
    launch_s=st.sampled_from([0.0, 2e-3]),
    event_wait_s=st.sampled_from([0.0, 5e-4, 0.3]),
    ramp_bytes=st.sampled_from([0.0, 1e6]),
    by_kernels=st.booleans(),
)
on_the_host = st.builds(
    lambda program, host: Program(
        program.k,
        program.shards,
        [x._replace(rank=HOST) if i in host else x for i, x in enumerate(program.instructions)],
    ),
    any_programs(),
    st.sets(st.integers(0, 7), max_size=3),
)


class TestExactly:
    @settings(max_examples=60)
    @given(on_the_host, rates, st.sampled_from([3e9, 1e12]), st.integers(1, 3), costs)
    def test_in_fractions_it_takes_as_long(self, program, rates, memory, slices, costs):
        topology = star(4, bytes_per_s=rates, memory_bytes_per_s=memory, latency_s=1e-3)
        expected = exactly.seconds(program, topology, 100 * MB, slices, costs)
        assert seconds(program, topology, 100 * MB, slices, costs) == pytest.approx(
            expected, rel=1e-9, abs=1e-11
        )

    def test_control_what_is_told_otherwise_shows(self):
        program, topology = algorithms.leader(4), star(4, latency_s=1e-3)
        expected = exactly.seconds(program, topology, 100 * MB, 2, BOOK)
        for slices, each in ((1, BOOK), (2, BOOK._replace(launch_s=1e-3))):
            found = seconds(program, topology, 100 * MB, slices, each)
            assert found != pytest.approx(expected, rel=1e-3)


class TestSeconds:
    @pytest.mark.parametrize("name", ["ring", "sharded", "host", "by-parameter"])
    @pytest.mark.parametrize("slices", [None, 3])
    def test_are_those_of_simulate(self, name, slices):
        program, sizes = algorithms.registry[name](4), [60 * MB, 100 * MB]
        found = seconds(program, preset("book-pcie4"), sizes, slices)
        assert found == simulate(program, "book-pcie4", sizes, slices=slices).time_s

    def test_nothing_is_proven(self):
        twice = run((0, 0, (0, 3), (0,)), (0, 0, EVERYONE, EVERYONE))
        assert seconds(twice, star(4), MB, 1, EVENTS) == timed(twice, star(4), MB).time_s

    def test_what_is_malformed_is_refused(self):
        with pytest.raises(ValueError, match="shard 9 is not one of"):
            seconds(run((0, 9, (0,), (1,))), star(4), MB)
        with pytest.raises(ValueError, match=r"5 ranks.*4 devices"):
            seconds(algorithms.ring(5), star(4), MB)


class TestEvents:
    def made(self, timeline):
        return "items" in vars(timeline.events)

    def test_are_made_when_somebody_reads_one(self):
        timeline = simulate(algorithms.ring(4), star(4), 100 * MB, costs=BOOK)
        _ = timeline.time_s, timeline.busy_share, str(timeline), repr(timeline), timeline.events
        assert not self.made(timeline)
        assert timeline.events[0].start_s == 0
        assert self.made(timeline)

    @pytest.mark.parametrize("slices", [1, 3])
    @pytest.mark.parametrize("name", ["ring", "sharded", "host", "leader"])
    def test_are_as_many_and_end_as_was_said_without_them(self, name, slices):
        timeline = timed(algorithms.registry[name](4), preset("book-pcie4"), 100 * MB, slices)
        assert len(timeline.events) == len(list(timeline.events))
        assert timeline.time_s == max(event.end_s for event in timeline.events)
        again = pickle.loads(pickle.dumps(timeline))
        assert again.run is None and isinstance(again.events, Listing)
        assert again == timeline and again.time_s == timeline.time_s
        assert again.link_bytes == pytest.approx(timeline.link_bytes)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_programs_and_topologies_are_copied_after_use_too(again):
    program, topology = algorithms.ring(4), preset("book-pcie4")
    found = simulate(program, topology, MB)
    assert again(program) == program
    assert simulate(again(program), again(topology), MB) == found


def endless():
    """Hours: a quarter of a million transfers at a time, of which hardly any two end together."""
    k = 512
    topology = star(k, bytes_per_s=tuple(1e9 + 1e3 * rank * rank for rank in range(k)))
    return Run(collective("reduce_scatter", k), topology, MB, None, EVENTS)


class TestBesideOthers:
    @pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timers")
    @pytest.mark.sweep("large machines")
    def test_a_signal_ends_it(self):
        class Enough(Exception):
            pass

        def stop(*_):
            raise Enough

        long, before = endless(), signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            with pytest.raises(Enough):
                _ = long.time_s
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def test_other_threads_go_on(self):
        program = algorithms.ring(64)
        topology = star(64, bytes_per_s=tuple(1e9 + 1e6 * rank * rank for rank in range(64)))
        expected, found = seconds(program, topology, MB, 4), []
        threads = [
            threading.Thread(target=lambda: found.append(seconds(program, topology, MB, 4)))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        steps = 0
        while any(thread.is_alive() for thread in threads):
            steps += 1
            time.sleep(1e-3)
        assert found == [expected] * 3
        assert steps > 5
