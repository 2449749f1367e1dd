"""fastreduce.explain: the candidates, their times, the choice and why."""

import numpy as np
import pytest
import torch
from sweeps import one_in

import fastreduce.topology
from fastreduce import _C, Instruction, Program, algorithms, explain, simulate
from fastreduce.algorithms import names, registry
from fastreduce.plan.choose import choose
from fastreduce.plan.explain import _here
from fastreduce.topology import Topology, cluster, preset, rings
from fastreduce.topology.rings import both_ways

MB = 1_000_000


@pytest.fixture(scope="module")
def book():
    return explain(160 * MB, topology=preset("book-pcie4"))


def last_row(plan):
    return str(plan).splitlines()[1 + len(plan.candidates)]


class TestOnPaper:
    def test_every_algorithm_is_a_candidate_the_fastest_first(self, book):
        assert sorted(x.algorithm for x in book.candidates) == names()
        times = [x.prediction.time_s for x in book.candidates]
        assert times == sorted(times)
        assert book.chosen is book.candidates[0]

    @pytest.mark.parametrize(("name", "ms"), [("naive", 60), ("host", 80), ("sharded", 15)])
    def test_times_of_the_book(self, book, name, ms):
        assert book.candidate(name).prediction.time_s * 1e3 == pytest.approx(ms, rel=0.01)

    def test_prints_as_a_table_with_the_choice_marked(self, book):
        lines = str(book).splitlines()
        assert lines[0] == "160 MB on each of 4 ranks, book-pcie4"
        assert len(lines) == 2 + len(names()) + 3
        marked = [line for line in lines if line.startswith("* ")]
        assert len(marked) == 1 and marked[0].split()[1] == book.algorithm
        assert "link gpu0 -> pcie0" in marked[0]
        assert lines[-3].startswith(f"choice: {book.algorithm}, the fastest on paper")
        assert "no program can beat 15.01 ms (cut)" in lines[-2]
        assert lines[-1] == "times: predicted, not measured on this machine"
        assert repr(book).count("\n") == 0 and len(repr(book)) < 100
        _, headings, *rows, _, _, _ = lines
        end = headings.index("launches") + len("launches")
        assert all(row[end - 1].isdigit() and row[end] == " " for row in rows)

    def test_dgx1_takes_its_own_rings_both_ways_round(self):
        found = explain(160 * MB, topology=preset("dgx1"))
        assert found.algorithm == "multi-ring"
        assert found.chosen.program.shards == 8 * (2 + 1) * 2
        found.chosen.program.verify()

    @pytest.mark.parametrize(
        ("name", "machines"), one_in(2, [("book-pcie4", 4), ("dgx2-v100", 2)], "large machines")
    )
    def test_hierarchical_takes_the_machines_of_a_cluster(self, name, machines):
        network = cluster(name, machines, 100)
        found = explain(16 * MB, topology=network).candidate("hierarchical")
        k, waves = len(network.devices), found.program.shards // len(network.devices)
        assert found.program == algorithms.hierarchical(k, machines, waves=waves)
        at_once = algorithms.hierarchical(k, machines)
        assert waves > 1
        assert found.prediction.time_s < simulate(at_once, network, 16 * MB).time_s

    @pytest.mark.parametrize("where", [{"topology": preset("book-pcie4")}, {"k": 4}])
    def test_an_algorithm_that_is_wrong_is_refused(self, where):
        before = dict(algorithms.registry)
        algorithms.algorithm("nothing")(lambda k: Program(k, 1, [Instruction(0, 0, (0,), (1,))]))
        try:
            found = explain(16 * MB, **where)
            refused = found.candidates[-1]
            assert (refused.algorithm, refused.program) == ("nothing", None)
            assert "'nothing' for 4 ranks is wrong: rank 0 ends" in refused.prediction.limit
            assert "refused" in last_row(found)
            assert {x.algorithm for x in found.candidates} == {*before, "nothing"}
        finally:
            algorithms.registry.clear()
            algorithms.registry.update(before)

    def test_the_reason_is_on_one_line_whatever_was_raised(self):
        def raises(k):
            raise KeyError("no rank\nlike that")

        refused = explain(16 * MB, algorithm=raises).candidates[-1]
        assert refused.program is None
        raised = r"raised for 2 ranks: KeyError('no rank\nlike that')"
        assert refused.prediction.limit == f"the function passed as algorithm= {raised}"
        assert len(last_row(explain(16 * MB, algorithm=raises)).splitlines()) == 1

    def test_a_program_or_a_function_is_a_candidate(self):
        swap = Program(2, 1, [Instruction(1, 0, (0, 1), (0, 1))])
        assert swap in [x.program for x in explain(MB, algorithm=swap).candidates]
        mine = explain(MB, algorithm=lambda k: swap)
        assert [x.program for x in mine.candidates].count(swap) == 1

    def test_what_the_name_alone_does_not_run_is_said(self):
        found = explain(160 * MB, topology="dgx1")
        assert "multi-ring is fitted to this machine: algorithm=plan.chosen.program" in str(found)
        assert found.chosen.program != algorithms.multi_ring(8)

    def test_control_a_program_that_the_name_runs(self, book):
        assert "fitted" not in str(book)
        inside = explain(160 * MB, topology="dgx-h100").candidate("hierarchical")
        assert inside.program == algorithms.hierarchical(8) and not inside.fitted

    def test_columns_are_straight_whatever_the_names(self, tmp_path):
        path = tmp_path / "a program with a long name.json"
        algorithms.ring(4).save(path)
        _, heading, *rows = str(explain("16MB", k=4, algorithm=f"file:{path}")).splitlines()
        place = heading.index("limit")
        assert {row[place - 2 : place] for row in rows[: 1 + len(names())]} == {"  "}
        assert {row[place] == " " for row in rows[: 1 + len(names())]} == {False}

    def test_names_and_sizes_in_words(self):
        assert str(explain("16MB", topology="dgx1")) == str(
            explain(16 * MB, topology=preset("dgx1"))
        )
        assert explain(["8MB", 8 * MB]).nbytes == 16 * MB

    def test_agrees_with_simulate(self, book):
        for x in book.candidates:
            sizes = [160 * MB] if x.program.whole_tensors else 160 * MB
            found = simulate(x.program, "book-pcie4", sizes)
            assert found.time_s == x.prediction.time_s

    def test_notebooks_show_a_table(self, book):
        shown = book._repr_html_()
        assert shown.count("<tr>") == 1 + len(names())
        assert "<b>" not in explain("1MB")._repr_html_()

    def test_slices_are_what_the_engine_would_take(self):
        found = explain(160 * MB, topology=preset("dgx-h100"))
        assert found.candidate("sharded").slices == 1
        assert found.candidate("ring").slices == 1
        assert found.candidate("tree").slices == algorithms.tree(8).slices(160 * MB) > 30

    def test_whole_tensors_are_dealt_out_whole(self):
        one = explain(80 * MB, topology=preset("book-pcie4"))
        many = explain([10 * MB] * 8, topology=preset("book-pcie4"))
        assert one.candidate("by-parameter").prediction.time_s == pytest.approx(0.015, rel=0.01)
        assert many.candidate("by-parameter").prediction.time_s == pytest.approx(0.0075, rel=0.01)

    def test_some_of_the_devices_have_rings_of_their_own(self):
        found = explain(MB, k=6, topology=preset("dgx1")).candidate("multi-ring")
        (ring,) = rings(part_of(preset("dgx1"), 6))
        assert found.fitted and found.program == algorithms.multi_ring(6, both_ways([ring]))
        assert found.program != algorithms.multi_ring(6)  # the control

    def test_one_device_has_no_ring(self):
        found = explain(MB, topology=part_of(preset("dgx1"), 1)).candidate("multi-ring")
        assert found.prediction == (0.0, "nothing to do")

    def test_fewer_ranks_than_devices(self):
        assert {x.program.k for x in explain(MB, k=3, topology=preset("dgx1")).candidates} == {3}


def part_of(machine, k):
    graph = machine.graph.copy()
    graph.remove_nodes_from(machine.devices[k:])
    return Topology("a part", "made up", graph)


class TestUnknownRates:
    """As `detect` leaves what a machine does not tell."""

    @staticmethod
    def without_rate(topology, link):
        graph = topology.graph.copy()
        for u, v in (link, link[::-1]):
            graph.edges[u, v]["bytes_per_s"] = None
        return Topology("half known", "made up", graph)

    def test_what_needs_them_comes_last_and_says_so(self):
        machine = self.without_rate(preset("dgx1"), ("cpu0", "cpu1"))
        found = explain(MB, topology=machine)
        assert found.algorithm in ("ring", "bidirectional", "multi-ring")
        last = last_row(found)
        assert "unknown" in last and "cpu0" in last and "bandwidth is unknown" in last

    def test_nothing_known_is_an_error(self):
        machine = self.without_rate(preset("book-pcie4"), ("gpu0", "pcie0"))
        with pytest.raises(ValueError, match="bandwidth is unknown"):
            explain(MB, topology=machine)


class TestSeveralGPUs:
    """With a driver made up."""

    @pytest.mark.parametrize(("linked", "algorithm"), [(True, "sharded"), (False, "ring")])
    def test_the_choice_is_what_auto_runs(self, monkeypatch, linked, algorithm):
        asked = []
        monkeypatch.setattr(
            fastreduce.topology, "detect", lambda of: asked.extend(of) or preset("book-pcie4")
        )
        monkeypatch.setattr(_C, "place", lambda devices: "nvlink" if linked else "pcie")
        devices = [torch.device("cuda", i) for i in (5, 4, 6, 7)]
        found = _here(devices, [MB])
        assert asked == devices
        assert found.algorithm == algorithm
        assert found.title == "1 MB on each of 4 ranks, book-pcie4"

    def test_the_program_is_what_a_call_by_name_runs(self, monkeypatch):
        """Found when it was the machine's own rings, which a call takes only if they are passed."""
        broken = preset("dgx1").without(("gpu0", "gpu1"))
        monkeypatch.setattr(fastreduce.topology, "detect", lambda _: broken)
        monkeypatch.setattr(_C, "place", lambda devices: "pcie")
        monkeypatch.setenv("FASTREDUCE_ALGORITHM", "multi-ring")
        found = _here([torch.device("cuda", i) for i in range(8)], [160 * MB]).chosen
        assert found.program == algorithms.multi_ring(8) and not found.fitted
        assert round(found.prediction.time_s * 1e3, 1) == 46.7


class TestInOneMemory:
    def test_the_choice_is_what_auto_runs(self):
        tensors = [torch.zeros(1000), torch.zeros(1000)]
        found = explain(tensors)
        assert found.algorithm == choose("cpu", 2, 4000)
        assert found.title == "4 KB on each of 2 ranks, one CPU"
        assert all(x.slices == 1 for x in found.candidates)

    def test_lists_of_tensors_count_together(self):
        lists = [[torch.zeros(10), torch.zeros(3, 5)] for _ in range(3)]
        assert explain(lists).title == "100 B on each of 3 ranks, one CPU"

    def test_sizes_without_a_machine_are_two_ranks(self):
        assert explain(MB).title == "1 MB on each of 2 ranks, one CPU"
        assert explain([MB, MB], k=4).title == "2 MB on each of 4 ranks, one CPU"

    def test_the_environment_shows(self, monkeypatch):
        monkeypatch.setenv("FASTREDUCE_ALGORITHM", "tree")
        assert explain(MB).algorithm == "tree"

    def test_a_file_that_the_environment_names_is_a_candidate(self, monkeypatch, tmp_path):
        registry["ring"](2).save(tmp_path / "mine.json")
        monkeypatch.setenv("FASTREDUCE_ALGORITHM", f"file:{tmp_path / 'mine.json'}")
        assert explain(MB).chosen.program == registry["ring"](2)

    def test_algorithms_of_ones_own_are_candidates(self, request):
        request.addfinalizer(lambda: registry.pop("mine", None))
        fastreduce.algorithm("mine")(registry["leader"])
        assert explain(MB).candidate("mine").program == registry["leader"](2)


def test_arrays_are_tensors_too():
    assert explain([np.zeros(10), np.zeros(10)]).title == "80 B on each of 2 ranks, one CPU"
    assert explain([torch.zeros(3, requires_grad=True)] * 2).algorithm == "leader"


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (1.5, "found float; want a list .* per rank, or sizes"),
        (b"1MB", "found bytes; want a list"),
        (torch.ones(3), "found Tensor; want a list"),
        (torch.tensor(5), "found Tensor; want a list"),
        (["160MB", torch.zeros(3)], "rank 0, tensor 0 is str"),
        ([[torch.zeros(3)], [None]], "rank 1, tensor 0 is None"),
        ([torch.zeros(3), None], "rank 1, tensor 0 is None"),
    ],
)
def test_what_is_neither_tensors_nor_sizes(what, words):
    with pytest.raises(TypeError, match=words):
        explain(what)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: explain([]), "no tensors to plan for"),
        (lambda: explain([[], []]), "no tensors to plan for"),
        (lambda: explain(0), "at least 1 rank and 1 byte"),
        (lambda: explain([5, -1]), "-1 is no size"),
        (lambda: explain(MB, k=0), "k is 0, want the number of ranks"),
        (lambda: explain(MB, k=1.5), "k is 1.5, want the number of ranks"),
        (lambda: explain(2**63), "found 9223372036854775808 bytes, want fewer"),
        (lambda: explain([torch.ones(3)] * 2, k=8), "k is 8, but there are tensors of 2 ranks"),
        (lambda: explain([torch.ones(3), torch.ones(4)]), r"rank 1 has .* shapes \[\(4,\)\]"),
        (
            lambda: explain(MB, k=5, topology=preset("book-pcie4")),
            "5 ranks, but topology .* has 4 devices",
        ),
        (lambda: explain(MB, algorithm="auto"), '"auto" chooses for a call; want one of bidir'),
        (lambda: explain(MB).candidate("rnig"), "unknown algorithm 'rnig'; known are bidir"),
    ],
)
def test_errors_say_what_was_wanted(call, words):
    with pytest.raises(ValueError, match=words):
        call()
