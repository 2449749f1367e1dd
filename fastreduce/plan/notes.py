"""How far the times of a plan can be trusted, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fastreduce.plan.candidates import Candidate, on_links, ours, within
from fastreduce.topology import Topology
from fastreduce.units import busbw, duration


def notes_of(
    machine: Topology | None, found: Sequence[Candidate], nbytes: int, k: int
) -> tuple[str, ...]:
    """Whether the times were measured, each other engine's curve, which is never ours, and what
    was measured but does not hold here. ``machine`` is None for ranks in one memory."""
    measured = [x.algorithm for x in found if x.error is not None]
    of = f" but for {', '.join(measured)}" if measured else ""
    notes = [f"times: predicted, not measured on this machine{of}"]
    if machine is None:
        return tuple(notes)
    if missing := sum(words.startswith("latency_s") for words in machine.unknown()):
        notes.append(f"the latency of {missing} links is not known, and counts as none")
    for x in machine.calibrations:
        if not x.is_ours and x.covers(nbytes, k):
            time_s = x.curve.time_s(nbytes, k)
            by = " by others" if all("://" in source for source in x.sources) else ""
            notes.append(
                f"{x.engine}, as measured{by} on {x.medium}: {duration(time_s)}"
                f"{within(x.error.mean)}, {busbw(nbytes, time_s, k) / 1e9:.2f} GB/s busbw"
            )
    return (*notes, *_unused(machine, k))


def _unused(machine: Topology, k: int) -> Iterator[str]:
    """Else times would jump, and nobody would know why."""
    if any(map(on_links, machine.unused)):
        yield (
            "calibration not used: it was measured on one whole machine with its links as they "
            "are, not on this one"
        )
    ranks = [x.ranks for _, x in ours(machine, k)]
    if ranks and k > 1 and not any(low <= k <= high for low, high in ranks):
        yield f"calibration not used: it was measured with {_numbers(ranks)} ranks, not with {k}"


def calibrated_gpus(machine: Topology, gpus: Sequence[int]) -> str:
    """Of these numbers of GPUs, those for which a calibration of ours is used; "" without one.

    >>> from fastreduce.topology import preset
    >>> calibrated_gpus(preset("dgx-h100"), [2, 4, 8, 16])
    ''
    """
    if not any(map(on_links, machine.calibrations + machine.unused)):
        return ""
    inside = [k for k in gpus if 1 < k <= len(machine.devices)]
    used = [str(k) for k in inside if any(x.has_ranks(k) for _, x in ours(machine, k))]
    if not used:
        return "; the calibration is of other numbers of GPUs or of other links, and not used"
    return f"; the calibration is used for {', '.join(used)} GPUs only"


def _numbers(ranks: Sequence[tuple[int, int]]) -> str:
    """
    >>> _numbers([(8, 8), (2, 4), (8, 8)])
    '2 to 4 or 8'
    """
    each = sorted(set(ranks))
    return " or ".join(str(low) if low == high else f"{low} to {high}" for low, high in each)
