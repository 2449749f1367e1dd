"""The simulation counts what the events engine gives the devices: the launches, the waits between
devices, the bytes between each two of them."""

from functools import cache
from itertools import permutations
from typing import NamedTuple

import networkx as nx
import pytest
from builds import Build, needs_compiler, run
from program_files import every_program, write_programs
from virtual_builds import CONTENT, ENGINES, FEW_KERNELS, HERE, TEST_OPTIONS, Mutant, Source

from fastreduce import HOST
from fastreduce.simulation import EVENTS
from fastreduce.simulation.run import Run
from fastreduce.topology import Topology

SOURCES = {
    **ENGINES,
    **CONTENT,
    **FEW_KERNELS,
    "test": Source(HERE / "counts_test.cpp", TEST_OPTIONS),
}

pytestmark = [needs_compiler, pytest.mark.sweep("virtual GPUs")]

# Every number of shards and slices below cuts it into whole cache lines, as the model does.
ELEMS, ELEM_BYTES = 3 * 2**12, 4
NEVER = 2**40  # bytes from which a copy goes to the copy engine

PROGRAMS = {
    (x.name, x.program.k): x.program
    for x in every_program()
    if x.collective == "allreduce" and x.program.k in (2, 3, 4)
    if not x.program.whole_tensors  # which take a tensor for each shard
}
ON_GPUS = [key for key, x in PROGRAMS.items() if all(i.rank != HOST for i in x.instructions)]


class Counts(NamedTuple):
    launches: int
    waits: int
    bytes: dict[tuple[int, int], int]


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    chosen = [x for x in every_program() if PROGRAMS.get((x.name, x.program.k)) == x.program]
    return write_programs(tmp_path_factory.mktemp("programs") / "programs.txt", chosen)


def counts_of(test, programs, slices, copy_engine_bytes=NEVER):
    """By program and how it is called; a copy of the copy engine is a launch too."""
    done = run(test, programs, str(ELEMS), str(slices), str(copy_engine_bytes))
    assert done.returncode == 0, done.stderr
    found = {}
    for line in done.stdout.splitlines():
        name, ranks, how, *numbers = line.split()
        kernels, copies, waits, *moved = map(int, numbers)
        triples = zip(moved[::3], moved[1::3], moved[2::3], strict=True)
        between = {(src, dst): nbytes for src, dst, nbytes in triples}
        found[name, int(ranks), how] = Counts(kernels + copies, waits, between)
    return found


@pytest.fixture(scope="module")
def engine(objects, programs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("test")
    test = Build("plain", folder).link([*objects.values()], folder)
    return cache(lambda *setting: counts_of(test, programs, *setting))


@cache
def all_to_all(k):
    """A link of its own for each ordered pair of GPUs, and of a GPU and the CPU."""
    graph = nx.DiGraph()
    graph.add_nodes_from((f"gpu{rank}" for rank in range(k)), kind="gpu", memory_bytes_per_s=1e12)
    graph.add_node("cpu", kind="cpu", memory_bytes_per_s=1e12)
    for link in permutations(list(graph), 2):
        graph.add_edge(*link, bytes_per_s=1e9, latency_s=1e-6, medium="test")
    return Topology("all to all", "made up", graph)


def numbers(link):
    """Of devices; the host is -1."""
    return tuple(-1 if name == "cpu" else int(name.removeprefix("gpu")) for name in link)


def model(program, slices):
    simulated = Run(program, all_to_all(program.k), ELEMS * ELEM_BYTES, slices, EVENTS)
    moved = {numbers(link): n for link, n in simulated.link_bytes.items() if n}
    lanes = [lane for lane, *_ in simulated.simulation.tasks]
    return Counts(len(lanes) * slices, waits_between(program, lanes, slices), moved)


def waits_between(program, lanes, slices):
    """Of a task for one of another lane, those that do not follow from others."""
    groups = program.launches()
    launch_of = {index: number for number, group in enumerate(groups) for index in group}
    order, last = nx.DiGraph(), {}
    for later, group in enumerate(groups):
        before = {launch_of[x] for index in group for x in program.dependencies()[index]}
        for part in range(slices):
            order.add_edges_from(((earlier, part), (later, part)) for earlier in before)
            if lanes[later] in last:
                order.add_edge(last[lanes[later]], (later, part))
            last[lanes[later]] = later, part
    needed = nx.transitive_reduction(order).edges
    return sum(lanes[earlier] != lanes[later] for (earlier, _), (later, _) in needed)


def fork_and_join(k, how):
    """The first lane waits for torch's streams and these for it. In between, where the call is no
    graph, the other lanes wait for the first, and it for them."""
    return (k - 1) * (2 if how == "graph" else 4)


@pytest.mark.parametrize("copy_engine_bytes", [NEVER, 1], ids=["kernels", "copy engines"])
@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("how", ["enqueued", "graph"])
@pytest.mark.parametrize("name, k", ON_GPUS)
def test_the_model_counts_what_the_engine_does(engine, name, k, how, slices, copy_engine_bytes):
    found = engine(slices, copy_engine_bytes)[name, k, how]
    print(name, k, how, found)  # shown by pytest -rP
    wanted = model(PROGRAMS[name, k], slices)
    assert found == wanted._replace(waits=wanted.waits + fork_and_join(k, how))


@pytest.mark.parametrize("name, k", ON_GPUS)
def test_control_another_number_of_slices_has_other_counts(engine, name, k):
    found, other = engine(2, NEVER)[name, k, "graph"], model(PROGRAMS[name, k], 1)
    assert found.launches == 2 * other.launches
    assert found.waits - fork_and_join(k, "graph") == 2 * other.waits
    assert found.bytes == other.bytes


# Their results are right.
MUTANTS = {
    "waits that follow from others": Mutant(
        "cuda/enqueue.cpp",
        "if (known_[lane][other] >= behind[other]) continue;",
        "",
        "waits",
        "",
    ),
    "a launch on the next device": Mutant(
        "cuda/enqueue.cpp",
        "layout_.lane_of_rank[rank];",
        "layout_.lane_of_rank[(rank + 1) % schedule_.ranks];",
        "bytes",
        "",
    ),
}


@pytest.mark.sweep("mutants")
@pytest.mark.parametrize("name", MUTANTS)
def test_control_an_engine_that_does_more_is_found(name, objects, programs, tmp_path):
    mutant = MUTANTS[name]
    test = mutant.build(tmp_path, SOURCES, objects)
    found = counts_of(test, programs, 2)["bidirectional", 4, "graph"]
    wanted = model(PROGRAMS["bidirectional", 4], 2)
    assert found.launches == wanted.launches
    extra = found.waits - wanted.waits - fork_and_join(4, "graph")
    assert extra > 0 if mutant.mode == "waits" else found.bytes != wanted.bytes


@pytest.mark.parametrize("k", [2, 3, 4])
def test_the_first_gpu_does_the_hosts_work_on_copies(engine, k):
    """Each operand is copied to the host and from it; in the model these launches belong to the
    call (`fastreduce.simulation.costs.costs_of`)."""
    found, wanted = engine(1, NEVER)["host", k, "graph"], model(PROGRAMS["host", k], 1)
    print("host", k, found)
    assert (found.launches, wanted.launches) == (4 * k + 1, 1)
    assert found.bytes == wanted.bytes
