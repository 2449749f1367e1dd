"""Programs made of instructions.

A program says which rank reduces which shard of which buffers into which. It says nothing about
sizes, dtypes or devices. Its dependencies and its proof follow from the instructions alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from fastreduce import _C
from fastreduce.arguments import check_flags
from fastreduce.drawing import Drawable, Picture, at_a_glance
from fastreduce.instruction import Instruction
from fastreduce.kinds import is_whole
from fastreduce.listing import Listing
from fastreduce.names import counted, shown
from fastreduce.program import proof
from fastreduce.program.check import MOST, check_counts, check_instruction, check_size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# From (buffer, shard) to the ranks whose contributions it must hold in the end; None where it may
# hold anything.
Goal: TypeAlias = Callable[[int, int], "frozenset[int] | None"]


@dataclass(frozen=True, repr=False)
class Program(Drawable):
    """A list of instructions for ``k`` ranks over buffers cut into ``shards`` equal parts.

    Buffers 0 to k-1 are the ranks' tensors. Collectives whose results lie in other tensors
    (reduce_scatter, all_gather) have ``2 * k`` buffers: rank r's output is buffer k + r. With
    ``whole_tensors`` no tensor is cut: shard s is every tensor whose index is s modulo ``shards``.
    ``sliced`` asks for a number of slices (see `slices`).

    ``repr`` is one line, ``print`` lists the instructions, and a notebook shows a picture.

    >>> swap = Program(k=2, shards=1, instructions=[Instruction(0, 0, (0, 1), (0, 1))])
    >>> swap.verify()
    >>> swap.dependencies()
    [()]
    >>> swap
    Program(k=2, shards=1, 1 instruction)
    """

    k: int
    shards: int
    instructions: Sequence[Instruction]
    buffers: int = 0
    whole_tensors: bool = False
    sliced: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.instructions, Iterable):
            raise TypeError(
                f"instructions is {shown(self.instructions)}, want a list of Instruction"
            )
        object.__setattr__(self, "instructions", Listing(self.instructions))
        object.__setattr__(self, "buffers", self.buffers or self.k)

    def __repr__(self) -> str:
        instructions = counted(len(self.instructions), "instruction")
        buffers = f", buffers={self.buffers}" if self.buffers != self.k else ""
        whole = ", whole_tensors=True" if self.whole_tensors else ""
        sliced = f", sliced={self.sliced}" if self.sliced else ""
        return f"Program(k={self.k}, shards={self.shards}{buffers}{whole}{sliced}, {instructions})"

    def _repr_svg_(self) -> Picture | None:
        return at_a_glance(self)

    def _figure(self) -> Figure:
        from fastreduce.program.picture import program_figure

        return program_figure(self)

    def _marks(self) -> int:
        self.check_form()
        return sum(1 + len(x.srcs) + len(x.dsts) for x in self.instructions) + self.k

    def __str__(self) -> str:
        of = " of whole tensors" if self.whole_tensors else ""
        ranks, shards = counted(self.k, "rank"), counted(self.shards, "shard")
        count = counted(len(self.instructions), "instruction")
        lines = (f"{i:4} {x}" for i, x in enumerate(self.instructions))
        return "\n".join([f"{ranks}, {shards}{of}, {count}", *lines])

    def dependencies(self) -> list[tuple[int, ...]]:
        """For each instruction, the earlier ones it must wait for, by index, ascending.

        Read after write, write after read and write after write, for each shard of each buffer. Per
        shard and buffer, a reader waits for the last writer, and a writer for the last writer and
        all readers since. Waits for anything earlier follow from these and are left out.
        """
        return self.flat.dependencies()

    def steps(self) -> list[int]:
        """For each instruction, how many must come before it, one after the other.

        >>> from fastreduce.algorithms import tree
        >>> tree(4).steps()
        [0, 0, 1, 2, 3, 2]
        """
        steps: list[int] = []
        for waits in self.dependencies():
            steps.append(1 + max((steps[earlier] for earlier in waits), default=-1))
        return steps

    @cached_property
    def flat(self) -> _C.KnownProgram:
        """The instructions as arrays, for the extension; a ValueError if one is malformed."""
        check_counts(self)
        found = _C.flatten(self.instructions, Instruction, self.k, self.shards, self.buffers)
        if isinstance(found, int):
            check_instruction(found, self.instructions[found], self)
            raise TypeError(
                f"instruction {found} is {shown(self.instructions[found])}, want integers and "
                "tuples of integers"
            )
        check_size(self)
        return found

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: without what is found again."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def slices(self, nbytes: int) -> int:
        """How many slices the events engine cuts each shard into, if each rank has ``nbytes``.

        A rank passes on the first slice while it receives the second. Where some rank always works,
        as in a ring, nothing is won, and one slice is enough. A program may ask for a number of its
        own (``sliced``).

        >>> from fastreduce.algorithms import ring, tree
        >>> tree(4).slices(160_000_000), tree(4).slices(1000), ring(4).slices(160_000_000)
        (30, 1, 1)
        """
        return self.flat.slices(nbytes, self.sliced or 0)

    def launches(self) -> list[tuple[int, ...]]:
        """The instructions, by index and in order, in groups that a device starts together.

        A group is neighbours in the program that the same rank executes and that do not depend on
        each other. One kernel runs the group, so that several links carry data at the same time.

        >>> halves = [Instruction(0, 0, (1,), (0,)), Instruction(0, 1, (1,), (0,))]
        >>> Program(2, 2, halves).launches()
        [(0, 1)]
        """
        return self.flat.launches()

    def verify(self, goal: Goal | None = None) -> None:
        """Prove that the program reaches its goal (default: allreduce in place) for any data.

        Every instruction is carried out on sets of contributions instead of numbers. Two
        instructions that conflict always run in the program's order, because `dependencies` orders
        them.

        Raises:
            ValueError: an instruction is malformed; or a rank ends without a contribution, or with
                one counted twice. The message names instruction, rank, shard and contribution.
        """
        self.check_form()
        proof.check_goal(self, self.flat, goal)

    @cached_property
    def refusal(self) -> str:
        """Why it is no allreduce, in the words of `verify`; empty if it is one.

        >>> Program(2, 1, []).refusal
        'rank 0 ends with shard 0 of its tensor without the contribution of rank [1]'
        """
        try:
            self.verify()
        except ValueError as error:
            return str(error)
        return ""

    def in_rank_order(self) -> bool:
        """Whether every sum is one instruction over all ranks in ascending order.

        Then the bits are those of a loop over the ranks, however the buffers are cut.

        >>> from fastreduce.algorithms import ring, sharded
        >>> sharded(4).in_rank_order(), ring(4).in_rank_order()
        (True, False)
        """
        everyone = tuple(range(self.k))
        return all(len(x.srcs) == 1 or x.srcs == everyone for x in self.instructions)

    def completes(self) -> list[bool]:
        """For each instruction, whether it turns partial results into the sum over all ranks.

        An average divides there, and so divides every result exactly once.
        """
        return self.flat.completes()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the program of an allreduce as JSON, whole or not at all.

        ``algorithm="file:PATH"`` then runs it wherever a name is taken.

        Raises:
            OSError: the file cannot be written.
            ValueError: the program is no allreduce.
        """
        from fastreduce.program.files import save

        save(self, path)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Program:
        """Read a program that `save` wrote. Its form is checked, and it is proven again.

        Raises:
            OSError: the file cannot be read.
            ValueError: the file is not a program, is cut short or of another version, or was
                changed and is no allreduce any more.

        >>> import tempfile
        >>> from fastreduce.algorithms import ring
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ring(4).save(f"{folder}/mine.json")
        ...     Program.load(f"{folder}/mine.json") == ring(4)
        True
        """
        from fastreduce.program.files import load

        return load(path)

    def export(self, path: str | os.PathLike[str]) -> None:
        """Write an allreduce for MSCCL or MSCCL++: see `fastreduce.program.export`."""
        from fastreduce.program.export import export

        export(self, path)

    def check_form(self) -> None:
        """Raise a ValueError if an instruction is malformed, whatever the goal."""
        check_flags("Program", whole_tensors=self.whole_tensors)
        sliced = self.sliced
        if sliced is not None and not (is_whole(sliced) and 1 <= sliced <= MOST):
            raise ValueError(
                f"sliced is {sliced!r}, want 1 or more, at most {MOST:,}, or None to go by the size"
            )
        _ = self.flat
