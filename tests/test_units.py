"""Bytes and seconds as people write them."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastreduce.units import duration, nbytes_of, parse_size, seconds_of, size

SIZES = {
    "0": 0,
    "4096": 4096,
    "512B": 512,
    "1K": 1000,
    "1KB": 1000,
    "1KiB": 1024,
    "160MB": 160_000_000,
    "64MiB": 64 << 20,
    "1.5 GB": 1_500_000_000,
    "2gib": 2 << 30,
    " 1TB ": 10**12,
    "2.5PB": 25 * 10**14,
    "1EiB": 1 << 60,
    "1.001KB": 1001,
    "8.2MB": 8_200_000,
    "1.001953125KiB": 1026,
    "9007199254740993": 2**53 + 1,
    "9223372036854775807": 2**63 - 1,
}


@pytest.mark.parametrize("text", SIZES)
def test_sizes(text):
    assert parse_size(text) == SIZES[text]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "MB",
        "-1MB",
        "12XB",
        "1e6",
        "1 2MB",
        "∞",
    ],
)
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match="want bytes, such as 160MB"):
        parse_size(text)


@pytest.mark.parametrize(
    ("found", "nbytes"), [("160MB", 160_000_000), (0, 0), (4096, 4096), (np.int64(7), 7)]
)
def test_sizes_as_numbers_or_in_words(found, nbytes):
    assert nbytes_of(found) == nbytes and type(nbytes_of(found)) is int


@pytest.mark.parametrize("found", [-1, 1.5, 160e6, True, None, "12XB", ["1MB"], b"1MB"])
def test_what_is_neither_is_refused(found):
    with pytest.raises(ValueError, match="is no size; want"):
        nbytes_of(found)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ("152.6MiB", "'152.6MiB' is 160,012,697.6 bytes; want a whole .*, such as 160012697$"),
        ("1.5", "'1.5' is 1.5 bytes; want a whole number of bytes, such as 1$"),
        ("0.3B", "'0.3B' is 0.3 bytes; want a whole number of bytes, such as 1$"),
        ("9" * 30 + "GB", "want fewer than 2"),
        ("8388608TiB", "found 9223372036854775808 bytes, want fewer than 2"),
        ("9223372036854775808", "found 9223372036854775808 bytes, want fewer than 2"),
        (2**63, "found 9223372036854775808 bytes, want fewer than 2"),
        ("9" * 400 + ".5", r"found 999.*\.\.\.9*9 bytes, want fewer than 2"),
        (10**400, r"found 1000.*\.\.\.0* bytes, want fewer than 2"),
    ],
)
def test_what_is_no_number_of_bytes_is_refused(found, words):
    with pytest.raises(ValueError, match=words):
        nbytes_of(found)
    assert nbytes_of(2**63 - 1) == 2**63 - 1


@given(st.integers(0, 10**15))
def test_plain_numbers_are_bytes(nbytes):
    assert parse_size(str(nbytes)) == parse_size(f"{nbytes}B") == nbytes


@given(st.integers(1, 999), st.sampled_from(["KB", "MB", "GB"]))
def test_what_is_written_is_read(number, unit):
    assert size(parse_size(f"{number}{unit}")) == f"{number} {unit}"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 us"), (1.2345e-6, "1.234 us"), (0.06, "60 ms"), (1.0, "1 s"), (59.99, "59.99 s")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("found", "seconds"),
    [("350ms", 0.35), ("1.5 s", 1.5), (" 20US ", 20e-6), (2, 2.0), (np.float32(0.5), 0.5)],
)
def test_durations_as_numbers_or_in_words(found, seconds):
    assert seconds_of(found) == seconds


@pytest.mark.parametrize(
    "found",
    [
        *("350", "0ms", "-1ms", "1 minute", "ms", "", "9" * 400 + "s"),
        *(0, -1, float("nan"), float("inf"), 10**400, -(10**400), Fraction(1, 10**400)),
        *(True, None),
    ],
)
def test_what_is_no_duration_is_refused(found):
    with pytest.raises(ValueError, match="is no duration; want seconds above zero"):
        seconds_of(found)


def test_a_number_in_words_needs_its_unit():
    with pytest.raises(ValueError, match=r"'0.35' is no duration; .* in words with their unit"):
        seconds_of("0.35")
