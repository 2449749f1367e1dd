"""What a store says about a peer is not believed: every lie is an error that names the peer."""

import fcntl
import os
import subprocess
import tempfile
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist
from sweeps import one_in

import fastreduce.distributed  # noqa: F401 - the backend
from fastreduce import _C

SHARED_BYTES = 1 << 20


def made(lie, rank=0):
    """A group of two whose other rank is what ``lie`` makes of this one's invitation."""

    def exchange(mine):
        told = lie(*map(int, mine.split()))
        return told if isinstance(told, list) else [mine, told][:: 1 - 2 * rank]

    rest = dist.ProcessGroupGloo(dist.HashStore(), 0, 1)
    return _C.process_backend(rank, ["0", "1"], timedelta(seconds=5), SHARED_BYTES, exchange, rest)


def shared_memory_held():
    return Path("/proc/self/maps").read_text().count("memfd:")


def text(*numbers):
    return " ".join(map(str, numbers))


def other_memory(size, seals):
    fd = os.memfd_create("another", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd, os.fstat(fd).st_ino


SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
FILE = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the tests run
FILE.truncate(SHARED_BYTES)
NOT_SEALED = other_memory(SHARED_BYTES, 0)

LIES = {
    "nothing": (lambda *_: "", "is ''; want five numbers"),
    "words": (lambda *_: "come to my place", "is 'come to my place'; want five numbers"),
    "too few": (
        lambda pid, fd, inode, size, token: text(pid, fd, inode, size),
        "want five numbers",
    ),
    "too large": (lambda *_: text(*[10**30] * 5), "want five numbers"),
    "nobody's process": (lambda pid, *rest: text(2**22 + 1, *rest), "names process 4194305: "),
    "no process": (lambda pid, *rest: text(-1, *rest), "names process -1: "),
    "another process": (
        lambda pid, *rest: text(os.getppid(), *rest),
        "cannot open|not what its owner|bytes; want",
    ),
    "no file": (lambda pid, fd, *rest: text(pid, 10**6, *rest), "cannot open the shared memory"),
    "a file": (
        lambda pid, fd, inode, size, token: text(
            pid, FILE.fileno(), os.fstat(FILE.fileno()).st_ino, SHARED_BYTES, token
        ),
        "is not what its owner announced",
    ),
    "not sealed": (
        lambda pid, fd, inode, size, token: text(pid, *NOT_SEALED, SHARED_BYTES, token),
        "is not what its owner announced",
    ),
    "another's memory": (
        lambda pid, fd, inode, size, token: text(pid, *other_memory(size, SEALS), size, token),
        "leads to memory of another rank, group, size or version",
    ),
    "another size": (
        lambda pid, fd, inode, size, token: text(pid, *other_memory(4096, SEALS), 4096, token),
        r"leads to 4096 bytes of memory, and this rank has \d+; want the same shared_bytes",
    ),
    "smaller than it is": (
        lambda pid, fd, inode, size, token: text(pid, fd, inode, 4096, token),
        r"has \d+ bytes; want 4096",
    ),
    "larger than it is": (
        lambda pid, fd, inode, size, token: text(pid, fd, inode, 1 << 40, token),
        r"has \d+ bytes; want 1099511627776",
    ),
    "another inode": (
        lambda pid, fd, inode, size, token: text(pid, fd, inode + 1, size, token),
        "is not what its owner announced",
    ),
    "another group": (
        lambda pid, fd, inode, size, token: text(pid, fd, inode, size, token + 1),
        "leads to memory of another rank, group, size or version",
    ),
    "oneself": (lambda *numbers: text(*numbers), "leads to memory of another rank"),
    "nobody invites": (lambda *_: [], "0 invitations; want one of each of 2 ranks"),
}


@pytest.mark.parametrize("name", one_in(6, LIES, "cases"))
def test_refused(name):
    lie, words = LIES[name]
    before = shared_memory_held()
    with pytest.raises(RuntimeError, match=words) as caught:
        made(lie)
    assert shared_memory_held() == before
    assert name == "nobody invites" or "the invitation of rank 1" in str(caught.value)


@pytest.mark.parametrize("peer", [0, 1])
def test_a_peer_that_has_ended_is_named(peer):
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)  # its number stays its own
        words = f"the process of rank {peer} has ended while the group was made"
        with pytest.raises(RuntimeError, match=words):
            made(lambda pid, *rest: text(ended.pid, *rest), 1 - peer)


def test_what_an_exchange_raises_is_raised():
    with pytest.raises(ZeroDivisionError):
        made(lambda *_: 1 / 0)


def test_descriptor_0_is_as_any_other():
    """It is free where a program was started without a standard input."""
    rest = dist.ProcessGroupGloo(dist.HashStore(), 0, 1)
    limit, descriptor = timedelta(seconds=5), Path("/proc/self/fd/0")
    kept = os.dup(0)
    os.close(0)
    try:
        group = _C.process_backend(0, ["0"], limit, SHARED_BYTES, lambda mine: [mine], rest)
        assert "memfd:fastreduce" in os.readlink(descriptor)
        del group
        assert not descriptor.is_symlink()
    finally:
        os.dup2(kept, 0)
        os.close(kept)
