"""What small programs take, by hand; sizes; and what is refused."""

import itertools
from dataclasses import replace

import pytest
from networks import run, star, timed, without
from sweeps import one_in

from fastreduce import HOST, Program, algorithms, explain, simulate
from fastreduce.algorithms.collectives import program as collective
from fastreduce.simulation import BOOK
from fastreduce.simulation.predict import on_topology
from fastreduce.topology import cluster, preset

GB = 1_000_000_000
EVERYONE = (0, 1, 2, 3)


# Four devices, 1 GB/s on each link, 1 GB on each rank: program, slices, seconds.
BY_HAND = {
    "three come in, three go out": (algorithms.leader(4), 1, 6),
    "in halves, the second in while the first goes out": (algorithms.leader(4), 2, 4.5),
    "in thirds": (algorithms.leader(4), 3, 4),
    "a quarter of that each": (algorithms.sharded(4), 1, 1.5),
    "six steps of a quarter": (algorithms.ring(4), 1, 1.5),
    "a ring reads only: slices change nothing": (algorithms.ring(4), 5, 1.5),
    "a copy of its own goes out": (run((0, 0, (0,), (1,))), 1, 1),
    "a copy is fetched": (run((1, 0, (0,), (1,))), 1, 1),
    "a copy that another executes goes through it": (run((2, 0, (0,), (1,))), 1, 2),
    "the host's copy goes through the host": (run((HOST, 0, (0,), (1,))), 1, 2),
    "a broadcast leaves three times": (run((0, 0, (0,), (1, 2, 3))), 1, 3),
    "another's broadcast comes in first": (run((0, 0, (1,), (2, 3))), 1, 3),
    "copies of one launch share the link": (
        run((0, 0, (0,), (1,)), (0, 1, (0,), (2,)), shards=2),
        1,
        1,
    ),
    "copies of two ranks at once": (run((0, 0, (0,), (1,)), (2, 0, (2,), (3,))), 1, 1),
    "both directions of a link apart": (run((1, 0, (0,), (1,)), (1, 0, (1,), (2,))), 1, 2),
    "a copy that waits for another": (run((1, 0, (0,), (1,)), (2, 0, (1,), (2,))), 1, 2),
    "a wait, in slices: the last is one slice late": (
        run((1, 0, (0,), (1,)), (2, 0, (1,), (2,))),
        4,
        1.25,
    ),
    "four up, four down": (algorithms.host(4), 1, 8),
    "onto itself: only memory": (run((0, 0, (0,), (0,))), 1, 0),
    "nothing to do": (Program(4, 1, []), 1, 0),
    "one of many devices": (algorithms.leader(1), 1, 0),
    "a shard to each": (collective("all_gather", 4), 1, 0.75),
    "a shard from each": (collective("reduce_scatter", 4), 1, 0.75),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_by_hand(name):
    program, slices, expected_s = BY_HAND[name]
    timeline = timed(program, star(4), GB, slices, BOOK)
    assert timeline.time_s == pytest.approx(expected_s, abs=1e-6)


class TestMemory:
    def time_s(self, program, memory_bytes_per_s):
        star_of_four = star(4, memory_bytes_per_s=memory_bytes_per_s)
        return timed(program, star_of_four, GB, costs=BOOK).time_s

    def test_each_source_is_read_once_and_the_result_written_once(self):
        assert self.time_s(run((0, 0, (0,), (0,))), 1e9) == pytest.approx(2)
        assert self.time_s(run((0, 0, EVERYONE, (0,))), 1e9) == pytest.approx(5)

    def test_reduces_while_sources_come_in(self):
        assert self.time_s(run((0, 0, EVERYONE, (0,))), 2e9) == pytest.approx(3)

    def test_lanes_of_two_devices_have_memories_of_their_own(self):
        both = run((0, 0, (0,), (0,)), (1, 0, (1,), (1,)))
        assert self.time_s(both, 1e9) == pytest.approx(2)

    def test_a_copy_to_elsewhere_leaves_the_memory_alone(self):
        assert self.time_s(run((0, 0, (0,), (1,))), 1.0) == pytest.approx(1)

    def test_what_is_staged_goes_into_the_hosts_memory_and_out_of_it(self):
        """On its way to rank 0, which does the host's work, and again on its way from there."""
        staged = run((HOST, 0, (0,), (1,)))
        slow, costs = star(4, memory_bytes_per_s=1e8), BOOK._replace(by_kernels=True)
        assert timed(staged, slow, GB, costs=costs).time_s == pytest.approx(2 * 20)


class TestSizes:
    def test_tensors_are_cut_each(self):
        whole, parts = (
            simulate(algorithms.ring(4), star(4), nbytes).time_s for nbytes in (100, [60, 0, 40])
        )
        assert whole == parts

    def test_whole_tensors_go_round_the_shards(self):
        """Tensors 0 and 4 are rank 0's; each rank reads its own from three others."""
        sizes = [3 * GB, GB, GB, GB, 2 * GB]
        timeline = simulate(algorithms.by_parameter(4), star(4), sizes, costs=BOOK)
        reads = {e.who: e.bytes for e in timeline.events if e.start_s == 0 and "gpu" in e.who}
        assert reads == {"gpu0": 15 * GB, "gpu1": 3 * GB, "gpu2": 3 * GB, "gpu3": 3 * GB}
        assert timeline.nbytes == 8 * GB

    def test_fewer_tensors_than_shards(self):
        timeline = simulate(algorithms.by_parameter(4), star(4), [GB], costs=BOOK)
        assert timeline.time_s == pytest.approx(6)

    def test_in_words(self):
        for words, numbers in (("160MB", 160_000_000), (["1KB", 24], [1000, 24])):
            assert simulate(algorithms.ring(4), star(4), words) == simulate(
                algorithms.ring(4), star(4), numbers
            )


class TestProof:
    TWICE = run((0, 0, (0, 3), (0,)), (0, 0, EVERYONE, EVERYONE))

    def test_a_wrong_program_is_refused_each_time_with_what_to_do(self):
        for _ in range(2):
            with pytest.raises(
                ValueError, match=r"no allreduce: rank 0 ends .* more than once"
            ) as e:
                simulate(self.TWICE, star(4), GB)
            assert "pass verify=False" in str(e.value)

    def test_one_may_insist(self):
        assert simulate(self.TWICE, star(4), GB, verify=False).time_s > 0

    @pytest.mark.parametrize("name", ["reduce", "broadcast", "reduce_scatter", "all_gather"])
    def test_the_other_collectives_are_no_allreduce(self, name):
        with pytest.raises(ValueError, match="another collective"):
            simulate(collective(name, 4), star(4), GB)
        assert simulate(collective(name, 4), star(4), GB, verify=False).time_s > 0

    def test_what_is_malformed_stays_refused(self):
        with pytest.raises(ValueError, match="shard 9 is not one of") as error:
            simulate(run((0, 9, (0,), (1,))), star(4), 1, verify=False)
        assert "verify=False" not in str(error.value)

    def test_a_prediction_of_four_simulations_takes_one_proof(self, monkeypatch):
        proven, verify = [], Program.verify
        monkeypatch.setattr(Program, "verify", lambda self: (proven.append(self), verify(self)))
        rotated = algorithms.multi_ring(4, [((0, 2, 1, 3), 1.0)])  # proven in no other test
        for _ in range(2):
            on_topology(rotated, star(4), GB, 1)
        assert proven == [rotated]


class TestSlices:
    @pytest.mark.parametrize("nbytes", [1000, 5 << 20, 160_000_000])
    @pytest.mark.parametrize("name", ["sharded", "ring", "tree"])
    def test_are_by_default_those_of_the_engine(self, name, nbytes):
        program = algorithms.registry[name](4)
        told = simulate(program, star(4), nbytes, slices=program.slices(nbytes))
        assert simulate(program, star(4), nbytes) == told

    def test_control_other_slices_are_another_timeline(self):
        program = algorithms.tree(4)
        assert simulate(program, star(4), GB) != simulate(program, star(4), GB, slices=1)

    @pytest.mark.parametrize(
        ("machine", "nbytes"),
        one_in(
            3,
            itertools.product(["book-pcie4", "dgx1", "pcie4-x8"], [1000, 160_000_000]),
            "large machines",
        ),
    )
    def test_explain_and_simulate_give_the_same_answer(self, machine, nbytes):
        for x in explain(nbytes, topology=preset(machine)).candidates:
            sizes = [nbytes] if x.program.whole_tensors else nbytes
            assert simulate(x.program, machine, sizes).time_s == x.prediction.time_s


class TestTopologies:
    def test_by_name(self):
        named = simulate(algorithms.ring(4), "book-pcie4", GB)
        assert named == simulate(algorithms.ring(4), preset("book-pcie4"), GB)

    def test_algorithms_by_name_and_as_functions(self):
        wanted = simulate(algorithms.ring(4), "book-pcie4", GB)
        assert simulate("ring", "book-pcie4", GB) == wanted
        assert simulate(algorithms.ring, "book-pcie4", GB) == wanted

    @pytest.mark.parametrize("algorithm", algorithms.built_in())
    @pytest.mark.parametrize("topology", ["dgx1", cluster(preset("dgx-h100"), 2, 400.0)], ids=str)
    def test_an_algorithm_by_name_takes_the_time_that_explain_tells(self, algorithm, topology):
        told = explain("1MB", topology=topology).candidate(algorithm).prediction.time_s
        assert simulate(algorithm, topology, "1MB").time_s == told

    def test_one_size_is_one_tensor(self):
        found = simulate("by-parameter", "book-pcie4", GB)
        assert found == simulate("by-parameter", "book-pcie4", [GB])

    def test_no_topology(self):
        with pytest.raises(TypeError, match="topology is 4; want a Topology, a preset's name"):
            simulate(algorithms.ring(4), 4, GB)


class TestErrors:
    CASES = (
        ("more ranks than devices", lambda: simulate(algorithms.ring(5), star(4), 1), "5 ranks"),
        ("no bytes", lambda: simulate(algorithms.ring(4), star(4), 0), "nbytes is 0"),
        (
            "fewer than none",
            lambda: simulate(algorithms.ring(4), star(4), -3),
            "-3 is no size; want",
        ),
        ("half a byte", lambda: simulate(algorithms.ring(4), star(4), 1.5), "1.5 is no size; want"),
        ("words", lambda: simulate(algorithms.ring(4), star(4), "1XB"), "'1XB' is no size; want"),
        ("no topology", lambda: simulate(algorithms.ring(4), "dgx9", 1), "topology 'dgx9'"),
        ("empty tensors", lambda: simulate(algorithms.ring(4), star(4), [0, 0]), r"\[0, 0\]"),
        ("no tensors", lambda: simulate(algorithms.ring(4), star(4), []), r"nbytes is \[\]"),
        ("a tensor", lambda: simulate(algorithms.ring(4), star(4), [5, -1]), "tensor 1: -1 is no"),
        ("a flag", lambda: simulate(algorithms.ring(4), star(4), 1, slices=True), "slices is True"),
        ("slices", lambda: simulate(algorithms.ring(4), star(4), 1, slices=0), "slices is 0"),
        ("part of a slice", lambda: simulate(algorithms.ring(4), star(4), 1, slices=1.5), "is 1.5"),
        (
            "slices without number",
            lambda: simulate(algorithms.ring(4), star(4), GB, slices=10**9),
            "slices is 1,000,000,000, want at most 1,388,888: a slice of .* has 72 events",
        ),
        (
            "a program that asks for them",
            lambda: simulate(replace(algorithms.tree(4), sliced=2**30), star(4), GB),
            "slices is 1,073,741,824, want at most",
        ),
        (
            "a function that makes no program",
            lambda: simulate(lambda k: None, star(4), 1),
            "returned NoneType for 4 ranks; want a Program",
        ),
        (
            "a function for other ranks",
            lambda: simulate(lambda k: algorithms.ring(3), star(4), 1),
            "its program is for 3 ranks .* the call has 4 ranks",
        ),
        ("auto", lambda: simulate("auto", star(4), 1), "chooses for a call; want one of bidir"),
        ("a shard", lambda: simulate(run((0, 9, (0,), (1,))), star(4), 1), "shard 9 is not one of"),
        (
            "an unknown link",
            lambda: simulate(algorithms.ring(4), without(star(4), ("gpu1", "switch")), 1),
            "'star'.*'gpu1' -> 'switch', whose bandwidth is unknown",
        ),
        (
            "the first link, unknown",
            lambda: simulate(algorithms.ring(4), without(star(4), ("gpu0", "switch")), 1),
            "'gpu0' -> 'switch', whose bandwidth is unknown",
        ),
        (
            "the first link of the first instruction, unknown",
            lambda: timed(run((1, 0, (0,), (1,))), without(star(4), ("gpu0", "switch")), 1),
            "'gpu0' -> 'switch', whose bandwidth is unknown",
        ),
        (
            "an unknown memory",
            lambda: simulate(algorithms.ring(4), star(4, memory_bytes_per_s=None), 1),
            "memory of 'gpu0'",
        ),
    )

    @pytest.mark.parametrize("call, said", [c[1:] for c in CASES], ids=[c[0] for c in CASES])
    def test_says_what_and_where(self, call, said):
        with pytest.raises(ValueError, match=said):
            call()

    def test_control_an_unknown_link_that_is_not_used(self):
        simulate(algorithms.ring(2), without(star(4), ("gpu3", "switch")), 1)

    def test_control_many_slices(self):
        assert simulate(algorithms.ring(4), star(4), GB, slices=1000).run.slices == 1000

    def test_devices_may_be_left_over(self):
        assert simulate(algorithms.ring(3), star(4), 1).k == 3


@pytest.mark.parametrize("name", ["naive", "sharded", "ring", "bidirectional", "tree"])
@pytest.mark.parametrize("size_gb", [1, 10**4, 10**9])
def test_what_takes_ages_ends_too(name, size_gb):
    """Beside a late time a short one is lost to rounding; the wait for it must not be."""
    program = algorithms.registry[name](4)
    seconds = simulate(program, star(4), GB, slices=2).time_s
    found = simulate(program, star(4), size_gb * GB, slices=2).time_s
    assert 0.3 * size_gb * seconds < found < 1.1 * size_gb * seconds
