"""What a timeline says, and what it looks like in Perfetto."""

import json
import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from networks import star

from fastreduce import Instruction, Program, algorithms, simulate
from fastreduce.simulation import Event, Timeline
from fastreduce.simulation.rows import lanes, one_of_alike_machines, rows

MB = 1_000_000


def book(program, slices=1):
    return simulate(program, "book-pcie4", "160MB", slices=slices)


def a_timeline(*events):
    return Timeline("made up", 2, 100, events, {("a", "b"): 10.0, ("b", "a"): None})


class TestFigures:
    def test_bandwidths(self):
        timeline = a_timeline(Event("a", "x", 0.0, 4.0, 100, 0))
        assert timeline.time_s == 4
        assert timeline.algbw == 25
        assert timeline.busbw == 25  # 2(k-1)/k is 1 for two

    def test_busbw_is_that_of_a_link_at_its_limit(self):
        assert book(algorithms.sharded(4)).busbw == pytest.approx(16e9, rel=0.01)

    def test_nothing_takes_no_time(self):
        idle = a_timeline()
        assert (idle.time_s, idle.algbw, idle.busbw) == (0, math.inf, math.inf)
        assert set(idle.busy_share.values()) == {0}

    def test_busy_share_of_a_link(self):
        link = ("a", "b")
        timeline = a_timeline(
            Event("a", "x", 0.0, 10.0, 100, 0),
            Event(link, "x", 0.0, 5.0, 25, 0),
            Event(link, "x", 0.0, 5.0, 25, 1),
        )
        assert timeline.busy_share == {link: 0.5, ("b", "a"): 0.0}

    def test_in_words(self):
        said = str(book(algorithms.leader(2))).splitlines()
        assert said[0] == "160 MB on each of 2 ranks, book-pcie4: 10 ms, " + (
            "algbw 15.99 GB/s, busbw 15.99 GB/s"
        )
        assert said[1].split() == ["gpu0", "->", "pcie0", "100.0%", "busy", "160", "MB"]
        assert len(said) == 5

    def test_in_few_words_where_there_are_many_links(self):
        said = str(simulate(algorithms.ring(16), star(16), MB)).splitlines()
        assert len(said) == 10 and said[-1].startswith("  and 24 links, at most ")

    def test_on_one_line(self):
        timeline = simulate(algorithms.ring(16), star(16), 160 * MB)
        assert (
            repr(timeline) == "Timeline(160 MB on each of 16 ranks, star: 300.1 ms, 1,440 events)"
        )
        assert repr(a_timeline()) == "Timeline(made up: 0 us, 0 events)"

    def test_events_on_one_line(self):
        said = repr(book(algorithms.ring(4)).events)
        assert said.startswith("(Event(who='gpu0', what=") and said.endswith(", ... 72 in all)")

    def test_events_name_shards_and_ranks(self):
        events = book(algorithms.sharded(4), slices=2).events
        said = {(event.who, event.what) for event in events}
        assert ("gpu3", "shard 3 <- ranks 0-3, slice 1") in said
        assert (("gpu2", "pcie0"), "shard 3 <- rank 2, slice 0") in said
        assert (("pcie0", "gpu0"), "shard 3 -> rank 0, slice 1") in said
        third = Program(3, 1, [Instruction(2, 0, (0,), (1,))])
        third = simulate(third, "book-pcie4", MB, verify=False)
        said = [event.what for event in third.events if event.who == "gpu2"]
        assert said == ["shard 0 <- rank 0", "shard 0 -> rank 1"]


def overlapping(events):
    """Pairs of neighbours on a track of which the second starts before the first ends."""
    events = sorted(events, key=lambda e: e["ts"])
    return [(a, b) for a, b in pairwise(events) if b["ts"] < a["ts"] + a["dur"] - 1e-6]


class TestTrace:
    PROGRAMS = (algorithms.sharded(4), algorithms.ring(3), algorithms.host(4), algorithms.leader(1))

    def trace(self, timeline, tmp_path):
        timeline.to_trace(tmp_path / "trace.json")
        return json.loads((tmp_path / "trace.json").read_text())["traceEvents"]

    @pytest.mark.parametrize("program", PROGRAMS)
    @pytest.mark.parametrize("slices", [1, 3])
    def test_has_each_event_once_in_microseconds(self, program, slices, tmp_path):
        timeline = book(program, slices)
        found = [e for e in self.trace(timeline, tmp_path) if e["ph"] == "X"]
        assert sorted((e["name"], e["ts"], e["args"]["bytes"]) for e in found) == sorted(
            (e.what, round(e.start_s * 1e6, 3), e.bytes) for e in timeline.events
        )
        assert max(e["ts"] + e["dur"] for e in found) == pytest.approx(timeline.time_s * 1e6)

    @pytest.mark.parametrize("program", PROGRAMS)
    @pytest.mark.parametrize("slices", [1, 3])
    def test_tracks_have_names_and_no_overlap(self, program, slices, tmp_path):
        found = self.trace(book(program, slices), tmp_path)
        named = {e["tid"]: e["args"]["name"] for e in found if e["name"] == "thread_name"}
        tracks = {}
        for event in found:
            if event["ph"] == "X":
                tracks.setdefault(event["tid"], []).append(event)
        assert tracks.keys() == named.keys()
        assert len(set(named.values())) == len(named)
        assert not any(overlapping(events) for events in tracks.values())

    def test_control_the_check_of_overlaps_sees_one(self):
        assert overlapping([{"ts": 0, "dur": 5}, {"ts": 4, "dur": 2}])
        assert not overlapping([{"ts": 4, "dur": 2}, {"ts": 0, "dur": 4}])

    def test_each_device_and_each_link_has_a_track(self, tmp_path):
        found = self.trace(book(algorithms.ring(2)), tmp_path)
        names = [e["args"]["name"] for e in found if e["name"] == "thread_name"]
        assert names == [
            "gpu0",
            "gpu1",
            "gpu0 -> pcie0",
            "gpu1 -> pcie0",
            "pcie0 -> gpu0",
            "pcie0 -> gpu1",
        ]


class TestRows:
    @given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9)), max_size=20))
    def test_as_few_as_overlap_at_once(self, spans):
        events = [Event("a", "x", s, s + length, 0, 0) for s, length in sorted(spans)]
        found = rows(events)
        assert sorted(e for row in found for e in row) == events
        assert all(a.end_s <= b.start_s for row in found for a, b in pairwise(row))
        at_once = [sum(a.start_s <= e.start_s < a.end_s for a in events) for e in events]
        assert len(found) == max(at_once, default=0)

    def test_one_lane_for_those_of_alike_machines(self, monkeypatch):
        def works(who, start_s):
            return Event(who, "x", start_s, start_s + 1, 0, 0)

        events = [works(f"m{i}/gpu{g}", i == 2) for i in range(4) for g in range(2)]
        events += [works((f"m{i}/nic0", "network"), 3) for i in range(4)]
        found = lanes(sorted(events, key=lambda event: event.start_s))
        assert one_of_alike_machines(found) is found
        monkeypatch.setattr("fastreduce.simulation.rows.MOST_LANES", 3)
        assert list(one_of_alike_machines(found)) == [
            "m0/gpu0 (1 of 3)",
            "m0/gpu1 (1 of 3)",
            "m2/gpu0",
            "m2/gpu1",
            "m0/nic0 -> network (1 of 4)",
        ]

    def test_lanes_count_in_order(self):
        events = [Event(who, "x", 0, 1, 0, 0) for who in ("gpu10", ("gpu2", "gpu1"), "gpu9")]
        assert list(lanes(events)) == ["gpu9", "gpu10", "gpu2 -> gpu1"]
