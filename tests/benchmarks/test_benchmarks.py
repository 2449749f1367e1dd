"""The benchmarks' own parts: what they call wrong, and what they take time of."""

import time
from functools import partial
from operator import mul

import contenders
import memory
import pytest
import torch
import torch.distributed as dist
from buffers import Buffers, cpu_cache_bytes
from contenders import absent, ours, theirs
from measure import alternate, bandwidth, in_turn, medians, sizes_bytes, slowest_s
from rotation import CALLS_PER_SET, HOST_CALLS, HOST_SAMPLES, Rotation

from fastreduce import allreduce

CPU = [torch.device("cpu")]


class TestChecks:
    def buffers(self, dtype, k=4, count=300, cache_bytes=0):
        return Buffers([(count,), (7, 3)], dtype, k, CPU, cache_bytes)

    @pytest.mark.parametrize("op", ["sum", "avg", "prod", "min", "max"])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
    def test_right_results_of_every_op(self, dtype, op):
        buffers = self.buffers(dtype, cache_bytes=10_000)
        assert len(buffers.sets) > 2

        def call():
            for ranks in buffers.sets:
                allreduce(ranks, op)

        assert buffers.count_wrong(op, call) == 0

    def test_control_what_does_nothing_is_wrong_everywhere(self):
        assert self.buffers(torch.float32).count_wrong("sum", lambda: None) == 4 * (300 + 21)

    def test_control_one_element(self):
        buffers = self.buffers(torch.float32)

        def call():
            allreduce(buffers.sets[0])
            buffers.sets[0][2][1][6, 2] += 1

        assert buffers.count_wrong("sum", call) == 1

    def test_every_contender_is_right(self):
        found = theirs(torch.bfloat16, "sum", 4, False, ["loop", "stack", "foreach", "cupy"])
        assert [x.algorithm for x in found] == ["loop", "stack", "foreach"]
        for contender in found:
            buffers = self.buffers(torch.bfloat16)
            assert buffers.count_wrong("sum", contender.prepare(buffers.sets[0])) == 0

    def test_values_stay_finite(self):
        buffers = self.buffers(torch.float16, k=8)
        buffers.refill()
        for _ in range(CALLS_PER_SET):
            allreduce(buffers.sets[0])
        assert buffers.pools[0].isfinite().all()
        assert buffers.pools[0].any()

    def test_sets_take_turns(self):
        buffers = self.buffers(torch.float32, cache_bytes=10_000)
        called = []
        calls = [partial(called.append, i) for i in range(len(buffers.sets))]
        rotation = Rotation(buffers, ours("tiles", "auto", "sum"), calls)
        rotation.seconds(len(calls) + 2)
        assert called == [*range(len(calls)), 0, 1]
        # Another contender begins where that one ended: elsewhere it would find the cache warm.
        Rotation(buffers, ours("tiles", "ring", "sum"), calls).seconds(1)
        assert called[-1] == 2

    def test_slow_calls_are_not_repeated_for_the_hosts_share(self, monkeypatch):
        monkeypatch.setattr(Rotation, "synchronize", lambda self: None)
        buffers = Buffers([(3,)], torch.float32, 2, CPU, 0)
        called = []

        def call():
            called.append(1)
            time.sleep(0.005)

        rotation = Rotation(buffers, ours("tiles", "auto", "sum"), [call])
        assert rotation.host_seconds(100) >= 0.005
        assert len(called) == HOST_CALLS * HOST_SAMPLES


class TestCompiled:
    def test_it_is_right(self, monkeypatch):
        # Not compiled, which takes seconds: what is compiled is what is tested.
        monkeypatch.setattr(torch, "compile", lambda call, **options: call)
        monkeypatch.setattr(torch.compiler, "reset", lambda: None)
        monkeypatch.setattr(contenders, "absent", lambda on_gpu: {})
        [contender] = theirs(torch.float32, "sum", 4, False, ["compile"])
        buffers = Buffers([(300,), (7, 3)], torch.float32, 4, CPU, 0)
        assert buffers.count_wrong("sum", contender.prepare(buffers.sets[0])) == 0

    def test_without_a_compiler_it_is_left_out_with_the_reason(self, monkeypatch):
        monkeypatch.setenv("CXX", "no-such-compiler")
        assert absent(False)["compile"] == "no compiler no-such-compiler"
        assert theirs(torch.float32, "sum", 4, False, ["compile"]) == []


class TestMeasure:
    def test_all_contenders_in_turn(self):
        called = []
        samples = alternate({x: partial(called.append, x) for x in "ab"}, 8, 1, most_repeats=1)
        assert called[:4] == [*"aabb"]  # each once to warm up and once to choose the repeats
        rounds = list(zip(called[4::2], called[5::2], strict=True))
        assert len(rounds) == 8
        assert set(rounds) == {("a", "b"), ("b", "a")}  # nobody always comes first
        assert {name: len(found) for name, found in samples.items()} == {"a": 8, "b": 8}

    def test_all_ranks_have_the_same_turns_and_the_slowest_counts(self, monkeypatch):
        called = []
        other_rank_s = torch.tensor([[7.0, 0.0, 0.0], [0.0, 0.0, 8.0]])

        def all_reduce(found_s, op):
            assert op == dist.ReduceOp.MAX
            found_s.copy_(found_s.maximum(other_rank_s))

        monkeypatch.setattr(dist, "barrier", lambda: called.append(" "))
        monkeypatch.setattr(dist, "all_reduce", all_reduce)
        found = slowest_s({x: partial(called.append, x) for x in "ab"}, calls=2, rounds=3)
        turns = "".join(called).split()
        assert turns == [2 * name for name in in_turn("ab", 4)]  # and the first does not count
        assert turns[::2] not in (["aa"] * 4, ["bb"] * 4)
        assert (found["a"].pop(0), found["b"].pop()) == (7, 8)
        assert [len(x) for x in found.values()] == [2, 2] and max(map(max, found.values())) < 1
        assert medians({"x": [3.0, 1.0, 2.0]}) == {"x": 2.0}

    def test_the_columns_of_nccl_tests(self):
        found = bandwidth(10**9, 0.5, 4)
        assert list(found.values()) == [0.5, 2.0, 3.0]

    def test_sizes(self):
        assert list(sizes_bytes(1024, 20_000, 4)) == [1024, 4096, 16384]


def test_every_cache_of_the_last_level_counts_once(tmp_path):
    def cache(cpu, index, level, shared_by, size):
        folder = tmp_path / f"cpu{cpu}" / "cache" / f"index{index}"
        folder.mkdir(parents=True)
        for name, text in (("level", level), ("shared_cpu_list", shared_by), ("size", size)):
            (folder / name).write_text(f"{text}\n")

    for cpu, shared_by in ((0, "0-1"), (1, "0-1"), (2, "2-3"), (3, "2-3")):
        cache(cpu, 0, 1, cpu, "32K")
        cache(cpu, 3, 3, shared_by, "1024K")
    assert cpu_cache_bytes(tmp_path) == 2 << 20
    assert cpu_cache_bytes(tmp_path / "nothing") == 0


def test_peak_bytes_are_those_of_the_call():
    # Of the standard library alone: a function of this file would bring torch with it.
    nothing, something = (memory.peak_bytes(partial(mul, b"x", n)) for n in (1, 50_000_000))
    assert nothing < 10e6 and 45e6 < something < 60e6
