"""What a training step costs on many GPUs, and how much of its allreduce hides behind backward."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from fastreduce.drawing import Drawable
from fastreduce.kinds import is_whole
from fastreduce.names import counted
from fastreduce.plan.html_table import html_table
from fastreduce.plan.notes import calibrated_gpus
from fastreduce.plan.parameters import Source, parameters
from fastreduce.plan.scaling import Network, Seconds, counts, in_machines, in_one_machine
from fastreduce.topology import as_topology
from fastreduce.units import duration, seconds_of, size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fastreduce.plan.explain import Named

# The backward pass computes two products of matrices for each one of the forward pass: the
# gradients of a layer's inputs and those of its weights.
BACKWARD_SHARE = 2 / 3

MOST_GPUS = 1024

HEADINGS = ("GPUs", "allreduce", "hidden", "step", "efficiency", "reckoned by")


class Scale(NamedTuple):
    """A step on this many GPUs: the sums of all buckets, and the whole step with what they add."""

    gpus: int
    allreduce_s: float
    step_s: float
    alone_s: float
    reckoned_by: str

    @property
    def hidden(self) -> float:
        """The share of the sums' time that passes during the backward pass; 1 without sums."""
        exposed_s = self.step_s - self.alone_s
        return max(0.0, 1 - exposed_s / self.allreduce_s) if self.allreduce_s else 1.0

    @property
    def efficiency(self) -> float:
        """Examples per second over what as many GPUs would do if sums took no time."""
        return self.alone_s / self.step_s

    def cells(self) -> tuple[str, ...]:
        summed = self.gpus > 1
        return (
            f"{self.gpus:,}",
            duration(self.allreduce_s) if summed else "-",
            f"{self.hidden:.1%}" if summed else "-",
            duration(self.step_s),
            f"{self.efficiency:.1%}",
            self.reckoned_by,
        )


@dataclass(frozen=True, repr=False)
class WhatIf(Drawable):
    """A training step from one GPU to many. Prints as a table; `fastreduce.draw` draws it.

    ``bucket_bytes`` are in the order in which they are summed.
    """

    title: str
    machine: str
    bucket_bytes: tuple[int, ...]
    scales: tuple[Scale, ...]

    def on(self, gpus: int) -> Scale:
        """The step on this many GPUs; a ValueError lists the numbers that were reckoned."""
        for scale in self.scales:
            if scale.gpus == gpus:
                return scale
        known = ", ".join(str(scale.gpus) for scale in self.scales)
        raise ValueError(f"found {gpus} GPUs, want one of {known}")

    def __str__(self) -> str:
        row = "{:>6} {:>11} {:>7} {:>10} {:>11}  {}".format
        lines = [row(*scale.cells()) for scale in self.scales]
        return "\n".join([self.title, self.machine, row(*HEADINGS), *lines])

    def __repr__(self) -> str:
        return f"WhatIf({self.title!r}, {len(self.scales)} numbers of GPUs)"

    def _repr_html_(self) -> str:
        rows = [scale.cells() for scale in self.scales]
        return html_table([self.title, self.machine], HEADINGS, rows)

    def _figure(self) -> Figure:
        from fastreduce.plan.pictures import step_figure

        return step_figure(self)


def what_if(
    model: Source,
    step: float | str,
    *,
    dtype: torch.dtype | str | None = None,
    topology: Named = "dgx-h100",
    gbit: float = 400.0,
    nics: int | None = None,
    most_gpus: int = MOST_GPUS,
) -> WhatIf:
    """Predict a data-parallel training step from one GPU to ``most_gpus``.

    Args:
        model: whose gradients are summed, as `fastreduce.plan.parameters.parameters` takes it: a
            known model's name, a file, a module, or its parameters.
        step: what forward and backward take on one GPU, such as "350ms" or 0.35 (seconds).
        dtype: of the gradients. Default: that of the parameters.
        topology: the machine, of which there are as many as needed.
        gbit: rate of a network card in Gbit/s, each way.
        nics: network cards in each machine. Default: one for each GPU.
        most_gpus: where the table ends.

    The model:

    - Each GPU keeps its batch, so what it computes takes ``step`` however many there are. A third
      of it is the forward pass, the rest the backward pass.
    - Gradients are summed in the buckets of `fastreduce.DataParallel` and of DDP: the parameters
      from last to first, 1 MiB and then 25 MiB at a time.
    - Buckets become ready in proportion to their bytes while the backward pass goes on. A sum
      starts when its bucket is ready and the one before it is done.
    - What the sums take from computing (memory, multiprocessors) is not counted, nor is the
      optimizer.

    Raises:
        OSError: a file cannot be read.
        TypeError: ``model`` or ``topology`` is of another type.
        ValueError: an unknown model, dtype or topology, a duration, rate or number that is not
            above zero, or a bandwidth that is unknown.

    >>> found = what_if("resnet50", "100ms", topology="book-pcie4", most_gpus=4)
    >>> found.on(4).efficiency > 0.95
    True
    """
    step_s, machine, found = seconds_of(step), as_topology(topology), parameters(model, dtype)
    if not is_whole(most_gpus) or most_gpus < 1:
        raise ValueError(f"most_gpus is {most_gpus!r}, want 1 or more")
    cards = len(machine.devices) if nics is None else nics
    network, summed_bytes = Network(cards, gbit), bucket_bytes(found)
    several = most_gpus >= 2 * len(machine.devices)
    by_formula = in_machines(machine, network) if several else None
    scales = [Scale(1, 0.0, step_s, step_s, "-")]
    for gpus in counts(machine, most_gpus):
        if by_formula and gpus > len(machine.devices):
            allreduce_s, by = by_formula(gpus // len(machine.devices)), "formula"
        else:
            sizes = sorted(set(summed_bytes))
            allreduce_s, by = in_one_machine(machine, gpus, sizes), "simulation"
        sums_s = sum(map(allreduce_s, summed_bytes))
        whole_s = with_sums_s(step_s, summed_bytes, allreduce_s)
        scales.append(Scale(gpus, sums_s, whole_s, step_s, by))
    calibrated = calibrated_gpus(machine, [scale.gpus for scale in scales])
    joined = f", joined by {cards} x {gbit:g} Gbit/s each" if several else ""
    return WhatIf(
        f"{_name(model)}, {_gradients(found)} in {counted(len(summed_bytes), 'bucket')}; a step of "
        f"{duration(step_s)} on one GPU",
        f"{machine.name}{joined}; all predicted{calibrated}",
        summed_bytes,
        tuple(scales),
    )


def bucket_bytes(found: Sequence[Tensor]) -> tuple[int, ...]:
    """The bytes of each bucket of gradients, in the order in which they are summed; a bucket of
    empty tensors only has nothing to sum.

    >>> [nbytes >> 20 for nbytes in bucket_bytes([torch.empty(1 << 20) for _ in range(9)])]
    [4, 28, 4]
    """
    from fastreduce.parallel.buckets import buckets_of

    order = list(reversed(range(len(found))))
    sums = (sum(found[i].nbytes for i in bucket) for bucket in buckets_of(found, order))
    return tuple(filter(None, sums))


def with_sums_s(step_s: float, summed_bytes: Sequence[int], allreduce_s: Seconds) -> float:
    """Seconds of a step, if it takes ``step_s`` without sums.

    One bucket is ready only at the end; of two equal ones, the first in the middle of backward:

    >>> with_sums_s(3.0, [10], lambda nbytes: 0.5)
    3.5
    >>> with_sums_s(3.0, [10, 10], lambda nbytes: 0.5), with_sums_s(3.0, [10, 10], lambda _: 1.5)
    (3.5, 5.0)
    """
    total, end_s = sum(summed_bytes), 0.0
    for nbytes, so_far in zip(summed_bytes, accumulate(summed_bytes), strict=True):
        ready_s = step_s * (1 - BACKWARD_SHARE * (1 - so_far / total))
        end_s = max(ready_s, end_s) + allreduce_s(nbytes)
    return max(step_s, end_s)


def _name(model: Source) -> str:
    if isinstance(model, nn.Module):
        return type(model).__name__
    return "tensors" if isinstance(model, Iterable) and not isinstance(model, str) else str(model)


def _gradients(found: Sequence[Tensor]) -> str:
    names = sorted({str(x.dtype).removeprefix("torch.") for x in found})
    elems, nbytes = sum(x.numel() for x in found), sum(x.nbytes for x in found)
    return (
        f"{elems:,} parameter{'s' * (elems != 1)}: {size(nbytes)} of gradients ({', '.join(names)})"
    )
