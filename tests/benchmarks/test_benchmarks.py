"""The benchmarks' own parts: what they call wrong, and what they take time of."""

import time
from functools import partial
from pathlib import Path

import pytest
import torch

from fastreduce import allreduce

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CPU = [torch.device("cpu")]


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


class TestChecks:
    def buffers(self, dtype, k=4, count=300, cache_bytes=0):
        from rotation import Buffers

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

    def test_every_competitor_is_right(self):
        from competitors import theirs

        contenders = theirs(torch.bfloat16, "sum", 4, on_gpu=False)
        assert [x.algorithm for x in contenders] == ["loop", "stack", "foreach"]
        for contender in contenders:
            buffers = self.buffers(torch.bfloat16)
            assert buffers.count_wrong("sum", contender.prepare(buffers.sets[0])) == 0

    def test_values_stay_finite(self):
        from rotation import CALLS_A_SET

        buffers = self.buffers(torch.float16, k=8)
        buffers.refill()
        for _ in range(CALLS_A_SET):
            allreduce(buffers.sets[0])
        assert buffers.pools[0].isfinite().all()
        assert buffers.pools[0].any()

    def test_sets_take_turns(self):
        from competitors import ours
        from rotation import Rotation

        buffers = self.buffers(torch.float32, cache_bytes=10_000)
        called = []
        calls = [partial(called.append, i) for i in range(len(buffers.sets))]
        rotation = Rotation(buffers, ours("tiles", "auto", "sum"), calls)
        rotation.run(len(calls) + 2)
        assert called == [*range(len(calls)), 0, 1]

    def test_slow_calls_are_not_repeated_for_the_hosts_share(self, monkeypatch):
        from competitors import ours
        from rotation import HOST_CALLS, HOST_SAMPLES, Buffers, Rotation

        monkeypatch.setattr(Rotation, "synchronize", lambda self: None)
        buffers = Buffers([(3,)], torch.float32, 2, CPU, 0)
        called = []

        def call():
            called.append(1)
            time.sleep(0.005)

        rotation = Rotation(buffers, ours("tiles", "auto", "sum"), [call])
        assert rotation.host_seconds(100) >= 0.005
        assert len(called) == HOST_CALLS * HOST_SAMPLES
