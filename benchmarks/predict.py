"""Predicts allreduce on one H100 or H200 and on eight, and puts public figures of others beside it.

    python benchmarks/predict.py       # writes results/predicted.json

One GPU: a launch, and every rank's buffer read from memory and written once, at 88 % of the data
sheet's bandwidth; from the cache where all ranks' buffers fit into half of it, and also for data
that was in no cache, which is what a benchmark times that goes round several sets of buffers. A
launch takes `fastreduce.simulation.predict.MEMORIES["gpu"].call_s` if it is called from Python,
`fastreduce.simulation.EVENTS.launch_s` in a graph. These three figures were measured on one H100 on
2026-11-23 (results/h100/report.json): that they agree proves nothing of the model. On an H200,
from which nothing was taken, 15 of 16 times hold within 25 % (results/h200/report.json). Before, it
had 90 %, 8 us and 0.5 us, and was off by a factor of 3 for small data in a graph.

Eight GPUs, which nobody has measured: what "auto" stands for, simulated on the topology: launches,
event hops between GPUs, latencies of links, bytes over their bandwidth (docs/planning.md); and the
event hops from the caller's streams and back (`fastreduce.simulation.costs`). Called from Python,
the call above comes on top.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from measure import save

from fastreduce import algorithms
from fastreduce.algorithms import leader
from fastreduce.plan.defaults import default
from fastreduce.simulation import EVENTS
from fastreduce.simulation.predict import MEMORIES, in_one_memory, on_topology
from fastreduce.topology import preset
from fastreduce.topology.links import EFFICIENCY
from fastreduce.topology.presets import MEMORY
from fastreduce.units import busbw

OUT = Path(__file__).parent / "results" / "predicted.json"
GPUS = {"H100": "dgx-h100", "H200": "dgx-h200"}
SIZES_BYTES = [1 << e for e in (10, 13, 15, 16, 19, 20, 22, 25, 28, 30)]
# What others have published. They run one process for each GPU. GB/s are busbw.
PUBLIC_COLUMNS = ("what", "gpus", "size_bytes", "figure", "source")
PUBLIC = [
    ("NCCL 2.30", "8 H200", 1 << 15, "18 us", "stas00/ml-engineering"),
    ("vLLM's custom kernel", "8 H100", 1 << 15, "11.8 us", "sgl-project/sglang#2904"),
    ("SGLang's custom kernel", "8 H100", 1 << 15, "7.8 us", "sgl-project/sglang#2904"),
    ("NCCL 2.30", "8 H200", 1 << 20, "25 us", "stas00/ml-engineering"),
    ("vLLM's custom kernel", "8 H100", 1 << 20, "45.0 us", "sgl-project/sglang#2904"),
    ("SGLang's custom kernel", "8 H100", 1 << 20, "33.8 us", "sgl-project/sglang#2904"),
    ("torch's multimem", "8 Hopper", 1 << 20, "14 us", "vllm-project/vllm#42324"),
    ("torch's two-shot", "8 Hopper", 1 << 20, "17 us", "vllm-project/vllm#42324"),
    ("NCCL's ring", "8 H100", 1 << 30, "370 GB/s", "NVIDIA/nccl-tests#212"),
    ("NCCL with NVLS", "8 H100", 1 << 30, "480 GB/s", "NVIDIA/nccl-tests#212"),
]


def one_gpu(gpu: str) -> list[dict[str, Any]]:
    usual = MEMORIES["gpu"]._replace(bytes_per_s=EFFICIENCY["memory"] * MEMORY[gpu])
    rows = []
    for k in (2, 8):
        for nbytes in SIZES_BYTES:
            in_cache = k * nbytes <= usual.cache_bytes
            for memory in (usual, usual._replace(cache_bytes=0)) if in_cache else (usual,):
                captured = memory._replace(call_s=EVENTS.launch_s)
                rows.append(
                    {
                        "k": k,
                        "size_bytes": nbytes,
                        "from_memory": k * nbytes > memory.cache_bytes,
                        "called_s": in_one_memory(leader(k), nbytes, memory).time_s,
                        "captured_s": in_one_memory(leader(k), nbytes, captured).time_s,
                    }
                )
    return rows


def eight_gpus(topology: str) -> list[dict[str, Any]]:
    rows = []
    for nbytes in SIZES_BYTES:
        name = default("nvlink", nbytes)
        program = getattr(algorithms, name)(8)
        slices = program.slices(nbytes)
        found = on_topology(program, preset(topology), nbytes, slices)
        captured_s = found.time_s
        rows.append(
            {
                "size_bytes": nbytes,
                "algorithm": name,
                "called_s": captured_s + MEMORIES["gpu"].call_s,
                "captured_s": captured_s,
                "busbw_gb_per_s": busbw(nbytes, captured_s, 8) / 1e9,
                "limit": found.limit,
            }
        )
    return rows


def predicted() -> dict[str, Any]:
    gpu = MEMORIES["gpu"]
    return {
        "state": "predicted; benchmarks/predict.py has the model, and what of it was measured",
        "model": {
            "call_s": gpu.call_s,
            "launch_in_a_graph_s": EVENTS.launch_s,
            "event_wait_s": EVENTS.event_wait_s,
            "memory_bytes_per_s": {x: EFFICIENCY["memory"] * MEMORY[x] for x in GPUS},
            "cache_bytes_per_s": gpu.cache_bytes_per_s,
            "cache_bytes": gpu.cache_bytes,
        },
        "data_sheet_bytes_per_s": {gpu: MEMORY[gpu] for gpu in GPUS},
        "one_gpu": {gpu: one_gpu(gpu) for gpu in GPUS},
        "eight_gpus": {gpu: eight_gpus(topology) for gpu, topology in GPUS.items()},
        "public": [dict(zip(PUBLIC_COLUMNS, x, strict=True)) for x in PUBLIC],
    }


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    save(OUT, predicted())


if __name__ == "__main__":
    main()
