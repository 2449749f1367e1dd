"""What do large messages, and training on many GPUs, take? The pictures of docs/whatif.md.

Predicted, not measured, but for the published points of NCCL beside them.

    python benchmarks/whatif.py                            # under two minutes
    python benchmarks/whatif.py --out benchmarks/results   # writes sizes.png, busy.png, step.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fastreduce import draw, simulate
from fastreduce.algorithms import multi_ring
from fastreduce.plan.sizes import over_sizes
from fastreduce.plan.step import what_if
from fastreduce.simulation.busy import Busy
from fastreduce.topology import preset
from fastreduce.topology.rings import directed

MACHINE = "dgx-h100"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="a folder for the pictures")
    args = parser.parse_args()

    sizes = over_sizes("1KB:8GB", topology=MACHINE, progress=True)
    step = what_if("llama-8b", "350ms", topology=MACHINE)
    broken = preset("dgx1").without(("gpu0", "gpu1"))
    timeline = simulate(multi_ring(8, directed(broken)), broken, "160MB")
    print(sizes, step, timeline, sep="\n\n")
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        draw(sizes, args.out / "sizes.png")
        draw(step, args.out / "step.png")
        draw(Busy(broken, timeline, "multi-ring"), args.out / "busy.png")


if __name__ == "__main__":
    main()
