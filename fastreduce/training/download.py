"""Download of the official Fashion-MNIST files: checked, resumed, retried, bounded in time."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import queue
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from tqdm import tqdm

from fastreduce.files import alone_in, stderr_is_terminal

OFFICIAL_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
OFFICIAL_FILES = {
    "train-images-idx3-ubyte.gz": (
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"
    ),
    "train-labels-idx1-ubyte.gz": (
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"
    ),
    "t10k-images-idx3-ubyte.gz": (
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"
    ),
    "t10k-labels-idx1-ubyte.gz": (
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"
    ),
}

TRIES = 3
PAUSE_S = 0.5
# The limits to reach the server, and between two pieces of data. If the first try does not reach
# the server there is no second, so a machine without a network waits for the first limit only once.
CONNECT_TIMEOUT_S = 4.0
READ_TIMEOUT_S = 10.0
CHUNK_BYTES = 1 << 16


class DownloadError(OSError):
    """A file could not be downloaded whole; what arrived is kept where it can be resumed."""


def download(
    folder: Path, *, url: str = OFFICIAL_URL, files: Mapping[str, str] = OFFICIAL_FILES
) -> None:
    """Bring ``files``, a map of names to SHA-256, from ``url`` into ``folder``.

    A file that exists is left alone. A new file gets its name only when it is complete and its
    SHA-256 is right; until then it is ``NAME.part``, which the next try resumes, even in another
    process. Several processes may call this at the same time: one of them fetches a file, and the
    others wait. Raises DownloadError after the last try, or after the first if it does not reach
    the server, and OSError if nothing can be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    reached = False
    for name, sha256 in files.items():
        if not (folder / name).exists():
            _fetch_with_retries(f"{url}{name}", folder / name, sha256, reached)
            reached = True


def _fetch_with_retries(url: str, path: Path, sha256: str, reached: bool) -> None:
    for attempt in range(1, TRIES + 1):
        try:
            return _fetch(url, path, sha256)
        except (OSError, http.client.HTTPException) as error:
            if attempt >= _tries_after(error, reached or attempt > 1):
                tries = "1 try" if attempt == 1 else f"{attempt} tries"
                raise DownloadError(f"{url}: {error}, after {tries}") from error
        time.sleep(PAUSE_S * attempt)


def _tries_after(error: Exception, reached: bool) -> int:
    """Return how many tries a file gets in all after ``error``."""
    if isinstance(error, HTTPError):
        return 1 if 400 <= error.code < 500 else TRIES
    return 1 if isinstance(error, URLError) and not reached else TRIES


def _fetch(url: str, path: Path, sha256: str) -> None:
    part = path.with_name(f"{path.name}.part")
    # Asked for before it may be written: where nobody reaches the server, nobody waits in turn.
    have_bytes = _bytes_of(part)
    response = _rest(url, have_bytes)
    with response or contextlib.nullcontext(), alone_in(path.parent):
        if path.exists():  # another process, of those that torchrun starts, has brought it
            return
        if _bytes_of(part) != have_bytes:  # or some of it
            have_bytes = _bytes_of(part)
            response = _rest(url, have_bytes)
        if response is not None:
            _append(response, part, have_bytes)
        found = hashlib.sha256(part.read_bytes()).hexdigest()
        if found != sha256:
            part.unlink()
            raise DownloadError(f"found SHA-256 {found}, wanted {sha256}")
        os.replace(part, path)


def _bytes_of(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _rest(url: str, have_bytes: int) -> Any:
    """The server's answer; None if there is nothing after what we have."""
    headers = {"Range": f"bytes={have_bytes}-"} if have_bytes else {}
    try:
        return _open(Request(url, headers=headers))
    except HTTPError as error:
        # What we have is complete, or wrong, and its hash will tell which.
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and have_bytes:
            return None
        raise


def _append(response: Any, part: Path, have_bytes: int) -> None:
    resumed = response.headers.get("Content-Range", "").startswith(f"bytes {have_bytes}-")
    start_bytes = have_bytes if resumed else 0
    rest_bytes = response.headers.get("Content-Length")
    total_bytes = start_bytes + int(rest_bytes) if rest_bytes else None
    bar = tqdm(
        desc=part.stem,
        total=total_bytes,
        initial=start_bytes,
        unit="B",
        unit_scale=True,
        disable=not stderr_is_terminal(),
    )
    with response, part.open("ab" if resumed else "wb") as file, bar:
        while chunk := response.read(CHUNK_BYTES):
            bar.update(file.write(chunk))
        if total_bytes is not None and file.tell() < total_bytes:
            raise DownloadError(
                f"found the connection closed after {file.tell()} bytes, wanted {total_bytes}"
            )


def _open(request: Request) -> Any:
    """Open ``request`` within CONNECT_TIMEOUT_S in all.

    A socket's timeout does not limit the look-up of the name, and starts again for each address of
    the host. So another thread opens the request, and is left behind if it takes too long.
    """
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def answer() -> None:
        try:
            answers.put(urlopen(request, timeout=READ_TIMEOUT_S))
        except Exception as error:
            answers.put(error)

    threading.Thread(target=answer, daemon=True).start()
    try:
        response = answers.get(timeout=CONNECT_TIMEOUT_S)
    except queue.Empty:
        raise URLError(f"no answer within {CONNECT_TIMEOUT_S:g} s") from None
    if isinstance(response, Exception):
        raise response
    return response
