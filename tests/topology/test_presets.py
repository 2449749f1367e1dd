"""The known machines: as many GPUs and links as their makers say, and figures as published."""

import pytest

from fastreduce.topology import names, preset, rings
from fastreduce.topology.links import EFFICIENCY, NVLINK_EFFICIENCY

MACHINES = {
    # GPUs, the first GPU's links by medium, GB/s of one of them
    "book-pcie4": (4, {"pcie": 1}, {"pcie": 16}),
    "book-dgx1": (8, {"pcie": 1, "nvlink": 4}, {"pcie": 11.97}),
    "dgx1-v100": (8, {"pcie": 1, "nvlink": 4}, {"pcie": 11.97}),
    "dgx2-v100": (16, {"pcie": 1, "nvlink": 1}, {"nvlink": 135}),
    "dgx-a100": (8, {"pcie": 1, "nvlink": 1}, {"nvlink": 240, "pcie": 23.95}),
    "dgx-h100": (8, {"pcie": 1, "nvlink": 1}, {"nvlink": 360, "pcie": 47.89}),
    "dgx-h200": (8, {"pcie": 1, "nvlink": 1}, {"nvlink": 360, "pcie": 47.89}),
    "g4dn.12xlarge": (4, {"pcie": 1}, {"pcie": 5.99}),
    "p2.16xlarge": (16, {"pcie": 1}, {"pcie": 11.97}),
    "pcie4-x8": (8, {"pcie": 1}, {"pcie": 23.95}),
    "pcie5-x8": (8, {"pcie": 1}, {"pcie": 47.89}),
}


@pytest.mark.parametrize("name", MACHINES)
class TestEach:
    def test_has_its_gpus_and_links(self, name):
        machine = preset(name)
        count, links, rates = MACHINES[name]
        assert machine.name == name
        assert machine.devices == tuple(f"gpu{rank}" for rank in range(count))
        for device in machine.devices:
            found = [x for _, _, x in machine.graph.out_edges(device, data=True)]
            media = [x["medium"] for x in found]
            assert {medium: media.count(medium) for medium in media} == links
            for x in found:
                assert x["bytes_per_s"] / 1e9 == pytest.approx(
                    rates.get(x["medium"], x["bytes_per_s"] / 1e9), rel=1e-3
                )

    def test_is_the_same_both_ways(self, name):
        graph = preset(name).graph
        assert all(graph.edges[dst, src] == found for (src, dst), found in graph.edges.items())

    def test_says_where_it_is_from(self, name):
        assert any(x in preset(name).source for x in ("Dive into", "Nvidia", "AWS", "assumed"))

    def test_is_built_anew(self, name):
        assert preset(name) is not preset(name)


class TestNames:
    def test_are_all_tested(self):
        assert set(names()) == {*MACHINES, "dgx1", "p3.16xlarge"}
        assert names() == sorted(names())

    @pytest.mark.parametrize("name", ["dgx1", "p3.16xlarge"])
    def test_other_names_of_dgx1(self, name):
        assert preset(name).name == "dgx1-v100"

    @pytest.mark.parametrize("name", ["dgx3", "", None])
    def test_unknown_ones_are_refused_with_the_known(self, name):
        with pytest.raises(ValueError, match=rf"unknown topology {name!r}; known are book-dgx1, "):
            preset(name)


class TestDgx1:
    # `nvidia-smi topo -m` of a DGX-1 and of a p3.16xlarge: NVLinks between its GPUs 0 to 7.
    SMI = (
        (0, 1, 1, 2, 2, 0, 0, 0),
        (1, 0, 2, 1, 0, 2, 0, 0),
        (1, 2, 0, 2, 0, 0, 1, 0),
        (2, 1, 2, 0, 0, 0, 0, 1),
        (2, 0, 0, 0, 0, 1, 1, 2),
        (0, 2, 0, 0, 1, 0, 2, 1),
        (0, 0, 1, 0, 1, 2, 0, 2),
        (0, 0, 0, 1, 2, 1, 2, 0),
    )
    RANKS = (3, 0, 4, 7, 6, 5, 1, 2)  # nvidia-smi's number of each rank

    @pytest.mark.parametrize(("name", "link"), [("dgx1", 22.5e9), ("book-dgx1", 18e9)])
    def test_has_the_links_of_the_real_one(self, name, link):
        graph = preset(name).graph
        for i, one in enumerate(self.RANKS):
            for j, other in enumerate(self.RANKS):
                found = graph.edges.get((f"gpu{i}", f"gpu{j}"), {"bytes_per_s": 0})
                assert found["bytes_per_s"] == link * self.SMI[one][other]

    def test_each_gpu_has_six_nvlinks(self):
        graph = preset("dgx1").graph
        for device in preset("dgx1").devices:
            links = [x for _, _, x in graph.out_edges(device, data=True) if x["medium"] == "nvlink"]
            assert sum(x["bytes_per_s"] for x in links) == 6 * 22.5e9

    def test_has_the_pcie_switches_of_the_real_one(self):
        graph = preset("dgx1").graph
        pairs = [
            {self.RANKS[int(x[3:])] for x in graph.successors(f"pcie{i}") if x.startswith("gpu")}
            for i in range(4)
        ]
        assert pairs == [{0, 1}, {2, 3}, {4, 5}, {6, 7}]
        assert [("pcie1", f"cpu{i}") in graph.edges for i in range(2)] == [True, False]


@pytest.mark.parametrize(("name", "busbw"), [("dgx-h100", 370), ("dgx-a100", 235)])
def test_rings_come_near_the_bus_bandwidth_that_nccl_shows(name, busbw):
    assert rings(preset(name))[0].bytes_per_s / 1e9 == pytest.approx(busbw, rel=0.03)


def test_efficiencies_are_shares():
    shares = [*EFFICIENCY.values(), *NVLINK_EFFICIENCY.values()]
    assert all(0.5 < share < 1 for share in shares)
