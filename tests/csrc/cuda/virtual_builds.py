"""The CUDA engines compiled for the virtual CUDA runtime, whole and with one thing wrong."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from builds import CSRC, FOR_VIRTUAL_CUDA, VIRTUAL_CUDA, Build, mutated

HERE = Path(__file__).parent


class Source(NamedTuple):
    path: Path
    options: tuple[str, ...] = ()

    def compile(self, build: Build) -> Path:
        path = build.source(self.path)
        return build.compile(path, *FOR_VIRTUAL_CUDA, *self.options)


# Undefined behaviour is looked for in the engines; in the tests that takes long to compile.
TEST_OPTIONS = ("-fno-sanitize=undefined",)
# What knows torch, of which tests bring their own, or CUDA IPC.
WITHOUT = ("engine", "ipc", "processes")
VIRTUAL_TORCH = (f"-I{HERE.parent / 'virtual_torch'}",)
# By what a mutant changes: virtual_launch.cpp includes launch.cpp.
ENGINES = {
    "virtual runtime": Source(VIRTUAL_CUDA / "all.cpp"),
    "cuda/launch.cpp": Source(HERE / "virtual_launch.cpp"),
    **{
        f"cuda/{x.name}": Source(x)
        for x in sorted((CSRC / "cuda").glob("*.cpp"))
        if x.stem not in ("launch", *WITHOUT)
    },
}

# It has no threads and touches no device.
CONTENT = {"content": Source(HERE / "content.cpp", ("-fno-sanitize=all",))}
FEW_KERNELS = {"kernels": Source(HERE / "few_kernels.cpp", ("-O0",))}

# One program, whose modes are test_engines.py's.
ENGINES_AND_TESTS = {
    **ENGINES,
    **CONTENT,
    **FEW_KERNELS,
    **{
        f"{name}_test.cpp": Source(HERE / f"{name}_test.cpp", TEST_OPTIONS)
        for name in (
            *("engines", "beside", "captures", "closed_memory", "copies", "failures", "flags"),
            *("graph_cache", "graphs", "limits", "loads", "new_threads"),
            *("peers", "trials", "reuse"),
        )
    },
}

# Calls with torch's devices, with a torch of the tests' own.
WITH_TORCH = {
    **ENGINES,
    **CONTENT,
    **FEW_KERNELS,
    "engine.cpp": Source(CSRC / "engine.cpp"),
    "cuda/engine.cpp": Source(CSRC / "cuda" / "engine.cpp", VIRTUAL_TORCH),
}


def compile_all(build: Build, sources: Mapping[str, Source]) -> dict[str, Path]:
    """The object files by source."""
    with ThreadPoolExecutor(2) as workers:
        made = workers.map(lambda source: source.compile(build), sources.values())
        return dict(zip(sources, made, strict=True))


class Mutant(NamedTuple):
    """A text of a file of csrc and what stands in its place."""

    file: str
    text: str
    other: str
    mode: str  # which run finds it
    words: str  # and what it says
    sanitizer: str = "plain"

    def build(
        self,
        folder: Path,
        sources: Mapping[str, Source],
        objects: Mapping[str, Path],
        *libraries: str,
    ) -> Path:
        """Headers are the kernels': nothing else is compiled again."""
        changed = self.file if self.file in sources else "kernels"
        build = Build(self.sanitizer, folder, mutated(folder, self.file, self.text, self.other))
        parts = {**objects, changed: sources[changed].compile(build)}
        return build.link([*parts.values()], folder, *libraries)
