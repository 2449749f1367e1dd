"""How much the engine's number of slices loses beside the best number, in the model."""

from statistics import mean

import pytest

from fastreduce.algorithms import registry
from fastreduce.simulation.run import seconds
from fastreduce.topology import preset

KIB, MIB = 1 << 10, 1 << 20
SIZES = (64 * KIB, 512 * KIB, 4 * MIB, 64 * MIB, 1024 * MIB, 8192 * MIB)
COUNTS = (1, 2, 3, 4, 8, 16, 32, 64, 128)
NAMES = ("ring", "bidirectional", "halving-doubling", "hierarchical", "sharded", "tree")


def losses(machine, rule):
    """By algorithm and size: how much longer it takes than with the best number of slices."""
    topology = preset(machine)
    found = {}
    for name in NAMES:
        program = registry[name](len(topology.devices))
        for nbytes in SIZES:
            chosen = rule(program, nbytes)
            counts = {*(COUNTS if name == "tree" else (1, 2)), chosen}
            times = {count: seconds(program, topology, nbytes, count) for count in counts}
            found[name, nbytes] = times[chosen] / min(times.values()) - 1
    return found


def by_shard_bytes(program, nbytes):
    """The rule before: up to 8 slices of 1 MiB wherever one instruction waits for another."""
    one_step = not any(program.dependencies())
    return 1 if one_step else min(max(nbytes // program.shards // MIB, 1), 8)


@pytest.mark.parametrize("machine, worst", [("dgx-h100", 0.11), ("dgx1", 0.21), ("pcie4-x8", 0.16)])
def test_it_loses_little(machine, worst):
    found = losses(machine, lambda program, nbytes: program.slices(nbytes))
    assert mean(found.values()) < 0.01
    assert max(found.values()) < worst
    assert all(loss == 0 for (name, _), loss in found.items() if name != "tree")
    assert all(loss < 0.05 for (_, nbytes), loss in found.items() if nbytes >= 64 * MIB)


def test_control_by_the_size_of_a_shard_alone_it_loses_more():
    found = losses("dgx-h100", by_shard_bytes)
    assert max(found.values()) > 0.3 and mean(found.values()) > 0.03
