"""What auto stands for: the environment's, the table's, or the default."""

import warnings
from random import Random

import pytest
import torch
from reference import assert_same, noise
from subprocesses import output_of
from tables import table, times

import fastreduce
from fastreduce import _C, allreduce, explain
from fastreduce.algorithms import leader, names
from fastreduce.plan import build
from fastreduce.plan.choose import choose
from fastreduce.plan.defaults import default
from fastreduce.plan.machine import device
from fastreduce.plan.pictures import sizes_figure
from fastreduce.plan.sizes import over_sizes
from fastreduce.plan.table_files import save, tuned


@pytest.mark.parametrize(
    ("place", "most_bytes", "names"),
    [
        ("nvlink", 64 * 1024, ("leader", "sharded")),
        ("pcie", 64 * 1024, ("leader", "ring")),
        ("processes", 32 * 1024, ("pulled-leader", "sharded")),
    ],
)
def test_the_defaults_change_where_the_page_on_planning_says(place, most_bytes, names):
    assert (default(place, most_bytes), default(place, most_bytes + 1)) == names


class TestAuto:
    def test_without_a_table_takes_the_defaults_in_silence(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert tuned() is None
            assert choose("nvlink", 8, 1 << 20) == default("nvlink", 1 << 20)

    def test_a_plan_says_what_was_measured(self):
        save(table())
        headings = {k: explain("1KB", k=k).title for k in (1, 3, 4)}
        assert "measured" not in headings[1]
        assert headings[3].endswith(", one CPU, times measured on 2026-11-21, with 4 ranks")
        assert headings[4].endswith(", one CPU, times measured on 2026-11-21")
        columns = [str(explain("1KB", k=k)).splitlines()[1].split()[4] for k in (1, 3, 4)]
        assert columns == ["predicted", "measured", "measured"]
        for k, timed in ((1, "predicted"), (4, "measured")):
            found = over_sizes("1KB:1MB", k=k)
            assert found.timed == timed
            assert sizes_figure(found).get_suptitle() == f"{found.title}: {timed}"

    def test_takes_the_table_but_the_environment_comes_first(self, monkeypatch):
        save(table(times(sharded=1e-9)))
        assert choose("cpu", 4, 1024) == "sharded" != default("cpu", 1024)
        assert choose("gpu", 4, 1024) == default("gpu", 1024)
        monkeypatch.setenv("FASTREDUCE_ALGORITHM", "tree")
        assert choose("cpu", 4, 1024) == "tree"

    def test_a_refused_table_is_warned_of_once(self, home):
        path = save(table())
        path.write_text("{}")
        with pytest.warns(
            UserWarning, match=r"tuned-.*format is None, want 'fastreduce table'.*`fastreduce tune`"
        ) as seen:
            assert [choose("cpu", 4, 1024) for _ in range(3)] == [default("cpu", 1024)] * 3
        assert len(seen) == 1

    def test_a_table_for_other_threads_is_another_machines(self):
        save(table(times(sharded=1e-9), device=device().replace("1 threads", "3 threads")))
        assert choose("cpu", 4, 1024) == "leader"

    def test_a_table_that_is_saved_is_asked_at_the_next_call(self, monkeypatch):
        asked = []
        monkeypatch.setattr(build, "choose", lambda *question: asked.append(question) or "leader")
        for _ in range(2):
            fastreduce.allreduce([torch.ones(300), torch.ones(300)])
        assert asked == [("cpu", 2, 2048, "allreduce", "")]
        save(table())
        fastreduce.allreduce([torch.ones(300), torch.ones(300)])
        assert asked == [("cpu", 2, 2048, "allreduce", "")] * 2

    def test_import_reads_no_table_and_the_first_call_does(self):
        code = """
            import torch, fastreduce
            from fastreduce.plan.table_files import _tuned
            print(_tuned.cache_info().misses)
            fastreduce.allreduce([torch.ones(3), torch.ones(3)])
            print(_tuned.cache_info().misses)
        """
        assert output_of(code).split() == ["0", "1"]


class TestDecideOnce:
    """What explain names is what a call runs, with and without measured times."""

    @staticmethod
    def chosen_by_a_call(monkeypatch, lists):
        ran = []
        monkeypatch.setattr(
            build, "proven", lambda collective, name, k, root: ran.append(name) or leader(k)
        )
        _C.forget_schedules()
        allreduce(lists)
        return ran[0]

    @pytest.mark.parametrize("tuned", [False, True])
    def test_200_random_calls(self, monkeypatch, tuned):
        if tuned:
            by_size = {
                "leader": {1 << n: 1e-6 * (1 + n % 3) for n in range(4, 20)},
                "sharded": {1 << n: 1e-6 * (1 + (n + 1) % 3) for n in range(4, 20)},
            }
            times_s = {
                name: {k: by_size.get(name, dict.fromkeys(by_size["leader"], 1e-3)) for k in (2, 5)}
                for name in names()
            }
            save(table({"cpu": times_s}))
        random = Random(0)
        answers = set()
        for _ in range(200):
            k, tensors = random.randint(1, 6), random.randint(1, 3)
            sizes = [random.randint(1, 1 << random.randint(0, 12)) for _ in range(tensors)]
            lists = [[torch.zeros(size) for size in sizes] for _ in range(k)]
            found = explain(lists).algorithm
            assert found == self.chosen_by_a_call(monkeypatch, lists)
            answers.add(found)
        assert len(answers) == (2 if tuned else 1)

    def test_after_the_environment_has_changed(self, monkeypatch):
        """By their bits: leader and tree sum in different orders."""
        found = []
        for value in ("", "tree", ""):
            monkeypatch.setenv("FASTREDUCE_ALGORITHM", value)
            by_auto, by_name = (noise(4, (1000,), torch.float32) for _ in range(2))
            allreduce(by_auto)
            allreduce(by_name, algorithm=explain(by_auto).algorithm)
            assert_same(by_auto[0], by_name[0])
            found.append(by_auto[0])
        with pytest.raises(AssertionError):
            assert_same(found[0], found[1])
