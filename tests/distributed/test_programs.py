"""Programs written for Gloo run unchanged: ddp_programs.py and sharded_programs.py have them."""

import traceback
from functools import cache

import ddp_programs as ddp
import pytest
import sharded_programs as sharded
import torch
from processes import in_a_group

# Of one family, all run in the same group, one after the other.
FAMILIES = {
    "short": (ddp.plain, ddp.bucket_views, sharded.fsdp2),
    "complex": (ddp.complex_parameters, sharded.complex_shards),
    "ddp": (ddp.unused_parameters, ddp.static_graph, ddp.no_sync, ddp.uneven_inputs),
    "hooks": (
        *(ddp.fp16_hook, ddp.bf16_hook, ddp.power_sgd_hook),
        *(ddp.power_sgd_hook_of_several_buckets, ddp.calls_from_callbacks),
    ),
    "compiled": (ddp.compiled, sharded.functional),
    "sharded": (
        *(sharded.fsdp2_in_memory_of_the_group, sharded.dtensors),
        *(sharded.tensor_parallel, sharded.checkpoint),
    ),
    "four": (ddp.plain, ddp.uneven_inputs, sharded.fsdp2, sharded.hybrid_shards, sharded.dtensors),
}
CASES = [
    pytest.param(name, x.__name__, marks=() if name == "short" else pytest.mark.sweep("processes"))
    for name, family in FAMILIES.items()
    for x in family
]
# What is sent in fewer bits is rounded before it is summed.
ROUNDING = {"fp16_hook": 1e-3, "bf16_hook": 1e-2}


def run(rank, family, size, folder):
    found = {}
    for program in FAMILIES[family]:
        try:
            found[program.__name__] = program(rank, size)
        except Exception:
            found[program.__name__] = traceback.format_exc()
    torch.save(found, folder / f"found-{rank}")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """By rank and program what it returned, or the words of what it raised."""

    @cache
    def of(family, backend):
        folder = tmp_path_factory.mktemp(backend)
        size = 4 if family == "four" else 2
        in_a_group(run, (family, size, folder), size, folder, backend=backend)
        return [torch.load(folder / f"found-{rank}") for rank in range(size)]

    return of


def check_alike(found):
    """Raise AssertionError unless all ranks have the same, to the bit."""
    for rank, own in enumerate(found):
        assert isinstance(own, dict), f"rank {rank}: {own}"
        assert own.keys() == found[0].keys()
        differ = [name for name in own if not torch.equal(own[name], found[0][name])]
        assert not differ, f"ranks 0 and {rank} differ in {', '.join(differ)}"


@pytest.mark.parametrize(("family", "program"), CASES)
def test_like_gloo(results, family, program):
    found, wanted = ([x[program] for x in results(family, y)] for y in ("fastreduce", "gloo"))
    check_alike(found)
    check_alike(wanted)
    assert wanted[0]
    rounding = ROUNDING.get(program, 1e-5)
    torch.testing.assert_close(found[0], wanted[0], rtol=rounding, atol=rounding)


@pytest.mark.parametrize(("variable", "shared"), [("0", True), ("1", False)])
def test_ddp_takes_its_buckets_from_the_backend(tmp_path, variable, shared):
    in_a_group(ddp.where_buckets_are, (variable, shared), 2, tmp_path, backend="fastreduce")


class TestControl:
    def test_ranks_that_differ_are_noticed(self, results):
        own, other = (
            {x: y.clone() for x, y in z["plain"].items()} for z in results("short", "gloo")
        )
        check_alike([own, other])
        other["last.bias"][0] += 1e-6
        with pytest.raises(AssertionError, match=r"ranks 0 and 1 differ in last\.bias"):
            check_alike([own, other])

    def test_a_program_that_raises_is_noticed(self):
        with pytest.raises(AssertionError, match="rank 1: Traceback"):
            check_alike([{}, "Traceback"])
