"""Several machines: network namespaces with host names of their own, and Gloo between them."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from namespaces import cut_off, missing_commands, namespaces, start_in

from fastreduce.distributed.backend import Place, by_machine, named, own_cores

WORKER = Path(__file__).with_name("machines_worker.py")

needs_namespaces = [
    pytest.mark.skipif(bool(missing_commands()), reason=f"needs {missing_commands()}"),
    pytest.mark.sweep("machines"),
]


@pytest.mark.parametrize(
    ("machines", "ranks"),
    [
        (["a", "a"], [[0, 1]]),
        (["a", "b", "a", "b"], [[0, 2], [1, 3]]),
        (["b", "b", "a", "a"], [[0, 1], [2, 3]]),
        (["a", "b", "b"], [[0], [1], [2]]),
        (["a", "a", "b"], [[0], [1], [2]]),
    ],
)
def test_ranks_are_together_where_all_machines_have_as_many(machines, ranks):
    assert by_machine(machines) == ranks


@pytest.mark.parametrize(
    ("machines", "words"),
    [
        (["a k p", "b k q"], ["a", "b"]),
        (["a k p", "b k q", "b k q"], ["a", "b (rank 11)", "b (rank 12)"]),
        (["a k p", "a k p", "a k q", "a k q"], ["a (ranks 10, 11)", "a (ranks 12, 13)"]),
    ],
)
def test_no_two_machines_have_one_name(machines, words):
    ranks = ["10", "11", "12", "13"][: len(machines)]
    assert named(machines, by_machine(machines), ranks) == words


# Containers of one computer have host names and process numbers of their own, and one kernel.
@pytest.mark.parametrize(
    ("places", "enough"),
    [
        ([("a k1 p", 0b11), ("a k1 p", 0b11)], True),
        ([("a k1 p", 0b01), ("a k1 p", 0b10)], True),
        ([("a k1 p", 0b01), ("a k1 p", 0b01)], False),
        ([("a k1 p", 0b11)] * 3, False),
        ([("a k1 p", 0b001)] * 2 + [("a k1 p", 0b110)], False),
        ([("a k1 p", 0b111), ("a k1 p", 0b110), ("a k1 p", 0b010)], True),
        ([("a k1 p", 0b110), ("a k1 p", 0b011), ("a k1 p", 0b011)], True),
        ([("a k1 p", 0b11)] * 2 + [("b k1 q", 0b11)] * 2, False),
        ([("a k1 p", 0b0011)] * 2 + [("b k1 q", 0b1100)] * 2, True),
        ([("a k1 p", 0b11)] * 2 + [("b k2 q", 0b11)] * 2, True),
    ],
)
def test_ranks_have_cores_of_their_own(places, enough):
    """What each says in the store is what the others read."""
    read = [Place.read(str(Place(*place)), rank) for rank, place in enumerate(places)]
    assert read == [Place(*place) for place in places]
    assert [own_cores(read, rank) for rank in range(len(read))] == [enough] * len(read)


@pytest.mark.parametrize("said", ["", " ", "3", " 3", "a k1 pid:[7]"])
def test_a_place_that_cannot_be_read_is_named(said):
    with pytest.raises(RuntimeError, match=r"machine of rank 5: found '.*' in the store, wanted"):
        Place.read(said, 5)


def start(names, ranks, mode, folder):
    """So many ranks on each machine of ``names``; where there are two numbers, on each its own."""
    where = [name for name, count in zip(names, ranks, strict=True) for _ in range(count)]
    path = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-W", "ignore", str(WORKER), mode, str(folder)]
    return [
        start_in(name, command, {"RANK": rank, "WORLD_SIZE": len(where), "PYTHONPATH": path})
        for rank, name in enumerate(where)
    ]


class TestMachines:
    pytestmark = needs_namespaces

    @pytest.mark.parametrize("ranks", [(2, 2), (2, 2, 2), (1, 2)], ids=str)
    def test_every_rank_has_the_result(self, ranks, tmp_path):
        with namespaces(len(ranks), 1000) as names:
            started = start(names, ranks, "values", tmp_path)
            assert [process.wait(120) for process in started] == [0] * sum(ranks)

    @pytest.mark.parametrize(("victim", "speaker"), [(3, 2), (2, 3)])
    def test_a_machine_that_gives_up_in_the_middle_of_a_call_ends_the_call_of_others(
        self, victim, speaker, tmp_path
    ):
        """A rank of the second machine is killed. The first machine waits for the other one, where
        a rank knows of it, and must not wait until the timeout."""
        with namespaces(2, rate_mbit=1) as names:
            started = start(names, (2, 2), "until killed", tmp_path)
            while len(list(tmp_path.glob("ready *"))) < 4:
                assert all(process.poll() is None for process in started)
                time.sleep(0.1)
            time.sleep(2)  # as long as it takes to agree on the call, and not to carry it out
            os.kill(int((tmp_path / f"ready {victim}").read_text()), signal.SIGKILL)
            said = [tmp_path / str(rank) for rank in (0, 1, speaker)]
            end = time.monotonic() + 60
            while not all(x.exists() and x.read_text() for x in said) and time.monotonic() < end:
                time.sleep(0.1)
            for process in started:  # which would end when Gloo has moved all, or at the timeout
                process.kill()
                process.wait()
        first, second, third = (path.read_text() for path in said)
        why = f"on rank {speaker}: the process of rank {victim} has ended"
        gave_up = f"on machine {names[1]}: rank {speaker} gave up: call 2"
        assert all(gave_up in x for x in (first, second))
        assert all(why in words for words in (first, second, third))

    def test_one_that_is_cut_off_is_named_on_every_rank(self, tmp_path):
        with namespaces(3, 1000) as names:
            started = start(names, (2, 2, 2), "until cut off", tmp_path)
            while len(list(tmp_path.glob("ready *"))) < 6:
                assert all(process.poll() is None for process in started)
                time.sleep(0.1)
            cut_off(names[2])
            assert [process.wait(60) for process in started] == [0] * 6
        for rank in range(6):
            others = names[2] if rank < 4 else f"{names[0]}, {names[1]}"
            assert f"no answer from {others}:" in (tmp_path / str(rank)).read_text()
