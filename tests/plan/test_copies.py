"""From which size on a copy between two GPUs is left to the copy engine: timed, decided, handed on.

No GPU is needed: copies last as long as a test says.
"""

import pytest
import torch
from tables import table

from fastreduce import _C, allreduce
from fastreduce.algorithms.collectives import program
from fastreduce.plan import copies, tune
from fastreduce.plan.copies import COPY_ENGINE, KERNEL, copy_engine_bytes
from fastreduce.plan.noise import NoisyMeasurement
from fastreduce.plan.table import NEVER_BYTES
from fastreduce.plan.table_files import save, tuned

MIB = 1 << 20
DEFAULT = _C.default_copy_engine_bytes
SIZES = tuple(MIB << exponent for exponent in range(6))


def kernel_s(nbytes):
    return 3e-6 + nbytes / 400e9


def engine_s(latency_s, bytes_per_s):
    return lambda nbytes: latency_s + nbytes / bytes_per_s


NEVER_FASTER = engine_s(20e-6, 400e9)
ALWAYS_FASTER = engine_s(2e-6, 900e9)
FASTER_FROM_2_MIB = engine_s(4.5e-6, 800e9)
FASTER_FROM_32_MIB = engine_s(35e-6, 800e9)
CASES = {
    "never faster": (NEVER_FASTER, None),
    "always faster": (ALWAYS_FASTER, MIB),
    "faster from 2 MiB on": (FASTER_FROM_2_MIB, 2 * MIB),
    "faster from 32 MiB on": (FASTER_FROM_32_MIB, 32 * MIB),
    "faster from the default on": (engine_s(23e-6, 8e12), DEFAULT),
    "as fast": (kernel_s, DEFAULT),
}


class TestDecision:
    """By the seconds of each way and size."""

    def decided(self, engine):
        by_way = {KERNEL: kernel_s, COPY_ENGINE: engine}
        return copy_engine_bytes({way: {n: s(n) for n in SIZES} for way, s in by_way.items()})

    @pytest.mark.parametrize(("engine", "wanted"), CASES.values(), ids=CASES)
    def test_is_the_size_from_which_on_the_copy_engine_is_faster(self, engine, wanted):
        assert self.decided(engine) == wanted

    @pytest.mark.parametrize(("slower", "wanted"), [(1.04, DEFAULT), (1.06, None)])
    def test_the_default_stays_within_5_percent(self, slower, wanted):
        assert self.decided(lambda nbytes: slower * kernel_s(nbytes)) == wanted

    def test_one_size_that_is_off_by_little_does_not_decide(self):
        """As two ways that both fill the link are, at the largest size."""
        jitter = {SIZES[-1]: 1.02 * kernel_s(SIZES[-1])}
        assert self.decided(lambda n: jitter.get(n, 0.7 * kernel_s(n))) == MIB

    def test_of_sizes_that_are_as_good_the_nearest_to_the_default_is_taken(self):
        """Up to 2 MiB both ways take as long."""
        assert self.decided(lambda n: kernel_s(n) * (1 if n <= 2 * MIB else 0.5)) == 4 * MIB


class TestPairs:
    def test_are_the_first_two_gpus_of_each_place(self, monkeypatch):
        linked = {(1, 2), (2, 3)}
        monkeypatch.setattr(
            _C, "place", lambda gpus: "nvlink" if tuple(x.index for x in gpus) in linked else "pcie"
        )
        gpus = [torch.device("cuda", i) for i in range(4)]
        wanted = {"pcie": ("cuda:0", "cuda:1"), "nvlink": ("cuda:1", "cuda:2")}
        assert copies.pairs(gpus) == wanted
        assert copies.pairs(gpus[1:3]) == {"nvlink": ("cuda:1", "cuda:2")}

    @pytest.mark.parametrize("count", [0, 1])
    def test_there_is_none_where_there_are_no_two_gpus(self, count):
        assert copies.pairs([torch.device("cuda", i) for i in range(count)]) == {}


class TestCopy:
    def test_is_one_copy_of_one_rank(self):
        [only] = program("broadcast", 2, algorithm="direct").instructions
        assert (only.srcs, only.dsts) == ((0,), (1,))

    @pytest.mark.parametrize("way", copies.WAYS)
    def test_goes_one_way_and_later_ones_as_before(self, way):
        before, lists = _C.copy_engine_bytes(), [[torch.ones(9)], [torch.zeros(9)]]
        with pytest.raises(KeyboardInterrupt), copies.as_before():
            copies.copy(way, lists)  # the first may read the table
            copies.copy(way, lists)
            assert _C.copy_engine_bytes() == (copies.WAYS[way],) * 2 != before
            raise KeyboardInterrupt
        assert _C.copy_engine_bytes() == before
        assert lists[1][0].eq(1).all()


@pytest.fixture
def tuned_on(monkeypatch):
    """A machine of two "GPUs" joined by NVLink, with a clock on which only calls take time."""

    def run(copy_s):
        clock = {"now_s": 0.0, "copies": 0}

        def copy(way, lists):
            clock["copies"] += 1
            assert [len(tensors) for tensors in lists] == [1, 1]
            clock["now_s"] += copy_s(way, lists[0][0].nbytes, clock["copies"])

        def reduce(lists, algorithm):
            clock["now_s"] += 1e-3

        monkeypatch.setattr(copies, "copy", copy)
        monkeypatch.setattr(copies, "SIZES_BYTES", SIZES)
        monkeypatch.setattr(copies, "pairs", lambda gpus: {"nvlink": ("cpu", "cpu")})
        monkeypatch.setattr(tune, "allreduce", reduce)
        monkeypatch.setattr(tune, "_check", lambda place, on: None)
        monkeypatch.setattr(tune, "perf_counter", lambda: clock["now_s"])
        return tune.measure(progress=False, _ks=(2,), _sizes_bytes=(1024,))

    return run


class TestTune:
    @pytest.mark.parametrize(("engine", "wanted"), CASES.values(), ids=CASES)
    def test_times_both_ways_and_keeps_the_size(self, tuned_on, engine, wanted):
        by_way = {KERNEL: kernel_s, COPY_ENGINE: engine}
        found = tuned_on(lambda way, nbytes, _: by_way[way](nbytes))
        assert found.copy_engine_bytes == {"nvlink": wanted}
        assert found.times_s.keys() == {"cpu"}, "copies are no algorithms"

    def test_refuses_what_other_work_disturbed(self, tuned_on):
        """Some hundred calls at a time, of which a sample is the mean."""
        with pytest.raises(
            NoisyMeasurement, match=r"copy by .*, k = 2, .*: samples spread"
        ) as noisy:
            tuned_on(lambda way, nbytes, call: kernel_s(nbytes) * (1 + 6 * (call // 300 % 2)))
        assert {entry.algorithm for entry in noisy.value.entries} <= {*copies.WAYS}
        assert noisy.value.table.copy_engine_bytes.keys() == {"nvlink"}

    def test_measures_again_what_was_disturbed_for_a_while(self, tuned_on):
        """At the first size steadily, until larger ones were copied."""
        seen = set()

        def copy_s(way, nbytes, call):
            seen.add(nbytes)
            late = 100 if way == KERNEL and nbytes == MIB and SIZES[-1] not in seen else 1
            return late * kernel_s(nbytes)

        assert tuned_on(copy_s).copy_engine_bytes == {"nvlink": DEFAULT}

    def test_leaves_out_places_that_were_not_asked_for(self, monkeypatch):
        monkeypatch.setattr(copies, "pairs", lambda gpus: {"pcie": ("cpu", "cpu")})
        assert tune._copies(["cpu"]) == []
        assert {x.nbytes for x in tune._copies(["pcie"])} == {*copies.SIZES_BYTES}
        assert 0 < min(copies.SIZES_BYTES) < DEFAULT < max(copies.SIZES_BYTES)


class TestCalls:
    """The table's sizes reach the engines with the first call, whatever its algorithm."""

    @pytest.fixture(autouse=True)
    def with_engines(self, monkeypatch):
        monkeypatch.setattr(_C, "cuda_engines", True)
        with copies.as_before():
            yield

    def after_a_call(self, saved):
        save(saved)
        allreduce([torch.ones(2), torch.ones(2)], algorithm="ring")
        return _C.copy_engine_bytes()

    def test_take_the_tables_sizes(self):
        both = {"nvlink": MIB, "pcie": None}
        assert self.after_a_call(table(copy_engine_bytes=both)) == (MIB, NEVER_BYTES)

    def test_take_the_default_where_nothing_was_measured(self):
        self.after_a_call(table(copy_engine_bytes={"nvlink": 1, "pcie": 2}))
        assert self.after_a_call(table(copy_engine_bytes={"pcie": 3})) == (DEFAULT, 3)
        assert self.after_a_call(table()) == (DEFAULT, DEFAULT)

    def test_with_another_number_of_threads_take_its_table(self, monkeypatch):
        """Back and forth, although tables are kept in memory."""
        from fastreduce.plan import table_files

        others = {"one": MIB, "other": 2 * MIB}
        for name, nbytes in others.items():
            save(table(device=name, copy_engine_bytes={"pcie": nbytes}))
        for name in ("one", "other", "one"):
            monkeypatch.setattr(table_files, "device", lambda name=name: name)
            tuned()
            assert _C.copy_engine_bytes()[1] == others[name]
