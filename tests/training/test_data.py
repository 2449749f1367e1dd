"""The data is found where it is promised to be, and damage is an error that names the file."""

import gzip
import logging
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fastreduce import folders
from fastreduce.training import DataError, data, load_fashion_mnist
from fastreduce.training.data import DEBIAN, FILES, SAMPLE, TORCHVISION_LAYOUT, read_idx

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path):
    """A machine without the data set, without a network and without $FASTREDUCE_DATA."""

    def offline(folder):
        raise OSError("no route to host")

    monkeypatch.delenv("FASTREDUCE_DATA", raising=False)
    monkeypatch.setattr(data, "DEBIAN", tmp_path / "debian")
    monkeypatch.setattr(folders, "cache", lambda: tmp_path / "cache")
    monkeypatch.setattr(data, "download", offline)


@pytest.mark.parametrize("gz", [False, True])
@pytest.mark.parametrize("below", [Path(), TORCHVISION_LAYOUT])
def test_plain_and_gzipped_files_in_either_layout_are_read(write_set, tmp_path, gz, below):
    write_set(tmp_path / "set" / below, gz=gz, train=12)
    found = load_fashion_mnist(tmp_path / "set")
    assert found.train.images.dtype == torch.uint8
    assert found.train.images.shape == (12, 1, 28, 28)
    assert found.train.images[:, 0, 5, 7].tolist() == list(range(12))
    assert found.train.labels.dtype == torch.int64
    assert found.train.labels.tolist() == [*range(10), 0, 1]
    assert (len(found.test), found.is_sample) == (4, True)


def test_places_are_searched_in_the_promised_order(write_set, monkeypatch, tmp_path):
    named, variable = write_set(tmp_path / "named"), write_set(tmp_path / "variable")
    debian = write_set(tmp_path / "debian")
    cache = write_set(tmp_path / "cache" / TORCHVISION_LAYOUT)
    assert data.find_folder() == debian
    monkeypatch.setenv("FASTREDUCE_DATA", str(variable))
    assert data.find_folder() == variable
    assert data.find_folder(named) == named
    monkeypatch.setenv("FASTREDUCE_DATA", "")
    (debian / f"{LABELS}.gz").unlink()
    assert data.find_folder() == cache


def test_what_is_nowhere_is_downloaded_into_the_cache(write_set, monkeypatch, tmp_path):
    monkeypatch.setattr(data, "download", write_set)
    assert data.find_folder() == tmp_path / "cache" / TORCHVISION_LAYOUT
    assert len(load_fashion_mnist().train) == 6


def test_offline_the_sample_is_used_and_one_line_says_so(caplog):
    with caplog.at_level(logging.WARNING):
        found = load_fashion_mnist()
    assert found.is_sample
    [record] = caplog.records
    for words in ("sample", "no route to host", "apt install dataset-fashion-mnist", "--data"):
        assert words in record.getMessage()


@pytest.mark.parametrize("lacking", FILES)
@pytest.mark.parametrize("source", ["--data", "$FASTREDUCE_DATA"])
def test_a_named_folder_that_lacks_a_file_is_an_error_not_the_sample(
    write_set, monkeypatch, tmp_path, source, lacking
):
    folder = write_set(tmp_path / "named")
    (folder / f"{lacking}.gz").unlink()
    monkeypatch.setenv("FASTREDUCE_DATA", str(folder))
    with pytest.raises(FileNotFoundError) as error:
        load_fashion_mnist(folder if source == "--data" else None)
    assert f"{source} {folder}: found no {lacking} (plain or .gz), wanted" in str(error.value)


def idx(dims: tuple[int, ...], payload: bytes) -> bytes:
    return struct.pack(f">BBBB{len(dims)}I", 0, 0, 8, len(dims), *dims) + payload


WHOLE = gzip.compress(idx((6, 28, 28), bytes(6 * 784)), mtime=0)  # names of tests hold it
DAMAGE = [
    (IMAGES, b"", ["no bytes", "00 00 08"]),
    (IMAGES, b"<html>", ["3c 68 74 6d", "00 00 08"]),
    (IMAGES, b"\0\0\x0d\3", ["00 00 0d 03", "IDX file of bytes"]),
    (IMAGES, b"\0\0\x08\3\0\0", ["found 6 bytes", "header of 16"]),
    (IMAGES, idx((6, 28, 28), bytes(6 * 784 - 1)), ["4,703", "wanted 4,704", "(6, 28, 28)"]),
    (IMAGES, idx((6, 28, 28), bytes(6 * 784 + 1)), ["4,705", "wanted 4,704, for the shape (6,"]),
    (IMAGES, idx((2**32 - 1,) * 3, b"123"), ["found 3 bytes", "truncated or damaged"]),
    (IMAGES, idx((0, 28, 28), b""), ["found 0 bytes", "wanted at least 1, for"]),
    (IMAGES, WHOLE[:40], ["damaged gzip data", "end-of-stream"]),
    (IMAGES, WHOLE[:-8] + bytes(8), ["damaged gzip data", "CRC"]),
    (IMAGES, WHOLE[:12] + b"\xff" * 20 + WHOLE[32:], ["damaged gzip data"]),
    (IMAGES, idx((6, 27, 28), bytes(6 * 27 * 28)), ["6x27x28", "nx28x28"]),
    (IMAGES, idx((6,), bytes(6)), ["shape 6", "nx28x28"]),
    (LABELS, idx((2, 3), bytes(6)), ["2 dimensions", "wanted 1"]),
    (LABELS, idx((5,), bytes(5)), ["5 labels", "wanted 6", IMAGES]),
    (LABELS, idx((6,), bytes([0, 1, 10, 3, 4, 5])), ["label 10", "0 to 9"]),
]


@pytest.mark.parametrize(("name", "content", "words"), DAMAGE)
def test_a_damaged_file_is_an_error_that_names_it(write_set, tmp_path, name, content, words):
    folder = write_set(tmp_path / "set", gz=False)
    load_fashion_mnist(folder)
    (folder / name).write_bytes(content)
    with pytest.raises(DataError) as error:
        load_fashion_mnist(folder)
    assert str(error.value).startswith(str(folder / name))
    for word in words:
        assert word in str(error.value)


def test_the_sample_is_small_balanced_and_licensed():
    sample = load_fashion_mnist(SAMPLE)
    assert sample.is_sample
    assert torch.bincount(sample.train.labels).tolist() == [1000] * 10
    assert torch.bincount(sample.test.labels).tolist() == [200] * 10
    assert sum(file.stat().st_size for file in SAMPLE.iterdir()) < 6_000_000
    assert "Copyright (c) 2017 Zalando SE" in (SAMPLE / "LICENSE").read_text()


@pytest.mark.skipif(not DEBIAN.exists(), reason="Debian's dataset-fashion-mnist is not installed")
def test_the_program_in_the_sample_s_readme_cuts_it_from_the_official_files(tmp_path):
    program = re.search("```python\n(.*?)```", (SAMPLE / "README.md").read_text(), re.DOTALL)[1]
    (tmp_path / "cut.py").write_text(program.replace("9, mtime", "1, mtime"))  # packed faster
    subprocess.run([sys.executable, tmp_path / "cut.py", DEBIAN, tmp_path], check=True)
    for name in FILES:
        # Not the packed bytes, which depend on the version of zlib.
        assert torch.equal(read_idx(tmp_path / f"{name}.gz"), read_idx(SAMPLE / f"{name}.gz"))
