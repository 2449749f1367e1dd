"""Calls to the servers of other ranks, over torch.distributed.rpc, and what became of the ranks."""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import math
import socket
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

from torch.distributed import TCPStore, rpc  # type: ignore[attr-defined]
from torch.distributed.rendezvous import register_rendezvous_handler

from fastreduce.kvstore.peers import Peers, RankEnded, others_run
from fastreduce.kvstore.server import Server, ask, open_servers

Answer = concurrent.futures.Future[Any]

# How often those who wait look whether the others still run. An end is seen at the next look.
LOOK_S = 0.5

# The first call makes connections: on a busy machine more than a second (seen with 25 processes on
# two cores, 2026-11-23), however short the answers to others may take.
CONNECT_S = 60.0

_last_number = 0  # of the newest store of this process


class Remote:
    """The servers of all ranks of one store, this one's among them.

    Raises RuntimeError, on all ranks, where torch.distributed.rpc runs on some ranks only.
    """

    def __init__(self, peers: Peers, timeout_s: float) -> None:
        self.rank = peers.rank
        self.timeout_s = timeout_s
        self._ranks = peers.names
        self._names = _names(peers)
        # Of no store before on any rank, whatever its group: who calls one that is closed must not
        # reach another.
        global _last_number
        _last_number = self._number = max(peers.agree("KVStore", count=1 + _last_number))
        self.ended: set[int] = set()
        self._looks: dict[int, tuple[float, Answer]] = {}  # when each began

    def open(self, server: Server) -> None:
        open_servers[self._number] = server

    def connect(self) -> None:
        pings = {rank: ("ping",) for rank in self._running()}
        self.ask(pings, max(self.timeout_s, CONNECT_S))

    def ask(
        self, what: Mapping[int, tuple[Any, ...]], timeout_s: float | None = None
    ) -> dict[int, Any]:
        """Call methods of servers, by rank their names and arguments; return all answers.

        Raises RankEnded if a rank has ended, and TimeoutError if one has not answered in time.
        """
        if self._number not in open_servers:
            raise RuntimeError("found a store that is closed, wanted an open one; close comes last")
        for rank in what.keys() & self.ended:
            raise RankEnded("its end was noticed before", rank)
        answers = {rank: self._send(rank, *call) for rank, call in what.items()}
        self._wait(answers, self.timeout_s if timeout_s is None else timeout_s)
        for rank, answer in answers.items():
            if error := answer.exception():
                if "On WorkerInfo(" in str(error):  # raised there, by what still runs
                    raise error
                self._tell_of(rank)
                raise RankEnded(str(error), rank) from error
        return {rank: answer.result() for rank, answer in answers.items()}

    def _send(self, rank: int, method: str, *args: Any) -> Answer:
        answer: Answer = concurrent.futures.Future()

        def finish(came: Any) -> None:
            try:
                answer.set_result(came.value())
            except Exception as error:
                answer.set_exception(error)

        try:
            call = (self._number, method, *args)
            came = rpc.rpc_async(self._names[rank], ask, args=call, timeout=0)
        except RuntimeError as error:  # it has ended before
            answer.set_exception(error)
        else:
            came.add_done_callback(finish)
        return answer

    def _wait(self, answers: Mapping[int, Answer], timeout_s: float) -> None:
        end_s = time.monotonic() + timeout_s
        while True:
            left_s = min(LOOK_S, end_s - time.monotonic())
            _, missing = concurrent.futures.wait(answers.values(), timeout=max(0.0, left_s))
            if not missing:
                return
            if time.monotonic() >= end_s:
                late = sorted(rank for rank, answer in answers.items() if answer in missing)
                raise TimeoutError(self._late(late, timeout_s))
            self._look()

    def _late(self, ranks: list[int], timeout_s: float) -> str:
        """Who keeps servers from answering, as far as they still tell."""
        asked = {rank: self._send(rank, "behind", self.rank) for rank in ranks}
        concurrent.futures.wait(asked.values(), timeout=LOOK_S)
        silent = [rank for rank in ranks if not asked[rank].done() or asked[rank].exception()]
        behind = sorted({x for r in ranks if r not in silent for x in asked[r].result()})
        words = [f"{self._ranks[rank]} does not answer" for rank in silent]
        words += [f"{self._ranks[rank]} is behind" for rank in behind if rank not in silent]
        return f"waited {timeout_s:g} s: {', '.join(words) or 'an answer came too late'}"

    def _look(self) -> None:
        """Find out which ranks have ended, and tell those who may wait for them."""
        now_s = time.monotonic()
        for rank in self._running():
            begin_s, look = self._looks.get(rank, (now_s, None))
            if look is None or (look.done() and not look.exception()):
                self._looks[rank] = now_s, self._send(rank, "ping")
            elif look.done() or now_s - begin_s > self.timeout_s:
                self._tell_of(rank)

    def _tell_of(self, ended: int) -> None:
        self.ended.add(ended)
        for rank in self._running():
            self._send(rank, "leave", ended, True)

    def _running(self) -> list[int]:
        return [rank for rank in range(len(self._names)) if rank not in self.ended]

    def close(self) -> None:
        """Wait until all other ranks have come here, or have ended; serve them until then."""
        if self._number not in open_servers:
            return
        for rank in {*self._running(), self.rank}:
            self._send(rank, "leave", self.rank, False)
        all_left = self._send(self.rank, "all_left")
        self._wait({self.rank: all_left}, math.inf)
        del open_servers[self._number]
        if not open_servers:
            _stop(graceful=not (all_left.exception() or all_left.result()))


# The rendezvous (as in _next) of an rpc that this module has started, and not the program itself.
_started: tuple[TCPStore, int, int] | None = None


def _names(peers: Peers) -> list[str]:
    """What the ranks are called by torch.distributed.rpc, which is started if need be."""
    try:
        own = rpc.get_worker_info().name
    except RuntimeError:
        own = None
    place = f"{_started[0].host}:{_started[0].port}" if _started else ""
    told = peers.told((own, place))
    names = [name for name, _ in told]
    if all(names):
        if len({met for _, met in told}) > 1:
            raise RuntimeError(
                "KVStore: found ranks whose torch.distributed.rpc was started for stores of other "
                "groups, wanted one for all; make the store of the larger group first"
            )
        return names
    if any(names):
        raise RuntimeError(
            "KVStore: found torch.distributed.rpc only on "
            f"{', '.join(peers.names[rank] for rank, name in enumerate(names) if name)}; wanted it "
            "on all ranks or on none"
        )
    names = [f"fastreduce-kvstore-{rank}" for rank in range(peers.size)]
    # A ValueError is what torch 2.13 raises where it is about to tell of a connection that broke.
    with others_run("KVStore", peers.names[peers.rank], (RuntimeError, ValueError)):
        _start(names, _rendezvous_store(peers), peers)
    return names


def _rendezvous_store(peers: Peers) -> TCPStore:
    """Where the ranks tell each other their addresses: at rank 0."""
    hosts = peers.told(socket.gethostname())
    host = "localhost" if len(set(hosts)) == 1 else hosts[0]
    place = None
    if peers.rank == 0:
        place = TCPStore(host, 0, is_master=True, wait_for_workers=False)
    port = peers.told(place and place.port)[0]
    return place or TCPStore(host, port, is_master=False)


# Not torch's own scheme "tcp", which under torchrun takes no new place but torchrun's.
_SCHEME = "fastreduce"
# The one that rpc is about to go to: a place, a rank and how many there are.
_next: list[tuple[TCPStore, int, int]] = []


def _meet(*_: Any, **__: Any) -> Iterator[tuple[TCPStore, int, int]]:
    yield _next.pop()  # which ends with rpc: torch keeps what it is told here for ever


_register: Callable[..., None] = register_rendezvous_handler
_register(_SCHEME, _meet)


def _start(names: list[str], place: TCPStore, peers: Peers) -> None:
    global _started
    _next.append((place, peers.rank, peers.size))
    # Sockets, and not torch's own choice between processes of one machine: there all write into a
    # ring in shared memory, behind a flag. Who ends before it clears the flag stops the others for
    # good, who then do not even notice the end (torch 2.13 and 2.15; 1 of 750 ends, 2026-11-26).
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"{_SCHEME}://", _transports=["uv"])
    start: Callable[..., None] = rpc.init_rpc
    with warnings.catch_warnings():
        # Of torch, about a group that it makes itself: "You are using a Backend".
        warnings.simplefilter("ignore", UserWarning)
        rank, size = peers.rank, peers.size
        start(names[rank], rank=rank, world_size=size, rpc_backend_options=options)
    _started = place, rank, size


@atexit.register  # where a program ends without `close`
def _stop(graceful: bool = False) -> None:
    """``graceful``: all ranks are about to come here, so none needs to see a connection break."""
    global _started
    if _started:
        rendezvous, _started = _started, None
        with contextlib.suppress(RuntimeError):  # one has ended just now
            _shut_down(graceful, *rendezvous)


# How long rank 0 waits for the others' last look (predicted); then one has ended.
LAST_LOOK = timedelta(seconds=10)


def _shut_down(graceful: bool, place: TCPStore, rank: int, size: int) -> None:
    """Where the ranks met ends with rank 0, and they look there until the end: so it goes last."""
    try:
        rpc.shutdown(graceful, timeout=10)
    finally:
        if graceful and rank:
            place.set(f"left {rank}", "")
    if graceful and rank == 0:
        place.wait([f"left {other}" for other in range(1, size)], LAST_LOOK)
