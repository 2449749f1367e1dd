"""Fashion-MNIST: where its four IDX files are, and what is in them."""

from __future__ import annotations

import gzip
import hashlib
import logging
import math
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fastreduce import folders
from fastreduce.bits import bytes_of

from .download import OFFICIAL_FILES, download
from .lenet import CLASSES

FILES = tuple(name.removesuffix(".gz") for name in OFFICIAL_FILES)
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
SAMPLE = Path(__file__).parent / "sample"
# torchvision's folders below its root, so that either program finds the other's files.
TORCHVISION_LAYOUT = Path("FashionMNIST", "raw")
TRAINING_IMAGES = 60_000
VARIABLE = "FASTREDUCE_DATA"

logger = logging.getLogger(__name__)


class DataError(ValueError):
    """A data file is damaged or is not what its name says; the message names it."""


@dataclass(frozen=True)
class Split:
    """Images, uint8 ``(n, 1, 28, 28)``, and their labels, int64 ``(n,)``, 0 to 9."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.images)

    def to(self, device: torch.device | str) -> Split:
        return Split(self.images.to(device), self.labels.to(device))


@dataclass(frozen=True)
class FashionMNIST:
    """The training and the test images, and the folder they were read from."""

    train: Split
    test: Split
    folder: Path

    @property
    def is_sample(self) -> bool:
        """Whether it has fewer than Fashion-MNIST's training images, as what is shipped has."""
        return len(self.train) < TRAINING_IMAGES


def load_fashion_mnist(folder: str | os.PathLike[str] | None = None) -> FashionMNIST:
    """Find Fashion-MNIST with `find_folder` and read it into memory.

    Raises FileNotFoundError for a named folder that lacks files, and DataError for a file that
    is damaged, with its name, what was found and what was wanted.

    >>> data = load_fashion_mnist(SAMPLE)
    >>> data.train.images.shape, data.test.labels.shape
    (torch.Size([10000, 1, 28, 28]), torch.Size([2000]))
    """
    found = find_folder(folder)
    return FashionMNIST(_read_split(found, "train"), _read_split(found, "t10k"), found)


def fingerprint(data: FashionMNIST) -> str:
    """Return a SHA-256 of all images and labels, which does not depend on where they are."""
    digest = hashlib.sha256()
    for tensor in (x for s in (data.train, data.test) for x in (s.images, s.labels)):
        digest.update(bytes_of(tensor).numpy().data)
    return digest.hexdigest()


def find_folder(folder: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder that holds the four IDX files, plain or ``.gz``.

    Looks in ``folder``, else in $FASTREDUCE_DATA; if the files are not there, it raises
    FileNotFoundError. With neither it looks where Debian's package puts them, then in the cache
    folder, and then downloads them to the cache folder. If that fails, it returns the sample that
    the package ships, with a warning.

    >>> find_folder(SAMPLE) == SAMPLE
    True
    """
    if found := folder_here(folder):
        return found
    fetched = folders.cache() / TORCHVISION_LAYOUT
    try:
        download(fetched)
    except OSError as error:
        logger.warning(
            "Training on a sample of Fashion-MNIST, 10,000 images of 60,000, so expect a lower "
            "accuracy: the whole set could not be downloaded (%s). To get it: "
            "apt install dataset-fashion-mnist, or --data DIR with the four IDX files.",
            error,
        )
        return SAMPLE
    return fetched


def folder_here(folder: str | os.PathLike[str] | None = None) -> Path | None:
    """What `find_folder` returns where it downloads nothing; None where it would."""
    if folder:
        return _named_folder(Path(folder), "--data")
    if named := os.environ.get(VARIABLE):
        return _named_folder(Path(named), f"${VARIABLE}")
    return _folder_with_files(DEBIAN) or _folder_with_files(folders.cache())


def _named_folder(folder: Path, source: str) -> Path:
    found = _folder_with_files(folder)
    if found:
        return found
    lacking = [name for name in FILES if not _file(folder, name)]
    raise FileNotFoundError(
        f"{source} {folder}: found no {', no '.join(lacking)} (plain or .gz), wanted the four IDX "
        f"files of Fashion-MNIST there or in {TORCHVISION_LAYOUT} below it"
    )


def _folder_with_files(folder: Path) -> Path | None:
    for candidate in (folder, folder / TORCHVISION_LAYOUT):
        if all(_file(candidate, name) for name in FILES):
            return candidate
    return None


def _file(folder: Path, name: str) -> Path | None:
    candidates = (folder / name, folder / f"{name}.gz")
    return next((path for path in candidates if path.is_file()), None)


def _read_split(folder: Path, prefix: str) -> Split:
    images_path, labels_path = (
        _file(folder, f"{prefix}-{kind}") or folder / f"{prefix}-{kind}"
        for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")
    )
    images, labels = read_idx(images_path), read_idx(labels_path)
    if images.ndim != 3 or images.shape[1:] != (28, 28):
        found = "x".join(map(str, images.shape))
        raise DataError(f"{images_path}: found items of shape {found}, wanted nx28x28 images")
    if labels.ndim != 1:
        raise DataError(
            f"{labels_path}: found {labels.ndim} dimensions, wanted 1, one label per item"
        )
    if len(images) != len(labels):
        raise DataError(
            f"{labels_path}: found {len(labels)} labels, wanted {len(images)}, one for each image "
            f"of {images_path.name}"
        )
    if int(labels.max()) >= CLASSES:
        raise DataError(f"{labels_path}: found label {int(labels.max())}, wanted 0 to 9")
    return Split(images.unsqueeze(1), labels.to(torch.int64))


def read_idx(path: Path) -> Tensor:
    """Read an IDX file of bytes, plain or gzipped, as a uint8 tensor of the shape it announces.

    Raises DataError for a file that is damaged, truncated or no IDX file.

    >>> read_idx(SAMPLE / "t10k-labels-idx1-ubyte.gz").shape
    torch.Size([2000])
    """
    raw = _unzipped(path)
    # Two zero bytes, 8 for unsigned bytes, the number of dimensions; then the size of each
    # dimension.
    if len(raw) < 4 or raw[:3] != b"\0\0\x08":
        raise DataError(
            f"{path}: found {raw[:4].hex(' ') or 'no bytes'} at its start, wanted 00 00 08, "
            "an IDX file of bytes (or gzip's 1f 8b)"
        )
    start = 4 + 4 * raw[3]
    if len(raw) < start:
        raise DataError(f"{path}: found {len(raw)} bytes, wanted an IDX header of {start}")
    shape = struct.unpack_from(f">{raw[3]}I", raw, 4)
    if len(raw) - start != math.prod(shape) or not raw[start:]:
        wanted = f"{math.prod(shape):,}" if all(shape) else "at least 1"
        raise DataError(
            f"{path}: found {len(raw) - start:,} bytes after the header, "
            f"wanted {wanted}, for the shape {shape} it announces; "
            "the file is truncated or damaged"
        )
    return torch.frombuffer(raw, dtype=torch.uint8, offset=start).view(shape)


def _unzipped(path: Path) -> bytearray:
    raw = path.read_bytes()
    if not raw.startswith(b"\x1f\x8b"):
        return bytearray(raw)
    try:
        return bytearray(gzip.decompress(raw))
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"{path}: found damaged gzip data ({error}), wanted a whole file") from None
