"""Closed formulas agree with the simulation where both run, in one slice."""

from collections import Counter
from itertools import permutations

import pytest
from networks import star

from fastreduce import simulate
from fastreduce.algorithms import hierarchical, ring, sharded
from fastreduce.simulation import EVENTS, Costs
from fastreduce.simulation.formulas import (
    WAVES,
    Hop,
    _turns,
    best_waves,
    hierarchical_s,
    hops,
    levels,
    meshes,
    ring_s,
    sharded_s,
)
from fastreduce.topology import cluster

LOCAL = 4
SIZES = [1, 1_000_000, 1_000_000_000]


def around(topology, leap, costs=EVENTS):
    k = len(topology.devices)
    return hops(topology, [(rank, (rank + leap) % k) for rank in range(k)], costs)


def ring_by_formula(topology, nbytes):
    return ring_s(len(topology.devices), nbytes, around(topology, 1))


def hierarchical_by_formula(topology, machines, nbytes, waves=1, costs=EVENTS):
    k = len(topology.devices)
    inside, between = levels(topology, k // machines, costs)
    return hierarchical_s(k, machines, nbytes, inside, between, waves, costs)


def sharded_by_formula(preset, machines, nbytes, nics, costs=EVENTS):
    """From no more than two of the machines."""
    few = cluster(preset, min(machines, 2), 100, nics=nics)
    local = len(few.devices) // min(machines, 2)
    return sharded_s(machines * local, machines, nbytes, *meshes(few, local, costs), costs)


class TestFormulas:
    @pytest.mark.parametrize("machines", [1, 2, 5])
    @pytest.mark.parametrize("nbytes", SIZES)
    def test_ring_within_three_percent(self, machines, nbytes):
        topology = cluster("g4dn.12xlarge", machines, 100, nics=1)
        simulated_s = simulate(
            ring(LOCAL * machines), topology, nbytes, slices=1, costs=EVENTS
        ).time_s
        assert ring_by_formula(topology, nbytes) == pytest.approx(simulated_s, rel=0.03)

    @pytest.mark.parametrize("machines", [1, 2, 5])
    @pytest.mark.parametrize("nbytes", SIZES)
    def test_hierarchical_within_three_percent(self, machines, nbytes):
        topology = cluster("g4dn.12xlarge", machines, 100, nics=LOCAL)
        program = hierarchical(LOCAL * machines, machines)
        simulated_s = simulate(program, topology, nbytes, slices=1, costs=EVENTS).time_s
        found_s = hierarchical_by_formula(topology, machines, nbytes)
        assert found_s == pytest.approx(simulated_s, rel=0.03)

    @pytest.mark.parametrize("machines", [1, 2, 3, 4])
    @pytest.mark.parametrize(
        ("preset", "nics", "off"),
        [
            ("g4dn.12xlarge", 1, 1e-9),
            ("dgx1", 4, 1e-9),
            ("dgx-h100", 8, 1e-9),
            ("dgx-h100", 1, 0.07),  # GPUs whose way to the card is shorter run ahead
        ],
    )
    @pytest.mark.parametrize("nbytes", [1, 2**16, 2**20, 25 * 2**20])
    def test_sharded(self, preset, nics, off, machines, nbytes):
        topology = cluster(preset, machines, 100, nics=nics)
        program = sharded(len(topology.devices))
        simulated_s = simulate(program, topology, nbytes, slices=1, costs=EVENTS).time_s
        found_s = sharded_by_formula(preset, machines, nbytes, nics)
        assert found_s == pytest.approx(simulated_s, rel=off)

    @pytest.mark.parametrize("machines", [2, 4])
    @pytest.mark.parametrize("preset", ["dgx-h100", "dgx1", "g4dn.12xlarge"])
    @pytest.mark.parametrize("nbytes", [2**18, 25 * 2**20, 2**28])
    def test_waves(self, preset, machines, nbytes):
        """Ranks with shorter ways run ahead, which the formula does not know."""
        topology = cluster(preset, machines, 100, nics=1)
        k = len(topology.devices)

        def simulated_s(waves):
            program = hierarchical(k, machines, waves=waves)
            return simulate(program, topology, nbytes, slices=1, costs=EVENTS).time_s

        chosen = best_waves(k, machines, nbytes, *levels(topology, k // machines))
        for waves in {1, chosen}:
            found_s = hierarchical_by_formula(topology, machines, nbytes, waves)
            assert found_s == pytest.approx(simulated_s(waves), rel=0.2)
        assert simulated_s(chosen) <= 1.1 * min(map(simulated_s, WAVES))

    @pytest.mark.parametrize("waves", WAVES)
    @pytest.mark.parametrize("machines", [1, 2, 3, 40])
    @pytest.mark.parametrize("local", [1, 8])
    def test_turns_are_those_of_all_waves(self, local, machines, waves):
        """Of each wave one step is under way, and it begins one turn after the one before."""
        between, spread = [(0, 1)] * (machines - 1), [(1, 1)] * (machines - 1)
        steps = [(machines, 0), *between, *between, (machines, 0)]
        if local == 1:
            steps = [*between, *between]
        elif waves > 1:
            steps = [(machines, 0), *between, *spread, (1, 0)]
        turns = Counter()
        for turn in range(len(steps) + waves - 1):
            under_way = [steps[turn - i] for i in range(waves) if 0 <= turn - i < len(steps)]
            turns[tuple(map(sum, zip((0, 0), *under_way, strict=True)))] += 1
        assert +_turns(local, machines, waves) == turns

    def test_a_million_machines_are_no_more_work(self):
        loads = levels(cluster("book-pcie4", 2, gbit=100, nics=1), 4)
        per_machine = [hierarchical_s(4 * m, m, 1e9, *loads, 16) / m for m in (2**19, 2**20)]
        assert per_machine[0] == pytest.approx(per_machine[1], rel=0.05)

    @pytest.mark.parametrize("nbytes", SIZES)
    def test_control_another_topology_is_told_apart(self, nbytes):
        simulated_s = simulate(
            ring(8), cluster("g4dn.12xlarge", 2, 100), nbytes, slices=1, costs=EVENTS
        ).time_s
        other_s = ring_by_formula(cluster("g4dn.12xlarge", 2, 25), nbytes)
        same = other_s == pytest.approx(simulated_s, rel=0.03)
        assert same == (nbytes == 1)  # a byte takes its time whatever the bandwidth

    def test_one_rank_has_nothing_to_send(self):
        assert ring_s(1, 1e9, []) == 0
        assert hierarchical_by_formula(star(1), 1, 1e9) == 0
        assert sharded_s(1, 1, 1e9, *meshes(star(1), 1)) == 0

    def test_hops_share_links(self):
        assert {h.bytes_per_s for h in hops(star(5), permutations(range(5), 2))} == {0.25e9}
        assert hops(star(2), [(0, 1)]) == [Hop(1e9, pytest.approx(0))]

    def test_hops_that_come_twice_count_twice(self):
        found = hops(star(3), [(0, 1), (1, 2), (0, 1)])
        assert [hop.bytes_per_s for hop in found] == [0.5e9, 1e9, 0.5e9]

    @pytest.mark.parametrize("nbytes", SIZES)
    @pytest.mark.parametrize("name", [x for x in Costs._fields if x != "by_kernels"])
    def test_every_cost_counts_as_in_a_simulation(self, name, nbytes):
        costs = EVENTS._replace(**{name: 1e6 if name == "ramp_bytes" else 50e-6})
        topology = cluster("g4dn.12xlarge", 2, 100, nics=LOCAL)
        one_s, two_s, three_s = (
            simulate(x, topology, nbytes, slices=1, costs=costs).time_s
            for x in (ring(8), hierarchical(8, 2), sharded(8))
        )
        assert ring_s(8, nbytes, around(topology, 1, costs), costs) == pytest.approx(one_s, 0.03)
        found_s = hierarchical_by_formula(topology, 2, nbytes, costs=costs)
        assert found_s == pytest.approx(two_s, 0.03)
        of_shards_s = sharded_by_formula("g4dn.12xlarge", 2, nbytes, LOCAL, costs)
        assert of_shards_s == pytest.approx(three_s, 0.03)


def test_a_ring_of_32_in_slices():
    timeline = simulate(ring(32), cluster("dgx-h100", 4, 400, nics=8), 10**9, slices=4)
    assert timeline.busbw == pytest.approx(48e9, rel=0.1)  # one card of each machine carries it all
