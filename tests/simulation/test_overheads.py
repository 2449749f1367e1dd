"""What an engine adds to the time on links and in memories."""

import math

import pytest
from networks import run, star, timed

from fastreduce import Instruction, Program, algorithms, simulate
from fastreduce.simulation import BOOK, EVENTS, Costs, seconds
from fastreduce.simulation.costs import costs_of

GB = 1_000_000_000
EVERYONE = (0, 1, 2, 3)
WAIT_S = EVENTS.event_wait_s


class TestOverheads:
    """One byte: all that shows is what a step costs."""

    def time_us(self, program, latency_s=1e-3):
        return timed(program, star(4, latency_s=latency_s), 1).time_s * 1e6

    def test_a_launch_and_two_links(self):
        assert self.time_us(run((0, 0, (0,), (1,)))) == pytest.approx(
            2000 + EVENTS.launch_s * 1e6, abs=0.01
        )

    def test_latency_there_and_back(self):
        one = Program(2, 1, [Instruction(0, 0, (0, 1), (0, 1))])
        assert self.time_us(one) == pytest.approx(4000 + EVENTS.launch_s * 1e6, abs=0.01)

    def test_a_wait_for_another_device(self):
        chain = run((1, 0, (0,), (1,)), (2, 0, (1,), (2,)))
        expected_us = 4000 + (2 * EVENTS.launch_s + EVENTS.event_wait_s) * 1e6
        assert self.time_us(chain) == pytest.approx(expected_us, abs=0.01)

    def test_no_wait_for_itself(self):
        chain = run((1, 0, (0,), (1,)), (1, 0, (1,), (2,)))
        expected_us = 4000 + 2 * EVENTS.launch_s * 1e6
        assert self.time_us(chain) == pytest.approx(expected_us, abs=0.01)

    def test_a_wait_that_is_over_costs_nothing(self):
        """Rank 1's second launch waits for an event of long ago, and for its own first."""
        program = run(
            (0, 0, (0,), (0,)), (1, 1, (2,), (1,)), (1, 1, (1,), (3,)), (1, 0, (0,), (1,)), shards=2
        )
        assert len(program.launches()) == 3
        expected_us = 4000 + 2 * EVENTS.launch_s * 1e6
        assert self.time_us(program) == pytest.approx(expected_us, abs=0.01)

    def test_a_wait_that_is_not_over_when_the_device_is_free(self):
        """Rank 1 ends a route later than rank 0, yet before it sees rank 0's event."""
        program = run(
            (0, 0, (0,), (0,)), (1, 1, (2,), (1,)), (1, 1, (1,), (3,)), (1, 0, (0,), (1,)), shards=2
        )
        route_s = EVENTS.event_wait_s / 2
        expected_us = (2 * EVENTS.launch_s + EVENTS.event_wait_s + route_s) * 1e6
        assert self.time_us(program, route_s / 2) == pytest.approx(expected_us, abs=0.01)


def test_who_fetches_a_result_waits_for_all_that_it_is_made_of():
    """Rank 0 reads three shards in 3 s, and writes their sum meanwhile, in 1 s."""
    fetched = run((0, 0, (1, 2, 3), (1,)), (2, 0, (1,), (2,)))
    costs = BOOK._replace(by_kernels=True)
    assert timed(fetched, star(4), GB, costs=costs).time_s == pytest.approx(3 + 1)


class TestCosts:
    """A chain of two copies, 2 ms of latency each, at 1 GB/s."""

    CHAIN = run((1, 0, (0,), (1,)), (2, 0, (1,), (2,)))
    MACHINE = star(4, latency_s=1e-3, memory_bytes_per_s=1e12)

    def time_ms(self, program=CHAIN, **costs):
        found = timed(program, self.MACHINE, 1_000_000, costs=BOOK._replace(**costs))
        return found.time_s * 1e3

    def test_nothing_but_the_links(self):
        assert self.time_ms() == pytest.approx(6)

    def test_a_call_counts_once_and_the_others_in_each_step(self):
        assert self.time_ms(call_s=1e-3) == pytest.approx(7)
        assert self.time_ms(launch_s=1e-3) == pytest.approx(8)
        assert self.time_ms(event_wait_s=1e-3) == pytest.approx(7)

    def test_a_transfer_takes_as_long_as_one_with_the_ramp_more(self):
        """At the rate of its slowest link, however many share that; memories have a ramp too."""
        assert self.time_ms(ramp_bytes=500_000) == pytest.approx(7)
        shared = run((0, 0, EVERYONE, (0,)))
        assert self.time_ms(shared) == pytest.approx(2 + 3)
        assert self.time_ms(shared, ramp_bytes=500_000) == pytest.approx(2 + 3 + 0.5)
        own = run((0, 0, (0,), (0,)))
        assert self.time_ms(own, ramp_bytes=10**9) == pytest.approx(1 + 0.002)

    def test_nothing_to_do_costs_nothing(self):
        assert self.time_ms(Program(4, 1, []), call_s=1.0) == 0

    def test_the_default_is_what_the_events_engine_costs(self):
        ring = algorithms.ring(4)
        assert simulate(ring, star(4), GB) == simulate(ring, star(4), GB, costs=costs_of(ring))

    @pytest.mark.parametrize("found", [-1e-9, math.inf, math.nan])
    @pytest.mark.parametrize("name", [x for x in Costs._fields if x != "by_kernels"])
    def test_what_is_no_cost_is_refused(self, name, found):
        with pytest.raises(ValueError, match=f"costs: {name} is {found}, want a finite number"):
            self.time_ms(**{name: found})

    def test_what_is_no_costs_at_all_is_refused(self):
        with pytest.raises(TypeError, match="costs is 3"):
            simulate(algorithms.ring(4), star(4), GB, costs=3)
        with pytest.raises(TypeError, match="costs is 3"):
            seconds(algorithms.ring(4), star(4), GB, costs=3)


class TestByTheRules:
    def test_one_lane_waits_for_the_callers_and_they_for_it(self):
        assert costs_of(algorithms.leader(8)).call_s == pytest.approx(2 * WAIT_S)

    def test_other_lanes_wait_for_the_first_and_it_for_them(self):
        assert costs_of(algorithms.sharded(8)).call_s == pytest.approx(4 * WAIT_S)

    def test_the_hosts_operands_are_copied_one_by_one(self):
        each_s = EVENTS.launch_s + WAIT_S
        assert costs_of(algorithms.host(8)).call_s == pytest.approx(2 * WAIT_S + 16 * each_s)

    def test_other_costs_stay(self):
        costs = Costs(5e-6, 1e-6, 0.0, 7.0, by_kernels=False)
        assert costs_of(algorithms.sharded(4), costs) == costs
