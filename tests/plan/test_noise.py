"""Times that other work on the machine has disturbed: found, measured again, or refused.

No clock is read here: calls last as long as a test says.
"""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import BUILT_IN

from fastreduce.plan import tune
from fastreduce.plan.noise import MOST_DROP, MOST_JUMP, NoisyMeasurement, TableEntry, doubtful
from fastreduce.plan.tune import measure

KIB = 1 << 10


def curve(by_size):
    """Three samples, which agree, of one algorithm at each size."""
    return {TableEntry("cpu", "ring", 2, n): [seconds] * 3 for n, seconds in by_size.items()}


class TestDoubtful:
    @pytest.mark.parametrize(
        "samples", [[1.0, 1.0, 2.1], [1.0] * 3 + [1.6] * 2 + [9.0] * 2, [0.1, 0.5, 1.2, 1.3]]
    )
    def test_samples_that_do_not_agree(self, samples):
        entry = TableEntry("cpu", "ring", 2, KIB)
        assert "samples spread by" in doubtful({entry: samples})[entry]

    @pytest.mark.parametrize("samples", [[1.0] * 5, [1.0, 1.2, 1.4], [1.0] * 24 + [50.0]])
    def test_control_samples_that_do(self, samples):
        """One sample of many may be far off: the median does not feel it."""
        assert doubtful({TableEntry("cpu", "ring", 2, KIB): samples}) == {}

    @pytest.mark.parametrize(
        ("by_size", "both"),
        [
            ({16 * KIB: 22e-6, 64 * KIB: 4988e-6, 256 * KIB: 5000e-6}, (16 * KIB, 64 * KIB)),
            ({KIB: 5e-6, 4 * KIB: 2e-6, 16 * KIB: 2e-6}, (KIB, 4 * KIB)),
        ],
        ids=["far beyond proportional", "a larger size is faster"],
    )
    def test_sizes_that_do_not_fit_each_other(self, by_size, both):
        found = doubtful(curve(by_size))
        assert {entry.nbytes for entry in found} == {*both}
        assert f"but {both[0]} bytes take" in found[TableEntry("cpu", "ring", 2, both[1])]

    def test_control_sizes_that_do(self):
        """Latency first, then the caches' bandwidth, then the memory's, a third of it."""
        by_size = {KIB: 3e-6, 4 * KIB: 3e-6, 16 * KIB: 2.5e-6, 64 * KIB: 8e-6, 256 * KIB: 96e-6}
        assert doubtful(curve(by_size)) == {}

    @given(st.lists(st.floats(1 / MOST_DROP + 0.01, 4 * MOST_JUMP - 0.01), max_size=6))
    def test_is_about_steps_not_about_how_far_they_lead(self, steps):
        times = itertools.accumulate(steps, lambda x, step: x * step, initial=1.0)
        assert doubtful(curve({KIB * 4**i: x for i, x in enumerate(times)})) == {}

    def test_other_ranks_places_and_algorithms_are_not_compared(self):
        entries = [("cpu", "ring", 2), ("cpu", "ring", 4), ("gpu", "ring", 2), ("cpu", "tree", 2)]
        samples = {TableEntry(*x, KIB * 4**i): [100.0**i] * 3 for i, x in enumerate(entries)}
        assert doubtful(samples) == {}


class Machine:
    """Each call takes ``call_s(nbytes, call)`` seconds, ``call`` being its number; no work is done.

    Stands for both what tune calls and the clock that it reads.
    """

    def __init__(self, call_s):
        self.call_s, self.now_s, self.calls, self.by_size = call_s, 0.0, 0, {}

    def allreduce(self, lists, algorithm):
        nbytes = sum(tensor.nbytes for tensor in lists[0])
        self.by_size[nbytes] = self.by_size.get(nbytes, 0) + 1
        self.now_s += self.call_s(nbytes, self.calls)
        self.calls += 1
        assert self.now_s < 1000, "this measurement does not end"

    def perf_counter(self):
        return self.now_s


def quiet(nbytes, call):
    return max(1e-3, nbytes / 1e6)


@pytest.fixture
def tuned_on(monkeypatch):
    def run(call_s, budget_s=10.0):
        machine = Machine(call_s)
        monkeypatch.setattr(tune, "allreduce", machine.allreduce)
        monkeypatch.setattr(tune, "perf_counter", machine.perf_counter)
        monkeypatch.setattr(tune, "_check", lambda place, on: None)
        sizes = (KIB, 4 * KIB)
        run.machine = machine
        return measure(["cpu"], budget_s=budget_s, progress=False, _ks=(2,), _sizes_bytes=sizes)

    return run


# The calls of the first measurement of one size: to warm up, and to sample.
FIRST = len(BUILT_IN) * (1 + tune.MOST_SAMPLES)


class TestMeasure:
    def test_control_a_quiet_machine_is_measured_once(self, tuned_on):
        times = tuned_on(quiet).times_s["cpu"]["ring"][2]
        assert times == pytest.approx({KIB: quiet(KIB, 0), 4 * KIB: quiet(4 * KIB, 0)})
        assert tuned_on.machine.by_size == {KIB: FIRST, 4 * KIB: FIRST}

    def test_what_was_disturbed_for_a_while_is_measured_again(self, tuned_on):
        """A burst over the first size: its steady but late times do not fit the second size's."""
        table = tuned_on(lambda nbytes, call: quiet(nbytes, call) * (10 if call < FIRST else 1))
        assert table.times_s["cpu"]["ring"][2][KIB] == pytest.approx(quiet(KIB, 0))
        assert tuned_on.machine.by_size[KIB] == 2 * FIRST

    @pytest.mark.parametrize("budget_s", [1e-9, 10.0])
    def test_what_is_disturbed_to_the_end_is_refused(self, tuned_on, budget_s):
        with pytest.raises(NoisyMeasurement, match="the machine is busy: close other") as refused:
            tuned_on(lambda nbytes, call: quiet(nbytes, call) * (1 + call % 7), budget_s)
        entries = refused.value.entries
        assert entries and {entry.place for entry in entries} == {"cpu"}
        first = next(iter(entries))
        assert f"{len(entries)} of the measured times" in str(refused.value)
        assert f"{first}: samples spread by" in str(refused.value)
        assert refused.value.table.times_s["cpu"].keys() == {*BUILT_IN}

    def test_measuring_again_ends_with_the_budget(self, tuned_on):
        with pytest.raises(NoisyMeasurement):
            tuned_on(lambda nbytes, call: quiet(nbytes, call) * (1 + call % 7), budget_s=20.0)
        most_s = 20.0 + 7 * quiet(4 * KIB, 0) * len(BUILT_IN) * (1 + tune.FEWEST_SAMPLES) * 2
        assert tuned_on.machine.now_s < most_s
