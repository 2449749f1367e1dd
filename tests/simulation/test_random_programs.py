"""What holds for any program, slices and bandwidths."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from networks import bytes_on_links, conflicts, moves, run, star, timed
from programs import any_programs, right_programs

from fastreduce import HOST, Instruction, Program, algorithms, simulate
from fastreduce.simulation import BOOK

GB = 1_000_000_000
EVERYONE = (0, 1, 2, 3)


def task_spans(program, timeline):
    """(start, end) of each instruction: a lane's events are its launches in order, each a read and,
    where something is written elsewhere, a write."""
    lanes = {}
    for event in timeline.events:
        lanes.setdefault(event.who, []).append(event)
    spans = {}
    for group in program.launches():
        instructions = [program.instructions[index] for index in group]
        lane = lanes[f"gpu{instructions[0].rank}" if instructions[0].rank != HOST else "cpu"]
        start_s = lane[0].start_s
        end_s = lane.pop(0).end_s
        if any(_writes_elsewhere(x) for x in instructions):
            end_s = lane.pop(0).end_s
        spans.update(dict.fromkeys(group, (start_s, end_s)))
    return spans


def _writes_elsewhere(x):
    straight = len(x.srcs) == len(x.dsts) == 1 and x.srcs != x.dsts and x.rank in x.srcs + x.dsts
    return not straight and any(dst != x.rank for dst in x.dsts)


def too_early(program, spans):
    pairs = [(a, b) for a, b in conflicts(program) if spans[b][0] < spans[a][1] - 1e-9]
    groups = {index: number for number, group in enumerate(program.launches()) for index in group}
    return [(a, b) for a, b in pairs if groups[a] != groups[b]]


programs = any_programs() | right_programs.filter(lambda p: len(p.instructions) < 40)


class TestInGeneral:
    @given(programs)
    def test_what_conflicts_comes_one_after_the_other(self, program):
        timeline = timed(program, star(16), GB)
        assert too_early(program, task_spans(program, timeline)) == []

    def test_control_a_start_that_is_too_early_shows(self):
        program = algorithms.ring(3)
        spans = task_spans(program, timed(program, star(3), GB))
        assert too_early(program, spans) == []
        for index, (start_s, end_s) in spans.items():
            moved = spans | {index: (start_s - 1e-3, end_s)}
            assert bool(too_early(program, moved)) == (index >= 3)

    @given(programs, st.integers(1, 3))
    def test_links_carry_what_the_program_moves(self, program, slices):
        timeline = timed(program, star(16), GB, slices)
        expected = bytes_on_links(program, star(16), GB)
        assert {link: n for link, n in timeline.link_bytes.items() if n} == pytest.approx(expected)

    def test_control_a_forgotten_destination_shows(self):
        program = algorithms.leader(4)
        fewer = Program(4, 1, [Instruction(0, 0, EVERYONE, (0, 1, 2))])
        assert moves(program.instructions[0]) != moves(fewer.instructions[0])
        timeline = timed(fewer, star(4), GB)
        expected = bytes_on_links(program, star(4), GB)
        assert {link: n for link, n in timeline.link_bytes.items() if n} != pytest.approx(expected)

    @given(programs, st.integers(1, 3))
    def test_links_are_never_more_than_busy(self, program, slices):
        timeline = timed(program, star(16), GB, slices)
        assert all(0 <= share <= 1 + 1e-9 for share in timeline.busy_share.values())

    @given(programs, st.integers(2, 9), st.integers(1, 3))
    def test_time_scales_with_bytes_and_bandwidths(self, program, factor, slices):
        fast = star(16, bytes_per_s=factor * 1e9, memory_bytes_per_s=factor * 3e9)
        time_s, more_s, faster_s = (
            timed(program, topology, nbytes, slices, BOOK).time_s
            for topology, nbytes in (
                (star(16, memory_bytes_per_s=3e9), GB),
                (star(16, memory_bytes_per_s=3e9), factor * GB),
                (fast, GB),
            )
        )
        assert more_s == pytest.approx(time_s * factor)
        assert faster_s == pytest.approx(time_s / factor)

    def test_control_overheads_do_not_scale(self):
        once_s, twice_s = (simulate(algorithms.ring(4), star(4), n).time_s for n in (100, 200))
        assert twice_s < 1.1 * once_s

    @given(st.lists(st.integers(1, 50), min_size=4, max_size=4), st.integers(0, 3))
    def test_a_wider_link_never_delays_a_reduction(self, rates, wider):
        """One stage, whose transfers all share their last link only."""
        program = run((0, 0, EVERYONE, (0,)))
        widened = [rate * (2 if rank == wider else 1) for rank, rate in enumerate(rates)]
        before_s, after_s = (
            timed(program, star(4, bytes_per_s=tuple(r * 1e6 for r in found)), GB).time_s
            for found in (rates, widened)
        )
        assert after_s <= before_s * (1 + 1e-9)

    @given(st.lists(st.integers(1, 50), min_size=4, max_size=4))
    def test_control_a_narrower_last_link_does(self, rates):
        program = run((0, 0, EVERYONE, (0,)))
        found = [r * 1e6 for r in rates]
        narrow = [min(found) / 4, *found[1:]]
        before_s, after_s = (
            timed(program, star(4, bytes_per_s=tuple(r)), GB).time_s for r in (found, narrow)
        )
        assert after_s > before_s
