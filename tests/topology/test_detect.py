"""Detection, on drivers that are made up: what they tell is shown, what they do not is unknown."""

import sys
from itertools import permutations
from types import SimpleNamespace

import pynvml
import pytest
import torch

from fastreduce.topology import detect, preset, rings
from fastreduce.topology.detect import _detect

PXB, NODE, SYS = (
    pynvml.NVML_TOPOLOGY_MULTIPLE,
    pynvml.NVML_TOPOLOGY_NODE,
    pynvml.NVML_TOPOLOGY_SYSTEM,
)
GPU, SWITCH = pynvml.NVML_NVLINK_DEVICE_TYPE_GPU, pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
V2, V4 = pynvml.NVML_NVLINK_VERSION_2_0, pynvml.NVML_NVLINK_VERSION_4_0


class FakeNvml:
    """A driver that knows what it is given, and answers "not supported" to the rest.

    ``nvlinks[i]`` lists GPU i's links: the GPU or SWITCHES at the other end. ``levels`` has the
    common ancestor of pairs, or one for all.
    """

    SWITCHES = "switches"

    def __init__(self, count, *, nvlinks=None, version=V2, levels=SYS, silent=()):
        self.count, self.links, self.version, self.levels = count, nvlinks or {}, version, levels
        self.silent = silent
        self.open = 0

    def __getattr__(self, name):
        if name.startswith("nvml"):
            answer = getattr(self, f"_{name.removeprefix('nvml')}", None)
            return self.refuse if answer is None or name in self.silent else answer
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(pynvml, name)

    def refuse(self, *arguments):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def _Init(self):
        self.open += 1

    def _Shutdown(self):
        self.open -= 1

    def _SystemGetDriverVersion(self):
        return "570.1"

    def _DeviceGetCount(self):
        return self.count

    def _DeviceGetHandleByIndex(self, index):
        return f"handle {index}"

    def _DeviceGetName(self, handle):
        return "Tesla Fake"

    def _DeviceGetPciInfo(self, handle):
        return self.place(int(handle.split()[1]))

    def place(self, index):
        return SimpleNamespace(domain=0, bus=0x10 + index, device=0)

    def _DeviceGetMaxClockInfo(self, handle, clock):
        assert clock == pynvml.NVML_CLOCK_MEM
        return 877

    def _DeviceGetMemoryBusWidth(self, handle):
        return 4096

    def _DeviceGetMaxPcieLinkGeneration(self, handle):
        return 3

    def _DeviceGetMaxPcieLinkWidth(self, handle):
        return 16

    def _DeviceGetTopologyCommonAncestor(self, one, other):
        pair = (int(one.split()[1]), int(other.split()[1]))
        level = self.levels[pair] if isinstance(self.levels, dict) else self.levels
        return self.refuse() if level is None else level

    def ends(self, handle):
        return self.links.get(int(handle.split()[1]), [])

    def _DeviceGetNvLinkState(self, handle, link):
        return int(self.ends(handle)[link] is not None) if link < len(self.ends(handle)) else 0

    def _DeviceGetNvLinkVersion(self, handle, link):
        return self.version

    def _DeviceGetNvLinkRemoteDeviceType(self, handle, link):
        return SWITCH if self.ends(handle)[link] == self.SWITCHES else GPU

    def _DeviceGetNvLinkRemotePciInfo(self, handle, link):
        end = self.ends(handle)[link]
        return self.place(0xA0 + link if end == self.SWITCHES else end)


SWITCHES = FakeNvml.SWITCHES


def test_without_the_package_that_asks_the_driver(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(
        RuntimeError, match="found no package nvidia-ml-py; pip install nvidia-ml-py"
    ):
        detect()


def media(topology):
    return {link: found["medium"] for link, found in topology.graph.edges.items()}


class TestMachines:
    def test_a_pair_on_nvlink(self):
        # The second of GPU 0's links is down.
        links = {0: [1, None, 1], 1: [None, 0, 0]}
        found = _detect(FakeNvml(2, nvlinks=links, levels=NODE))
        assert found.name == "2 x Tesla Fake"
        assert "driver 570.1" in found.source
        assert found.graph.edges["gpu0", "gpu1"] == {
            "bytes_per_s": 45e9,
            "latency_s": 0.5e-6,
            "medium": "nvlink",
        }
        assert found.graph.nodes["gpu0"]["memory_bytes_per_s"] == pytest.approx(790e9, rel=1e-3)
        assert [found.host_of(x) for x in found.devices] == ["cpu0", "cpu0"]
        assert found.unknown() == ["memory_bytes_per_s of node 'cpu0'"]

    def test_a_link_that_only_one_end_tells_of(self):
        found = _detect(FakeNvml(2, nvlinks={1: [0]}))
        assert found.graph.edges["gpu0", "gpu1"]["bytes_per_s"] == 22.5e9

    def test_four_on_nvswitch(self):
        links = {gpu: [SWITCHES] * 18 for gpu in range(4)}
        found = _detect(FakeNvml(4, nvlinks=links, version=V4))
        assert found.route("gpu0", "gpu3") == (("gpu0", "nvswitch"), ("nvswitch", "gpu3"))
        like = preset("dgx-h100").graph.edges["gpu0", "nvswitch"]
        assert dict(found.graph.edges["gpu0", "nvswitch"]) == pytest.approx(like)
        (ring,) = rings(found)
        assert ring.order == (0, 1, 2, 3)

    def test_pcie_only(self):
        levels = {(i, j): PXB if i // 2 == j // 2 else SYS for i in range(4) for j in range(4)}
        found = _detect(FakeNvml(4, levels=levels))
        assert set(media(found).values()) == {"pcie", "smp"}
        assert [node for _, node in found.route("gpu0", "gpu1")] == ["pcie0", "gpu1"]
        assert [node for _, node in found.route("gpu1", "gpu2")] == [
            "pcie0",
            "cpu0",
            "cpu1",
            "pcie1",
            "gpu2",
        ]
        assert found.graph.edges["gpu3", "pcie1"]["bytes_per_s"] == pytest.approx(11.97e9, rel=1e-3)
        assert [found.host_of(x) for x in found.devices] == ["cpu0", "cpu0", "cpu1", "cpu1"]
        unknown = found.unknown()
        assert "bytes_per_s of link 'pcie0' -> 'cpu0'" in unknown
        assert "bytes_per_s of link 'cpu0' -> 'cpu1'" in unknown
        with pytest.raises(ValueError, match="unknown, and a ring crosses it"):
            rings(found)

    def test_the_cube_mesh_of_dgx1(self):
        book = preset("dgx1")
        nvlinks = {i: [] for i in range(8)}
        for i, j in permutations(range(8), 2):
            link = book.graph.edges.get((f"gpu{i}", f"gpu{j}"), {"bytes_per_s": 0})
            nvlinks[i] += [j] * round(link["bytes_per_s"] / 22.5e9)
        found = _detect(FakeNvml(8, nvlinks=nvlinks))
        assert [ring.order for ring in rings(found)] == [ring.order for ring in rings(book)]
        assert sum(ring.bytes_per_s for ring in rings(found)) == 67.5e9

    def test_some_gpus_in_the_order_of_ranks(self, monkeypatch):
        levels = {(i, j): PXB if i // 2 == j // 2 else SYS for i in range(4) for j in range(4)}
        nvml = FakeNvml(4, levels=levels, nvlinks={0: [3], 3: [0]})
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        addresses = {"cuda:0": 3, "cuda:1": 0}
        monkeypatch.setattr(
            torch.cuda,
            "get_device_properties",
            lambda device: SimpleNamespace(
                pci_domain_id=0, pci_bus_id=0x10 + addresses[device], pci_device_id=0
            ),
        )
        found, whole = detect(["cuda:0", "cuda:0", "cuda:1"]), detect()
        assert found.devices == ("gpu3", "gpu0", "gpu1", "gpu2")
        assert (found.name, whole.name) == ("4 x Tesla Fake", "4 x Tesla Fake")
        assert dict(found.graph.nodes) == dict(whole.graph.nodes)
        assert dict(found.graph.edges) == dict(whole.graph.edges)
        assert found.route("gpu3", "gpu0") == (("gpu3", "gpu0"),)

    def test_addresses_that_the_driver_does_not_know(self):
        assert _detect(FakeNvml(2), [(0, 0x99, 0)]).devices == ("gpu0", "gpu1")

    def test_one_gpu(self):
        found = _detect(FakeNvml(1))
        assert (found.devices, found.host_of("gpu0")) == (("gpu0",), "cpu0")


SILENT = {
    # a query that this driver does not answer, and what is unknown then
    "nvmlDeviceGetMaxClockInfo": "memory_bytes_per_s of node 'gpu0'",
    "nvmlDeviceGetMemoryBusWidth": "memory_bytes_per_s of node 'gpu0'",
    "nvmlDeviceGetMaxPcieLinkGeneration": "bytes_per_s of link 'gpu0' -> 'cpu0'",
    "nvmlDeviceGetMaxPcieLinkWidth": "bytes_per_s of link 'gpu0' -> 'cpu0'",
    "nvmlDeviceGetNvLinkVersion": "bytes_per_s of link 'gpu0' -> 'gpu1'",
    "nvmlDeviceGetTopologyCommonAncestor": "bytes_per_s of link 'cpu0' -> 'cpu1'",
}


PAIR = {"nvlinks": {0: [1], 1: [0]}, "levels": NODE}


class TestUnknown:
    @pytest.mark.parametrize("query", SILENT)
    def test_is_what_is_not_answered(self, query):
        found = _detect(FakeNvml(2, **PAIR, silent=[query]))
        assert SILENT[query] in found.unknown()
        assert found.route("gpu0", "gpu1")

    @pytest.mark.parametrize("query", SILENT)
    def test_control_is_known_where_it_is_answered(self, query):
        assert SILENT[query] not in _detect(FakeNvml(2, **PAIR)).unknown()

    def test_without_a_common_ancestor_the_way_is_unknown(self):
        found = _detect(FakeNvml(2, levels=None))
        assert media(found)["cpu0", "cpu1"] == "unknown"

    def test_a_version_without_a_published_rate(self):
        found = _detect(FakeNvml(2, **PAIR, version=99))
        assert found.graph.edges["gpu0", "gpu1"]["bytes_per_s"] is None

    @pytest.mark.parametrize(
        "query", ["nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkRemotePciInfo"]
    )
    def test_links_that_cannot_be_seen_are_not_shown(self, query):
        found = _detect(FakeNvml(2, **PAIR, silent=[query]))
        assert "nvlink" not in media(found).values()

    @pytest.mark.parametrize("query", ["nvmlDeviceGetName", "nvmlSystemGetDriverVersion"])
    def test_names(self, query):
        found = _detect(FakeNvml(2, silent=[query]))
        assert "of unknown" in found.name + found.source

    def test_a_link_to_a_gpu_that_is_hidden(self):
        assert "nvlink" not in media(_detect(FakeNvml(2, nvlinks={0: [5], 1: [6]}))).values()


class TestErrors:
    def test_no_driver(self):
        nvml = FakeNvml(2, silent=["nvmlInit"])
        with pytest.raises(
            RuntimeError, match=r"looked for an Nvidia driver .*libnvidia-ml.*preset"
        ):
            _detect(nvml)
        assert nvml.open == 0

    def test_no_gpu(self):
        nvml = FakeNvml(0)
        with pytest.raises(RuntimeError, match="found: no GPU; name a preset"):
            _detect(nvml)
        assert nvml.open == 0

    def test_a_gpu_that_is_lost(self):
        with pytest.raises(RuntimeError, match="GPU 0 of 2 does not answer"):
            _detect(FakeNvml(2, silent=["nvmlDeviceGetHandleByIndex"]))

    def test_the_driver_is_let_go(self):
        nvml = FakeNvml(2)
        _detect(nvml)
        assert nvml.open == 0


def test_this_machine():
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        with pytest.raises(RuntimeError, match="looked for"):
            detect()
        return
    count = pynvml.nvmlDeviceGetCount()
    pynvml.nvmlShutdown()
    assert len(detect().devices) == count
