"""Bytes and seconds as people write them. GB is 1e9 bytes, GiB is 2**30."""

from __future__ import annotations

import math
import re
from fractions import Fraction

from fastreduce.kinds import is_number, is_whole
from fastreduce.names import shown

_SCALES = {"": 1, **{p: 1000 ** (i + 1) for i, p in enumerate("KMGTPE")}}
_SCALES |= {f"{p}i": 1024 ** (i + 1) for i, p in enumerate("KMGTPE")}

_IN_A_SECOND = {"us": 1e6, "ms": 1e3, "s": 1.0}


def duration(seconds: float) -> str:
    """
    >>> duration(0.015), duration(12.3e-6), duration(2.0)
    ('15 ms', '12.3 us', '2 s')
    """
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.4g} {unit}"
    return f"{seconds * 1e6:.4g} us"


def seconds_of(duration: float | str) -> float:
    """Seconds, given as a number or in words such as "350ms".

    Raises:
        ValueError: it is neither, or is not above zero.

    >>> seconds_of("350ms"), seconds_of("12.5 us"), seconds_of(2)
    (0.35, 1.25e-05, 2.0)
    """
    if isinstance(duration, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(us|ms|s)\s*", duration, re.IGNORECASE)
        seconds = float(found[1]) / _IN_A_SECOND[found[2].lower()] if found else math.nan
    else:
        try:
            seconds = float(duration) if is_number(duration) else math.nan
        except OverflowError:  # of a whole number or a fraction
            seconds = math.inf
    if not 0 < seconds < math.inf:
        # A number in words may be of milliseconds as well as of seconds.
        raise ValueError(
            f"{shown(duration)} is no duration; want seconds above zero, in words with their unit "
            "(us, ms or s), such as '350ms'"
        )
    return seconds


def size(nbytes: float) -> str:
    """
    >>> size(160e6), size(20e9), size(512)
    ('160 MB', '20 GB', '512 B')
    """
    units = ("EB", 1e18), ("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3)
    for unit, scale in units:
        if nbytes >= scale:
            return f"{nbytes / scale:.4g} {unit}"
    return f"{nbytes:g} B"


def percent(share: float, digits: int = 0) -> str:
    """
    >>> percent(0.088), percent(0.0746, digits=1)
    ('9 %', '7.5 %')
    """
    return f"{100 * share:.{digits}f} %"


def ranks_title(much: str, k: int, where: str) -> str:
    """The title of a plan or a timeline; ``much`` is what each rank has, in words.

    >>> ranks_title("160 MB", 4, "book-pcie4")
    '160 MB on each of 4 ranks, book-pcie4'
    >>> ranks_title("160 MB", 1, "book-pcie4")
    '160 MB on 1 rank, book-pcie4'
    """
    return f"{much} on each of {k} ranks, {where}" if k > 1 else f"{much} on 1 rank, {where}"


def bus_bytes(nbytes: float, k: int) -> float:
    """Bytes that must at least leave and enter each of ``k`` ranks in an allreduce of ``nbytes``.

    >>> bus_bytes(160, 4)
    240.0
    """
    return 2 * (k - 1) / k * nbytes


def busbw(nbytes: int, time_s: float, k: int) -> float:
    """Bytes per second that an allreduce of ``nbytes`` per rank moves over each rank's link.

    That is `bus_bytes` over the time, so it can be compared with the link's own rate, whatever the
    algorithm and k. 0 if there is only one rank, and infinite if no time passes. Source:
    nccl-tests, doc/PERFORMANCE.md.

    >>> busbw(160_000_000, 0.015, 4), busbw(160_000_000, 0.015, 1)
    (16000000000.0, 0.0)
    """
    return bus_bytes(nbytes, k) / time_s if time_s > 0 else math.inf


def parse_size(text: str) -> int:
    """Bytes from "160MB", "64MiB", "1.5 GB" or "4096".

    Raises:
        ValueError: the text is not a size, not a whole number of bytes, or 2**63 bytes or more.

    >>> parse_size("160MB"), parse_size("64MiB"), parse_size("4096")
    (160000000, 67108864, 4096)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGTPE]i?|)B?\s*", text, re.IGNORECASE)
    prefix = found[2].upper().replace("I", "i") if found else ""
    if not found:
        raise ValueError(
            f"{text!r} is no size; want bytes, such as 160MB, 64MiB or 4096, with a unit from KB "
            "and KiB to EB and EiB, or none"
        )
    nbytes = Fraction(found[1]) * _SCALES[prefix]
    whole_bytes = _countable(int(nbytes))
    if nbytes.denominator != 1:
        raise ValueError(
            f"{text!r} is {float(nbytes):,} bytes; want a whole number of bytes, such as "
            f"{max(whole_bytes, 1)}"
        )
    return whole_bytes


def nbytes_of(size: int | str) -> int:
    """Bytes, given as a whole number or in words as `parse_size` reads them.

    Raises:
        ValueError: it is neither, is below zero, or is 2**63 or more.

    >>> nbytes_of("160MB"), nbytes_of(4096)
    (160000000, 4096)
    """
    if isinstance(size, str):
        return parse_size(size)
    if not is_whole(size) or size < 0:
        raise ValueError(
            f"{size!r} is no size; want a whole number of bytes, or words such as '160MB'"
        )
    return _countable(int(size))


def _countable(nbytes: int) -> int:
    if nbytes >= 2**63:
        raise ValueError(f"found {shown(nbytes)} bytes, want fewer than 2**63")
    return nbytes
