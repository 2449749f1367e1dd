"""One rank ends while a group is made: the others raise in time, and name it."""

import os
import re
import signal
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch.distributed as dist

import fastreduce.distributed.backend as making
from fastreduce import _C


def killed_as_it_makes_a_group(where):
    """This rank ends before it says on which machine it is, before it connects or invites, or after
    it has heard the invitations."""

    def end(*args, **kwargs):
        os.kill(os.getpid(), signal.SIGKILL)

    def end_after(exchange):
        return lambda mine: end(exchange(mine))

    of_c = SimpleNamespace(
        process_backend=lambda exchange, **rest: _C.process_backend(
            exchange=end_after(exchange), **rest
        )
    )
    patch = {
        "machine": (making, "machine", end),
        "connecting": (dist, "ProcessGroupGloo", end),
        "inviting": (_C, "process_backend", end),
        "invited": (making, "_C", of_c),
    }[where]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(*patch)
        dist.new_group(backend="fastreduce")


def one_is_killed_while_a_group_is_made(rank, size, where):
    """The group's timeout is 2 seconds, so that a survivor that hangs is found out."""
    victim = size - 1
    if rank == victim:
        killed_as_it_makes_a_group(where)
    with pytest.raises((TimeoutError, RuntimeError)) as caught:
        dist.new_group(backend="fastreduce", timeout=timedelta(seconds=2))
    silent = f"ranks {victim} have come, but have not told their"
    gone = f"the process of rank {victim} has ended|the invitation of rank {victim} names process"
    named = {
        "machine": f"{silent} machine within 0:00:02; ",
        "connecting": f"{silent} invitation within 0:00:03; ",
        "inviting": f"{silent} invitation within 0:00:0[23]; ",
        "invited": gone,
    }[where]
    assert re.search(named, str(caught.value)), caught.value


def one_tells_no_machine(rank):
    with pytest.MonkeyPatch.context() as patched:
        if rank == 1:
            patched.setattr(making.Place, "of_this_process", str)
        with pytest.raises(RuntimeError, match="machine of rank 1: found '' in the store, wanted"):
            dist.new_group(backend="fastreduce", timeout=timedelta(seconds=20))
