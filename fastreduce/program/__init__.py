"""Programs made of instructions: what they say, their proof, their files and their pictures."""

from fastreduce.instruction import Instruction
from fastreduce.program.program import Goal, Program

__all__ = ["Goal", "Instruction", "Program"]
