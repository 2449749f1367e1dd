"""Counts which small changes of the sources the tests notice. Run by hand; the results are in
tests/mutation.md, which also names the changes that make no difference.

    pip install universalmutator ruff
    python tests/mutation.py csrc/overlap.cpp fastreduce/program/program.py --sample 20 --seed 1

universalmutator writes every mutant of a file; of these a sample is taken. A C++ mutant is compiled
alone and linked with the objects of the unchanged files. One that gives the same object file, or
the same syntax tree in Python, is no change and is not counted. Then the tests that belong to the
file run in a process of their own until one fails. Those of csrc/cuda are the modes of
tests/csrc/cuda/engines_test.cpp, on the virtual CUDA runtime.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from mutation_cpp import Extension, Placement, Processes, ProcessesOnGpus, VirtualGpus
from mutation_python import ROOT, Workspace

PAGE = ROOT / "tests" / "mutation.md"


class Result(NamedTuple):
    file: str
    line: int
    before: str
    after: str
    verdict: str  # "killed", "survived"

    @property
    def name(self) -> str:
        """How the page names a mutant that makes no difference. With the line, because a judgement
        holds where it was made: a file that has changed is judged again."""
        return f"`{self.file}:{self.line}`: `{self.before}` -> `{self.after}`"


def mutants_of(file: str, folder: Path) -> list[Path]:
    """Every mutant of a file. A string, which is a message, is left as it is or left out."""
    folder.mkdir()
    command = ["mutate", ROOT / file, "--noCheck", "--mutantDir", folder]
    subprocess.run(command, check=True, capture_output=True)
    return sorted(folder.iterdir())


def changed_line(before: str, after: str) -> tuple[int, str, str]:
    lines, others = before.splitlines(), after.splitlines()
    same = next((i for i, (x, y) in enumerate(zip(lines, others, strict=False)) if x != y), 0)
    until = len(others) - len(lines) + same + 1
    return same + 1, lines[same].strip(), " ".join(x.strip() for x in others[same:until])


def judged(work: Workspace, file: str, sample: int, seed: int) -> list[Result]:
    """The verdicts on a sample of a file's mutants."""
    original = (ROOT / file).read_text()
    candidates = mutants_of(file, work.folder / f"mutants-{file.replace('/', '-')}")
    random.Random(seed).shuffle(candidates)
    results: list[Result] = []
    for candidate in candidates:
        text = candidate.read_text()
        if work.change(file, text):
            verdict = "survived" if work.passes(file) else "killed"
            results.append(Result(file, *changed_line(original, text), verdict))
            print(*results[-1], sep="\t", flush=True)
        if len(results) == sample:
            break
    work.restore(file)
    return results


def table(results: list[Result]) -> str:
    """One row for each file. Survivors that the page names as equivalent are counted apart."""
    page = PAGE.read_text() if PAGE.exists() else ""
    lines = ["| file | mutants | killed | survived | equivalent | killed of the others |"]
    lines.append("|---|---|---|---|---|---|")
    for file in [*dict.fromkeys(x.file for x in results), ""]:
        mine = [x for x in results if file in ("", x.file)]
        count = Counter(
            "equivalent" if x.verdict == "survived" and x.name in page else x.verdict for x in mine
        )
        share = count["killed"] / max(1, len(mine) - count["equivalent"])
        cells = [len(mine), count["killed"], count["survived"], count["equivalent"]]
        lines.append(f"| {file or 'all'} | {' | '.join(map(str, cells))} | {share:.0%} |")
    return "\n".join(lines)


def main() -> None:
    kinds = (Workspace, Extension, Processes, VirtualGpus, Placement, ProcessesOnGpus)
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument(
        "files",
        nargs="*",
        default=[file for kind in kinds for file in kind.tests],
        help="default: all that it knows",
    )
    parser.add_argument("--sample", type=int, default=20, help="mutants of each file")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--keep", type=Path, help="results as JSON; those of other runs stay")
    args = parser.parse_args()
    results = []
    if args.keep and args.keep.exists():
        results = [Result(*x) for x in json.loads(args.keep.read_text()) if x[0] not in args.files]
    import torch  # noqa: F401

    for kind in kinds:
        files = [file for file in args.files if file in kind.tests]
        if not files:
            continue
        with tempfile.TemporaryDirectory() as folder:
            work = kind(Path(folder))
            work.prepare()
            for file in files:
                if not work.passes(file):
                    sys.exit(f"{file}: its tests fail without a change")
                results += judged(work, file, args.sample, args.seed)
                if args.keep:
                    args.keep.write_text(json.dumps(results, indent=1) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
