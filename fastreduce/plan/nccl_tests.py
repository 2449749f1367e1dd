"""The output of nccl-tests, as times of allreduce."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass, field

from fastreduce.units import bus_bytes

# What mpirun or srun may put before a line, such as "node0: 0: ".
_LABELS = re.compile(r"^\s*(?:\S*[]:>]\s+)*")
# Of mpirun --tag-output, "[1,0]<stdout>:", or of mpiexec -l, "[0] ".
_TAG = re.compile(r"\s*\[[^]\s\"{]*\](?:[^\s,\"\[{]*:|[ \t]+[^\s,\]}])")
# A row: size, count, type, then perhaps operation and root; then, out of place and in place, time
# in us, algbw and busbw in GB/s, and the number of wrong results.
_ROW = re.compile(r"(-?\d+)\s+(\d+)\s+(?:float|half|double|bfloat16|u?int\d+|fp?8_?e\dm\d)\s+(.*)$")
# What a run says that did not go well: at its end, or where it breaks off.
_FAILED = re.compile(r"Out of bounds values\s*:\s*\d+\s+FAILED|Test (?:NCCL |CUDA )?failure")
_RANK = re.compile(r"#?\s*Rank\s+(\d+)\s")
# A number of wrong results: from a million on nccl-tests prints it as 2.68435e+08.
_WRONG = re.compile(r"[1-9]\d*|[1-9](?:\.\d+)?e\+\d+")


@dataclass
class _Run:
    """One of the runs in a text.

    ``words`` is how many words a row has for each of its two times: time, algbw, busbw and #wrong,
    or more where the header says so, as of single iterations. ``rows`` have their line's number.
    """

    ranks: int = 0
    words: int = 4
    rows: list[tuple[int, str]] = field(default_factory=list)


def is_tagged(text: str) -> bool:
    """Whether it begins with a label that looks like JSON."""
    return _TAG.match(text) is not None


def times_s(text: str) -> dict[int, list[tuple[int, float]]]:
    """By number of ranks, the bytes and the seconds in place of each row.

    These come second, and so meet a warm machine. One text may hold several runs.

    Raises:
        ValueError: a row that is wrong, no row, another collective, or a run that failed.

    >>> ranks = "# Rank 0 on a\\n# Rank 1 on a\\n"
    >>> times_s(ranks + "1048576 262144 float sum -1 64.00 16.38 16.38 0")
    {2: [(1048576, 6.4e-05)]}
    """
    other = ""
    runs = [_Run()]
    for number, line in enumerate(text.splitlines(), 1):
        unlabelled = _LABELS.sub("", line).strip()
        if _FAILED.search(line):
            raise ValueError(
                f"line {number}: {line.strip('# ')!r}: want the output of a run without a failure"
            )
        if rank := _RANK.search(line):
            if runs[-1].rows:
                runs.append(_Run())
            runs[-1].ranks = max(runs[-1].ranks, int(rank[1]) + 1)
        elif "test starting:" in line and "all_reduce" not in line:
            other = line.strip("# ")
        elif "algbw" in line.split():
            runs[-1].words = _words_of(f"line {number}", line)
        elif _is_row(unlabelled):
            runs[-1].rows.append((number, unlabelled))
    if other:
        raise ValueError(f"this is no allreduce, but: {other}")
    found = defaultdict(list)
    for run in runs:
        most_words = max((len(line.split()) for _, line in run.rows), default=0)
        for number, line in run.rows:
            nbytes, seconds = _point(f"line {number}", line, run, most_words)
            if nbytes:  # nccl-tests has rows without bytes for less than an element
                found[run.ranks].append((nbytes, seconds))
    if not found:
        raise ValueError(
            "no row of nccl-tests: size, count, type, ..., time, algbw, busbw" + _hidden(text)
        )
    return dict(found)


def _hidden(text: str) -> str:
    """What stands before a row, if that is why none was found."""
    for number, line in enumerate(text.splitlines(), 1):
        if (row := _ROW.search(line)) and row.start():
            before = line[: row.start()].rstrip()
            return f"; line {number} has one behind {before!r}: take that away from all lines"
    return ""


def _words_of(where: str, header: str) -> int:
    """How many words the rows below this header have for each time."""
    if "cputime" in header:
        raise ValueError(
            f"{where}: the times are the CPU's (cputime), want those of the allreduce: a run "
            "without --report_cputime"
        )
    columns = header.split()
    first = columns.index("algbw")
    return columns.index("algbw", first + 1) - first if columns.count("algbw") == 2 else 4


def _is_row(line: str) -> bool:
    """Whether a line is a row, if perhaps a wrong one: it begins with two numbers, or ends after
    the first. All others are headers, comments and logs."""
    first = line.split()[:2]
    numbers = all(re.match(r"[-+]?\d", word) for word in first)
    return numbers and any(re.fullmatch(r"[-+]?\d+", word) for word in first)


def _point(where: str, line: str, run: _Run, most_words: int) -> tuple[int, float]:
    """Bytes and seconds; ``most_words`` is how many words the longest row of the run has."""
    row, ranks = _ROW.match(line), run.ranks
    if not row:
        raise ValueError(
            f"{where}: {line!r} is no row of nccl-tests: want size, count, a type such as float or "
            "f8e4m3, then times; a comment begins with #"
        )
    is_cut = len(line.split()) < most_words
    nbytes, words = int(row[1]), row[3].split()
    time_us, busbw = _time_and_busbw(where, line, words, run.words, is_cut)
    if not nbytes:
        return 0, 0.0
    if not 0 < nbytes < 2**63:
        raise ValueError(
            f"{where}: the size is {nbytes}, want a whole number above zero, below 2**63"
        )
    if not 0 < time_us < math.inf:
        raise ValueError(f"{where}: the time is {time_us} us, want one above zero")
    if ranks < 2:
        raise ValueError(
            f"{where}: a time before 2 ranks are named ('#  Rank  0 ...'); want the whole output"
            + " of a run on 2 GPUs or more (on several machines nccl-tests needs MPI=1)" * ranks
        )
    found = bus_bytes(nbytes, ranks) / time_us / 1e3
    # Both are rounded: busbw to two digits after the point, a time to four digits.
    if abs(found - busbw) > 0.0051 + 5e-3 * busbw:
        raise ValueError(
            f"{where}: {nbytes} bytes in {time_us} us on {ranks} ranks are {found:.2f} GB/s busbw, "
            f"but the line says {busbw}; is it an allreduce of {ranks} ranks?"
        )
    return nbytes, time_us / 1e6


def _time_and_busbw(
    where: str, line: str, words: list[str], each: int, is_cut: bool
) -> tuple[float, float]:
    """In place, if the row has both; ``words`` are those behind the type, ``each`` of a time.

    Where a row that is shorter than others ends behind the first times, the second are missing.
    """
    if words and not re.match(r"-?\d", words[0]):  # the operation
        if words[0] == "none":
            raise ValueError(f"{where}: {line!r} reduces nothing (none), want an allreduce")
        words = words[1:]
    if words[:1] == ["-1"]:  # the root, of which an allreduce has none
        words = words[1:]
    has_both = len(words) >= each + 3
    whole = has_both or (len(words) in (3, 4, each) and not is_cut)
    try:
        time_us, _, busbw = (float(x) for x in words[each * has_both :][: 3 * whole])
    except ValueError:
        raise ValueError(
            f"{where}: {line!r} has no time, algbw and busbw, or was cut short; want a whole row "
            "of nccl-tests"
        ) from None
    # Where results are compared, "#wrong" stands behind busbw. Old versions have an error there.
    wrong = [word for word in words[3::each] if _WRONG.fullmatch(word)]
    if wrong:
        raise ValueError(
            f"{where}: {wrong[0]} results are wrong (#wrong), want times of a machine that works"
        )
    return time_us, busbw
