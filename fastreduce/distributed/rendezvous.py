"""The ranks of a group find each other, also where a store has words of earlier ones.

torchrun keeps one store for all restarts of a job (pytorch/pytorch#135712): what a rank reads there
may be of a process that has ended.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from torch.distributed.distributed_c10d import PrefixStore, Store

POLL_S = 0.005  # predicted: little work, and soon enough

# How long a rank may take to notice what another one has noticed (predicted).
ANSWER = timedelta(seconds=3)

NOTHING = "-"


def own_part(store: Store, rank: int, size: int, timeout: timedelta) -> Store:
    """What of ``store`` belongs to this rendezvous of ``size`` ranks and to no other.

    Rank 0 makes up its name, and says it together with the word that it has from each other rank,
    again and again until all have answered with that name. Who finds its own word there, new in
    this very process, knows that rank 0 lives.

    Raises TimeoutError, which names those that have not come, and ValueError where ranks were told
    different sizes.
    """
    rendezvous = _Rendezvous(store, rank, size, timeout)
    return PrefixStore(rendezvous.answered() if rank == 0 else rendezvous.welcomed(), store)


class _Rendezvous:
    """What a rank says and hears until all have met. ``own`` is its word, which ends in the size
    that it was told; rank 0's is the name of the rendezvous."""

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta) -> None:
        self._store, self._rank, self._size, self._timeout = store, rank, size, timeout
        self._own = f"{secrets.token_hex(8)}/{size}"
        self._peers = range(1, size)
        self._deadline = time.monotonic() + timeout.total_seconds()

    def answered(self) -> str:
        """Rank 0 waits until all others have answered it; returns the name of the rendezvous."""
        own, peers = self._own, self._peers
        while late := sorted(set(peers) - (answers := self._answers()).keys()):
            heard = [self._said(f"hello of {peer}") for peer in peers]
            self._store.set("welcome", " ".join([own, *heard]))
            if any(map(self._differs, answers.values())):
                # The others need this welcome too, to learn of it; but some may not be there at
                # all.
                self._deadline = min(self._deadline, time.monotonic() + ANSWER.total_seconds())
            missing = [peer for peer, word in zip(peers, heard, strict=True) if word == NOTHING]
            self._wait(missing or late, answers.values())
        self._check_sizes(answers.values())
        return own

    def welcomed(self) -> str:
        """Another rank waits until rank 0 has heard from all; returns the same name."""
        own = self._own
        self._store.set(f"hello of {self._rank}", own)
        while own not in (welcome := self._said("welcome").split()) or NOTHING in welcome:
            if own in welcome and len(welcome) != self._size:
                break
            self._wait([x for x in self._peers if welcome[x] == NOTHING] if own in welcome else [0])
        self._store.set(f"answer of {self._rank}", f"{welcome[0]} {own}")
        self._check_sizes(welcome[:1])
        return welcome[0]

    def _said(self, key: str) -> str:
        found = self._store.check([key])
        return self._store.get(key).decode(errors="replace") if found else NOTHING

    def _answers(self) -> dict[int, str]:
        """The words of the ranks that have answered rank 0 of this rendezvous."""
        found = {peer: self._said(f"answer of {peer}").split() for peer in self._peers}
        return {peer: answer[1] for peer, answer in found.items() if answer[:1] == [self._own]}

    def _differs(self, word: str) -> bool:
        return not word.endswith(f"/{self._size}")

    def _check_sizes(self, words: Iterable[str]) -> None:
        for word in filter(self._differs, words):
            raise ValueError(
                f"world_size: rank {self._rank} was told {self._size} but another rank "
                f"{word.rpartition('/')[2]}; want the same number on all ranks"
            )

    def _wait(self, late: list[int], words: Iterable[str] = ()) -> None:
        if time.monotonic() > self._deadline:
            self._check_sizes(words)
            raise _late("have not come", late, self._rank, self._timeout)
        time.sleep(POLL_S)


def told(
    store: Store, what: str, mine: str, rank: int, ranks: list[int], timeout: timedelta
) -> list[str]:
    """What each of ``ranks`` says, for what this rank says.

    Raises TimeoutError, which names those that have come to the rendezvous and then say nothing.
    """
    store.set(f"{what} of {rank}", mine)
    deadline = time.monotonic() + timeout.total_seconds()
    while late := [peer for peer in ranks if not store.check([f"{what} of {peer}"])]:
        if time.monotonic() > deadline:
            raise _late(f"have come, but have not told their {what}", late, rank, timeout)
        time.sleep(POLL_S)
    return [store.get(f"{what} of {peer}").decode(errors="replace") for peer in ranks]


def _late(what: str, late: list[int], rank: int, timeout: timedelta) -> TimeoutError:
    return TimeoutError(
        f"the group's ranks {', '.join(map(str, late))} {what} within {timeout}; rank {rank} has "
        "waited for them: look at their output, or give init_process_group a longer timeout"
    )


@contextmanager
def lost_are_named(store: Store, rank: int, size: int) -> Iterator[None]:
    """Where all ranks connect: if that fails, the error names those that do not answer any more.

    Ranks that have connected tell their invitation next; one that could not says so in its place.
    """
    try:
        yield
    except RuntimeError as error:
        try:
            none = f"none, since Gloo could not connect it: {error}"
            told(store, "invitation", none, rank, [*range(size)], ANSWER)
            who = "all its ranks answer"
        except TimeoutError as late:
            who = str(late)
        raise RuntimeError(f"Gloo could not connect the group: {who}: {error}") from error
