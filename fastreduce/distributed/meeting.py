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
    """What of ``store`` belongs to this meeting of ``size`` ranks and to no other.

    Rank 0 makes up its name, and says it together with the word that it has from each other rank,
    again and again until all have answered with that name. Who finds its own word there, new in
    this very process, knows that rank 0 lives.

    Raises TimeoutError, which names those that have not come, and ValueError where ranks were told
    different sizes.
    """
    own = f"{secrets.token_hex(8)}/{size}"
    peers = range(1, size)
    deadline = time.monotonic() + timeout.total_seconds()

    def said(key: str) -> str:
        return store.get(key).decode(errors="replace") if store.check([key]) else NOTHING

    def differs(word: str) -> bool:
        return not word.endswith(f"/{size}")

    def check_sizes(words: Iterable[str]) -> None:
        for word in filter(differs, words):
            raise ValueError(
                f"world_size: rank {rank} was told {size} but another rank "
                f"{word.rpartition('/')[2]}; want the same number on all ranks"
            )

    def wait(late: list[int], words: Iterable[str] = ()) -> None:
        if time.monotonic() > deadline:
            check_sizes(words)
            raise _late("have not come", late, rank, timeout)
        time.sleep(POLL_S)

    def answers() -> dict[int, str]:
        found = {peer: said(f"answer of {peer}").split() for peer in peers}
        return {peer: answer[1] for peer, answer in found.items() if answer[:1] == [own]}

    if rank > 0:
        store.set(f"hello of {rank}", own)
        while own not in (welcome := said("welcome").split()) or NOTHING in welcome:
            if own in welcome and len(welcome) != size:
                break
            wait([x for x in peers if welcome[x] == NOTHING] if own in welcome else [0])
        store.set(f"answer of {rank}", f"{welcome[0]} {own}")
        check_sizes(welcome[:1])
        return PrefixStore(welcome[0], store)
    while late := sorted(set(peers) - (answered := answers()).keys()):
        heard = [said(f"hello of {peer}") for peer in peers]
        store.set("welcome", " ".join([own, *heard]))
        if any(map(differs, answered.values())):
            # The others need this welcome too, to learn of it; but some may not be there at all.
            deadline = min(deadline, time.monotonic() + ANSWER.total_seconds())
        missing = [peer for peer, word in zip(peers, heard, strict=True) if word == NOTHING]
        wait(missing or late, answered.values())
    check_sizes(answered.values())
    return PrefixStore(own, store)


def told(
    store: Store, what: str, mine: str, rank: int, ranks: list[int], timeout: timedelta
) -> list[str]:
    """What each of ``ranks`` says, for what this rank says.

    Raises TimeoutError, which names those that have come to the meeting and then say nothing.
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
