"""Programs in the form of other libraries: MSCCL++'s JSON (`fastreduce.program.export_mscclpp`)
and MSCCL's XML, which NCCL's runtime for MSCCL reads.

The form of the XML is that of microsoft/msccl-tools: each GPU has thread blocks, a thread block has
one peer to send to or to receive from, and its steps run in order. A step may wait for one step of
another thread block of its GPU; one that waits for several has a step that does nothing for each of
the others. What a program's instruction reads from another rank is sent by that rank. In a sum of
three or more, the value of the rank that holds the result comes first.
"""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TypeAlias

from fastreduce.files import write_whole
from fastreduce.instruction import HOST, Instruction
from fastreduce.program.export_mscclpp import mscclpp
from fastreduce.program.program import Program

# Limits of Azure/msccl-executor-nccl (src/include/msccl/msccl_struct.h): the steps of a thread
# block, the channels, and the thread blocks of a GPU, whose numbers are stored in a byte.
STEPS, CHANNELS, BLOCKS = 64, 32, 128

# Which thread block of a GPU: "send" or "recv", its peer, its channel.
Block: TypeAlias = tuple[str, int, int]


def export(program: Program, path: str | PathLike[str]) -> None:
    """Write an allreduce for MSCCL (NAME.xml) or MSCCL++ (NAME.mscclpp.json), whole or not at all.

    Raises:
        OSError: the file cannot be written.
        ValueError: the path ends otherwise; the program is no allreduce; or it has what they cannot
            say: instructions of the host, whole tensors, or more steps than they have room for.

    >>> import tempfile
    >>> from fastreduce.algorithms import ring
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export(ring(2), f"{folder}/ring.xml")
    ...     print(Path(f"{folder}/ring.xml").read_text().splitlines()[2])
        <tb id="0" send="-1" recv="1" chan="0">
    """
    path = Path(path)
    write = next((x for suffix, x in WRITERS.items() if path.name.lower().endswith(suffix)), None)
    if write is None:
        raise ValueError(
            f"cannot export to {path.name!r}: want a name that ends in {' or '.join(WRITERS)}"
        )
    _expect_sayable(program)
    write_whole(path, write(program))


def _expect_sayable(program: Program) -> None:
    program.verify()
    if any(x.rank == HOST for x in program.instructions):
        raise ValueError("MSCCL has no host: it cannot say instructions of rank HOST")
    if program.whole_tensors:
        raise ValueError("MSCCL cuts one buffer into equal chunks: it cannot say whole_tensors")


def msccl(program: Program) -> str:
    """The XML of an allreduce, in place."""
    most = min(CHANNELS, program.shards)
    sent = Counter((src, dst) for x in program.instructions for src, dst, _ in _transfers(x))
    # With fewer channels it cannot fit, and each try takes long where there are many instructions.
    fewest = min(most, math.ceil(max(sent.values(), default=1) / STEPS))
    for channels in range(fewest, most + 1):
        gpus = _gpus(program, channels)
        if all(gpu.fits() for gpu in gpus):
            return _xml(program, gpus, channels)
    steps = max(len(steps) for gpu in gpus for steps in gpu.blocks.values())
    raise ValueError(
        f"{program!r} is too long for MSCCL: with {channels} channels a thread block has {steps} "
        f"steps and a GPU {max(len(gpu.blocks) for gpu in gpus)} thread blocks, where at most "
        f"{STEPS} and {BLOCKS} fit; want fewer shards"
    )


WRITERS = {".xml": msccl, ".mscclpp.json": mscclpp}


@dataclass
class _Step:
    """``type`` is MSCCL's: s sends, r receives, rrc receives and adds, nop only waits."""

    type: str
    shard: int
    block: Block
    number: int
    waits: _Step | None = None
    awaited: bool = False


@dataclass
class _Gpu:
    blocks: dict[Block, list[_Step]] = field(default_factory=dict)
    writer: dict[int, _Step] = field(default_factory=dict)
    readers: dict[int, list[_Step]] = field(default_factory=dict)

    def fits(self) -> bool:
        return len(self.blocks) <= BLOCKS and all(len(x) <= STEPS for x in self.blocks.values())

    def add(self, type: str, shard: int, block: Block) -> None:
        steps = self.blocks.setdefault(block, [])
        writes, last = type != "s", self.writer.get(shard)
        after = [last] if last else []
        after += self.readers.pop(shard, []) if writes else []
        # Of each other thread block, the latest step: those before it come first anyway.
        latest = {step.block: step for step in after if step.block != block}
        for step in latest.values():
            step.awaited = True
        *others, one = latest.values() or [None]
        steps += [_Step("nop", 0, block, len(steps) + i, x) for i, x in enumerate(others)]
        steps.append(_Step(type, shard, block, len(steps), one))
        if writes:
            self.writer[shard] = steps[-1]
        else:
            self.readers.setdefault(shard, []).append(steps[-1])


def _gpus(program: Program, channels: int) -> list[_Gpu]:
    gpus = [_Gpu() for _ in range(program.k)]
    for x in program.instructions:
        for src, dst, adds in _transfers(x):
            channel = x.shard % channels
            gpus[src].add("s", x.shard, ("send", dst, channel))
            gpus[dst].add("rrc" if adds else "r", x.shard, ("recv", src, channel))
    return gpus


def _transfers(x: Instruction) -> Iterator[tuple[int, int, bool]]:
    """From buffer to buffer, and whether it is added there to what is there already."""
    home = x.srcs[0] if len(x.srcs) == 1 else x.rank if x.rank in x.dsts else x.dsts[0]
    others = [src for src in x.srcs if src != home]
    for number, src in enumerate(others):
        yield src, home, number > 0 or home in x.srcs
    for dst in x.dsts:
        if dst != home:
            yield home, dst, False


def _xml(program: Program, gpus: list[_Gpu], channels: int) -> str:
    root = ET.Element(
        "algo",
        name="fastreduce",
        proto="Simple",
        nchannels=str(channels),
        nchunksperloop=str(program.shards),
        ngpus=str(program.k),
        coll="allreduce",
        inplace="1",
        outofplace="0",
        minBytes="0",
        maxBytes="0",
    )
    for rank, gpu in enumerate(gpus):
        chunks = {"i_chunks": str(program.shards), "o_chunks": "0", "s_chunks": "0"}
        element = ET.SubElement(root, "gpu", {"id": str(rank), **chunks})
        ids = {block: number for number, block in enumerate(sorted(gpu.blocks))}
        for block, number in ids.items():
            way, peer, channel = block
            peers = {"send": "-1", "recv": "-1", way: str(peer)}
            found = {"id": str(number), **peers, "chan": str(channel)}
            tb = ET.SubElement(element, "tb", found)
            for step in gpu.blocks[block]:
                ET.SubElement(tb, "step", _attributes(step, ids))
    ET.indent(root)
    return ET.tostring(root, encoding="unicode") + "\n"


def _attributes(step: _Step, ids: dict[Block, int]) -> dict[str, str]:
    does = step.type != "nop"
    found = {
        "s": step.number,
        "type": step.type,
        "srcbuf": "i",
        "srcoff": step.shard if does else -1,
        "dstbuf": "i",
        "dstoff": step.shard if does else -1,
        "cnt": int(does),
        "depid": ids[step.waits.block] if step.waits else -1,
        "deps": step.waits.number if step.waits else -1,
        "hasdep": int(step.awaited),
    }
    return {key: str(value) for key, value in found.items()}
