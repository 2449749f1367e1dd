"""Trees packed into a topology: together they fit, and the bound proves the packing."""

import itertools

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastreduce.topology import Topology, cluster, names, preset
from fastreduce.topology.packing import cheapest_tree, pack
from fastreduce.topology.traffic import Links

NETWORK = cluster("dgx-h100", machines=4, gbit=400, nics=8)
BROKEN = preset("dgx1").without(("gpu0", "gpu3")).scaled(("gpu5", "gpu6"), 0.5)


@pytest.mark.parametrize(
    "topology", [*map(preset, names()), NETWORK, BROKEN], ids=lambda topology: topology.name
)
def test_the_packing_is_as_good_as_its_bound(topology):
    links = Links(topology, len(topology.devices))
    found = pack(links)
    assert found.bound_s == pytest.approx(found.time_s, rel=5e-3)
    assert found.bound_s <= found.time_s * (1 + 1e-9)
    assert sum(found.shares) == pytest.approx(1)
    for tree in found.trees:
        assert nx.is_tree(nx.Graph(tree)) and len(tree) == links.k - 1
    busy = sum(s * links.tree_s(tree) for s, tree in zip(found.shares, found.trees, strict=True))
    assert busy.max() == pytest.approx(found.time_s, rel=1e-3)


@pytest.mark.parametrize("share", [1e-12, 1e-20, 1e-37])
def test_links_that_are_slow_beyond_all_others_are_left_alone(share):
    """The solver takes no times that are 1e15 times as long as others."""
    found = pack(Links(preset("dgx1").scaled(("gpu0", "gpu1"), share), 8))
    assert found.bound_s == pytest.approx(found.time_s, rel=5e-3)
    assert found.time_s < 1.1 * pack(Links(preset("dgx1"), 8)).time_s


def complete(rates):
    """Devices with a link from each to each other one."""
    k = len(rates)
    graph = nx.DiGraph()
    graph.add_nodes_from((f"gpu{i}" for i in range(k)), kind="gpu", memory_bytes_per_s=1e15)
    for i, j in itertools.permutations(range(k), 2):
        link = {"bytes_per_s": rates[i][j], "latency_s": 1e-9, "medium": "nvlink"}
        graph.add_edge(f"gpu{i}", f"gpu{j}", **link)
    return Topology("complete", "an example", graph)


def divisions(items):
    """All ways to divide the items into parts."""
    if not items:
        yield []
        return
    first, *rest = items
    for found in divisions(rest):
        yield [[first], *found]
        for i in range(len(found)):
            yield [*found[:i], [first, *found[i]], *found[i + 1 :]]


def by_divisions(rates):
    """2 (m - 1) messages between m parts, over all links between them: the worst division; or one
    from one of two parts to the other."""
    found = 0.0
    for parts in divisions(list(range(len(rates)))):
        part_of = {rank: number for number, part in enumerate(parts) for rank in part}
        between = {(a, b): 0.0 for a, b in itertools.permutations(range(len(parts)), 2)}
        for i, j in itertools.permutations(range(len(rates)), 2):
            if part_of[i] != part_of[j]:
                between[part_of[i], part_of[j]] += rates[i][j]
        if len(parts) > 1:
            found = max(found, 2 * (len(parts) - 1) / sum(between.values()))
        if len(parts) == 2:
            found = max(found, *(1 / rate for rate in between.values()))
    return found


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_it_is_the_worst_division(data):
    k = data.draw(st.integers(2, 5))
    rate = st.integers(1, 9).map(lambda x: x * 1e9)
    rates = data.draw(st.lists(st.lists(rate, min_size=k, max_size=k), min_size=k, max_size=k))
    if data.draw(st.booleans(), "both directions alike"):
        rates = [[rates[min(i, j)][max(i, j)] for j in range(k)] for i in range(k)]
    found = pack(Links(complete(rates), k))
    assert found.bound_s == pytest.approx(by_divisions(rates), rel=5e-3)
    assert found.bound_s <= found.time_s * (1 + 1e-9)


def test_a_slow_way_into_one_device():
    rates = [[9e9] * 4 for _ in range(4)]
    for i in (0, 1, 2):
        rates[i][3] = 1e9
    found = pack(Links(complete(rates), 4))
    assert found.bound_s == pytest.approx(1 / 3e9)
    for i in (0, 1, 2):
        rates[i][3], rates[3][i] = rates[3][i], 1e9  # and out of it
    assert pack(Links(complete(rates), 4)).bound_s == pytest.approx(1 / 3e9)


def test_two_islands_are_bound_by_their_bridge():
    rates = [[9e9] * 4 for _ in range(4)]
    for i, j in ((0, 2), (0, 3), (1, 2), (1, 3)):
        rates[i][j] = rates[j][i] = 1e9
    # Each byte crosses once in each direction: 4 GB/s each way.
    assert pack(Links(complete(rates), 4)).bound_s == pytest.approx(1 / 4e9)


def test_the_cheapest_tree():
    rng = np.random.default_rng(0)
    for k in (2, 5, 9):
        prices = rng.random((k, k))
        prices += prices.T
        graph = nx.from_numpy_array(prices)
        least = nx.minimum_spanning_tree(graph).size(weight="weight")
        assert sum(prices[edge] for edge in cheapest_tree(prices)) == pytest.approx(least)
