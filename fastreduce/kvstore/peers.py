"""The processes that keep a store together, and how they agree and exchange."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

Made = TypeVar("Made")


class RankEnded(RuntimeError):
    """A rank of a store has ended or does not answer.

    ``rank`` is its number in the store's group, or None where torch does not tell: of "dist_sync".
    """

    def __init__(self, words: str, rank: int | None = None) -> None:
        super().__init__(words)
        self.rank = rank


@contextlib.contextmanager
def others_run(
    call: str, name: str, raised: tuple[type[Exception], ...] = (RuntimeError,)
) -> Iterator[None]:
    """Of what torch raises in here where another rank has ended make RankEnded on rank ``name``."""
    try:
        yield
    except RankEnded:
        raise
    except raised as error:
        raise RankEnded(
            f"{call}: {name} found that another rank has ended or does not answer "
            f"({str(error).splitlines()[0]}); torch does not say which: look for the process that "
            "failed first, the root cause in torchrun's report"
        ) from error


class Peers(Protocol):
    rank: int
    size: int
    names: list[str]  # what messages call the ranks

    def agree(self, call: str, error: Exception | None = None, count: int = 0) -> list[int]:
        """Compare what all ranks are about to do; return everyone's ``count``.

        Raises ``error`` if there is one, and a RuntimeError on all ranks if some rank has one, or
        if their calls differ. So nobody goes on alone and waits for the others.
        """
        ...

    def told(self, value: Any) -> list[Any]:
        """What all ranks call this with, in their order."""
        ...

    def exchange(self, parts: Sequence[Tensor], wanted_bytes: Sequence[int]) -> list[Tensor]:
        """Send ``parts[r]`` (bytes, uint8) to rank r; return what came from each rank."""
        ...


def agreed(peers: Peers, call: str, checked: Callable[[], tuple[str, Made]]) -> Made:
    """What ``checked`` returns, beside what the call is about, if all ranks are about to do that.

    Raises what ``checked`` raises, and on the other ranks what `Peers.agree` does.
    """
    try:
        about, made = checked()
    except Exception as error:
        peers.agree(call, error)
        raise
    peers.agree(f"{call} of {about}" if about else call)
    return made


class Alone:
    """One process, which has all there is."""

    rank = 0
    size = 1

    def __init__(self) -> None:
        self.names = ["rank 0"]

    def agree(self, call: str, error: Exception | None = None, count: int = 0) -> list[int]:
        if error is not None:
            raise error
        return [count]

    def told(self, value: Any) -> list[Any]:
        return [value]

    def exchange(self, parts: Sequence[Tensor], wanted_bytes: Sequence[int]) -> list[Tensor]:
        return list(parts)


class Group:
    """The ranks of a torch.distributed group, on any backend that has all_to_all."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        if not isinstance(group, dist.ProcessGroup | None):
            raise TypeError(
                f"KVStore: found the group {group!r}, wanted a torch.distributed group that this "
                "rank is of, or None for all ranks"
            )
        self._group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        of_all = dist.get_process_group_ranks(group or dist.group.WORLD)
        self.names = [
            f"rank {r}" if r == g else f"rank {r} of the group (rank {g} of all)"
            for r, g in enumerate(of_all)
        ]
        # Where the backend takes tensors; NCCL takes none of the CPU's.
        on_gpu = "nccl" in str(dist.get_backend(group))
        self._device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else "cpu"

    def agree(self, call: str, error: Exception | None = None, count: int = 0) -> list[int]:
        digest = int.from_bytes(hashlib.sha256(call.encode()).digest()[:7], "big")
        own = torch.tensor([digest, error is not None, count], device=self._device)
        found = [torch.empty_like(own) for _ in range(self.size)]
        with others_run(call, self.names[self.rank]):
            dist.all_gather(found, own, group=self._group)
        headers = torch.stack(found).tolist()
        if any(failed for _, failed, _ in headers) or len({x for x, _, _ in headers}) > 1:
            self._raise(call, error)
        return [count for _, _, count in headers]

    def _raise(self, call: str, error: Exception | None) -> None:
        told = self.told((call, str(error) if error else None))
        if error is not None:
            raise error
        failed = [f"{self.names[rank]}: {words}" for rank, (_, words) in enumerate(told) if words]
        if failed:
            raise RuntimeError(f"{call}: {'; '.join(failed)}; on no rank anything has changed")
        other = next(rank for rank, (theirs, _) in enumerate(told) if theirs != call)
        raise RuntimeError(
            f"{self.names[self.rank]}: {call}; but {self.names[other]}: {told[other][0]}; wanted "
            "the same call on all ranks; nothing has changed"
        )

    def told(self, value: Any) -> list[Any]:
        found = [value] * self.size
        with others_run("exchange of words", self.names[self.rank]):
            dist.all_gather_object(found, value, group=self._group)
        return found

    def exchange(self, parts: Sequence[Tensor], wanted_bytes: Sequence[int]) -> list[Tensor]:
        sent = torch.cat(list(parts)).to(self._device)
        came = torch.empty(sum(wanted_bytes), dtype=torch.uint8, device=self._device)
        sizes = [len(part) for part in parts]
        with others_run("exchange of values", self.names[self.rank]):
            dist.all_to_all_single(came, sent, list(wanted_bytes), sizes, group=self._group)
        return list(torch.split(came.to(parts[0].device), list(wanted_bytes)))
