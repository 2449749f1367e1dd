"""What auto stands for: the environment's, the table's, or the default."""

import warnings

import pytest
import torch
from subprocesses import output_of
from tables import table, times

import fastreduce
from fastreduce.plan import build
from fastreduce.plan.choose import choose
from fastreduce.plan.defaults import default
from fastreduce.plan.machine import device
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
        assert asked == [("cpu", 2, 2048, "allreduce")]
        save(table())
        fastreduce.allreduce([torch.ones(300), torch.ones(300)])
        assert asked == [("cpu", 2, 2048, "allreduce")] * 2

    def test_import_reads_no_table_and_the_first_call_does(self):
        code = """
            import torch, fastreduce
            from fastreduce.plan.table_files import _tuned
            print(_tuned.cache_info().misses)
            fastreduce.allreduce([torch.ones(3), torch.ones(3)])
            print(_tuned.cache_info().misses)
        """
        assert output_of(code).split() == ["0", "1"]
