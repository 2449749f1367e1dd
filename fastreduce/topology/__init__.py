"""Machines as graphs: devices, switches, CPUs and network cards, and the links between them.

>>> import fastreduce.topology as topology
>>> machine = topology.preset("book-pcie4")
>>> machine.devices
('gpu0', 'gpu1', 'gpu2', 'gpu3')
>>> machine.route("gpu0", "gpu3")
(('gpu0', 'pcie0'), ('pcie0', 'gpu3'))
>>> topology.rings(machine)
[Ring(order=(0, 1, 2, 3), bytes_per_s=16000000000.0)]
>>> topology.cluster("dgx-h100", machines=4, gbit=400, nics=8)
Topology('4 x dgx-h100': 32 GPUs, 109 nodes, 328 links)
"""

from fastreduce.topology.cluster import cluster, machines
from fastreduce.topology.detect import detect
from fastreduce.topology.files import load, save
from fastreduce.topology.graph import Topology
from fastreduce.topology.named import as_topology
from fastreduce.topology.presets import names, preset
from fastreduce.topology.rings import Ring, rings

__all__ = [
    "Ring",
    "Topology",
    "as_topology",
    "cluster",
    "detect",
    "load",
    "machines",
    "names",
    "preset",
    "rings",
    "save",
]
