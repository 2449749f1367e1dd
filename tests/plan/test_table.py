"""What a table takes, and what it answers."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import integer_bits, noise
from tables import BUILT_IN, KS, PLACES, SIZES, WRONG_TIMES, grids, table, times

import fastreduce
from fastreduce import Instruction, Program
from fastreduce.algorithms import registry
from fastreduce.plan.machine import device, versions
from fastreduce.plan.table import TIE, Table, _may_serve


class TestTable:
    @pytest.mark.parametrize(("spoil", "words"), WRONG_TIMES)
    def test_refuses_holes_and_what_is_no_time(self, spoil, words):
        found = times()
        spoil(found)
        with pytest.raises(ValueError, match=words):
            Table("a CPU", "0.1.0", "2.13", "2026-11-21", found)

    def test_control_takes_the_grid_before_it_is_spoiled(self):
        assert table(times()).times_s == times()

    @pytest.mark.parametrize("bad", [0, -1, 1 << 63, 2.0, True, "1 MiB", []])
    def test_refuses_what_is_no_size_for_the_copy_engine(self, bad):
        words = "copy_engine_bytes, nvlink: found .*, want bytes above zero, or null for never"
        with pytest.raises(ValueError, match=words):
            table(copy_engine_bytes={"nvlink": bad})
        table(copy_engine_bytes={"nvlink": 1, "pcie": None})  # control

    def test_refuses_copies_where_there_are_no_two_gpus(self):
        with pytest.raises(ValueError, match=r"copy_engine_bytes, gpu: .*, want nvlink or pcie"):
            table(copy_engine_bytes={"gpu": 1})

    def test_prints_what_the_copy_engine_copies(self):
        lines = str(table(copy_engine_bytes={"nvlink": 4 << 20, "pcie": None})).splitlines()
        copies = "copies between two GPUs by the copy engine"
        assert f"nvlink, {copies}: from 4194304 bytes on" in lines
        assert f"pcie, {copies}: never" in lines

    def test_prints_what_auto_takes_at_each_size(self):
        lines = str(table(times(4e-6, ["cpu"], sharded=2e-6))).splitlines()
        assert (
            lines[0] == f"{device()}; fastreduce {versions()[0]}, torch {versions()[1]}, 2026-11-21"
        )
        assert [x for x in lines if x.startswith("cpu")] == [f"cpu, k = {k}" for k in KS]
        rows = [x.split() for x in lines if x.strip()[:1].isdigit()]
        assert rows[1] == ["16384", "sharded", "2.00", "8.19", "leader", "2.00"]
        assert len(rows) == len(KS) * len(SIZES)


class TestBest:
    @given(grids(), st.integers(1, 20), st.integers(0, 1 << 20))
    def test_is_not_slower_than_a_tie_with_the_fastest(self, found, k, nbytes):
        (place,) = found
        near_k = min(KS, key=lambda x: abs(math.log2(x / k)))
        near = min(SIZES, key=lambda x: abs(math.log2(x / max(nbytes, 1))))
        taken = table(found).best(place, k, nbytes)
        running = {n: found[place][n][near_k][near] for n in BUILT_IN if _may_serve(place, n, k)}
        assert running[taken] <= TIE * min(running.values())

    def test_control_the_default_would_be(self):
        found = times(sharded=1e-6 / 1.06)["cpu"]
        assert found["leader"][2][SIZES[0]] > TIE * found["sharded"][2][SIZES[0]]

    def test_a_tie_goes_to_the_default(self):
        assert table(times(sharded=1e-6 / 1.04)).best("cpu", 4, 1024) == "leader"
        assert table(times(sharded=1e-6 / 1.06)).best("cpu", 4, 1024) == "sharded"

    def test_takes_the_nearest_size_and_ranks_on_a_log_scale(self):
        found = times()
        found["cpu"]["sharded"][8][1 << 14] = 1e-7
        near = [(k, n) for k in range(2, 20) for n in (0, 4095, 4097, 65535, 65537)]
        taken = {(k, n) for k, n in near if table(found).best("cpu", k, n) == "sharded"}
        assert taken == {(k, n) for k, n in near if k >= 6 and 4096 < n < 65536}

    def test_says_whose_times_it_takes(self):
        assert [table().measured_ranks("cpu", k) for k in (1, 2, 3, 4, 5, 8, 99)] == [
            *(None, 2, 4, 4, 4, 8, 8)
        ]
        assert table().measured_ranks("pcie", 4) is None
        assert table().time_s("cpu", "ring", 1, 1024) is None

    def test_is_none_where_nothing_was_measured(self):
        assert table().best("pcie", 4, 1024) is None
        assert table().time_s("pcie", "ring", 4, 1024) is None
        assert table().time_s("cpu", "mine", 4, 1024) is None

    def test_keeps_the_promised_bits(self):
        fast = table(times(ring=1e-9, places=("cpu", "gpu", "nvlink", "pcie")))
        for place in ("cpu", "gpu", "nvlink"):
            assert fast.best(place, 4, 1024) == "leader"
        assert fast.best("pcie", 4, 1024) == "ring"

    @pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 0, 2, 3), (0, 1, 3, 2)])
    def test_only_ascending_sources_keep_them(self, order, monkeypatch):
        """That all are summed by one instruction is not enough."""
        program = Program(4, 1, [Instruction(0, 0, order, range(4))])
        monkeypatch.setitem(registry, "sharded", lambda k: program)
        fast = table(times(sharded=1e-9, places=("cpu", "gpu", "nvlink", "pcie")))
        best = {place: fast.best(place, 4, 1024) for place in fast.times_s}
        kept = "sharded" if order == (0, 1, 2, 3) else "leader"
        assert best == {"cpu": kept, "gpu": kept, "nvlink": kept, "pcie": "sharded"}

    def test_between_gpus_shares_the_work_of_a_single_tensor(self):
        fast = table(times(by_parameter=1e-9))
        assert [fast.best(place, 4, 1024) for place in PLACES] == ["by-parameter", "leader"]

    @pytest.mark.parametrize("k", [2, 3, 8, 9])
    def test_who_may_serve_has_the_bits_of_leader(self, k):
        assert {"leader", "sharded", "host"} <= {x for x in BUILT_IN if _may_serve("cpu", x, k)}
        changed = []
        for name in BUILT_IN:
            by_leader, by_name = noise(k, (999,), torch.float16), noise(k, (999,), torch.float16)
            fastreduce.allreduce(by_leader, algorithm="leader")
            fastreduce.allreduce(by_name, algorithm=name)
            if not torch.equal(integer_bits(by_name[0]), integer_bits(by_leader[0])):
                changed.append(name)
        assert not any(_may_serve("cpu", name, k) for name in changed)
        assert changed or k == 2, "control: others have other bits"


class TestTime:
    @given(grids())
    def test_passes_through_what_was_measured(self, found):
        (place,) = found
        for name, k, nbytes in ((n, k, s) for n in BUILT_IN[:3] for k in KS for s in SIZES):
            assert table(found).time_s(place, name, k, nbytes) == pytest.approx(
                found[place][name][k][nbytes]
            )

    @given(grids(), st.integers(SIZES[0], SIZES[-1]), st.integers(SIZES[0], SIZES[-1]))
    def test_is_monotone_between(self, found, one, other):
        (place,) = found
        lower, upper = sorted((one, other))
        below = max(size for size in SIZES[:-1] if size <= lower)
        above = SIZES[SIZES.index(below) + 1]
        at = [below, lower, min(upper, above), above]
        path = [table(found).time_s(place, "ring", 4, nbytes) for nbytes in at]
        rising = path[0] <= path[-1]
        near = 1 + 1e-9
        for a, b in itertools.pairwise(path):
            assert a <= b * near if rising else b <= a * near

    def test_beyond_the_sizes_is_latency_and_bandwidth(self):
        found = table()
        assert found.time_s("cpu", "ring", 4, 0) == pytest.approx(1e-6)
        assert found.time_s("cpu", "ring", 4, 3 * SIZES[-1]) == pytest.approx(3e-6)
