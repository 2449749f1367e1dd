"""What is installed: a light import, true stubs and examples that run."""

import ast
import doctest
import importlib
import pkgutil
from importlib import metadata, resources

import pytest
import torch
from subprocesses import output_of

import fastreduce
from fastreduce import _C
from fastreduce.algorithms import registry

# tests/training has the examples of these.
ELSEWHERE = ("fastreduce.training", "fastreduce.__main__")
MODULES = ["fastreduce"] + [
    name
    for _, name, _ in pkgutil.walk_packages(fastreduce.__path__, "fastreduce.")
    if not name.startswith(ELSEWHERE) and name != "fastreduce._C"
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    module = importlib.import_module(name)
    before = dict(registry)
    found = doctest.testmod(module)
    registry.clear()  # an example that registers an algorithm leaves it behind
    registry.update(before)
    assert found.failed == 0


def test_control_there_are_examples_in_what_users_call():
    finder = doctest.DocTestFinder(exclude_empty=True)
    for name in ("allreduce", "reduce", "broadcast", "reduce_scatter", "all_gather", "algorithm"):
        assert any(x.examples for x in finder.find(getattr(fastreduce, name))), name


class TestImport:
    # Seconds of importing (networkx 0.3 on 2 cores) that an allreduce does not need.
    HEAVY = (
        *("matplotlib", "networkx", "PIL", "platformdirs", "pynvml", "tqdm"),
        *(f"fastreduce.{x}" for x in ("cli", "doctor", "parallel")),
        *(f"fastreduce.{x}" for x in ("simulation", "topology", "training")),
    )

    def test_is_light_and_leaves_torch_as_it_was(self):
        code = """
            import sys, torch, warnings
            state = lambda: (torch.get_num_threads(), torch.get_default_dtype(),
                             torch.is_grad_enabled(), torch.random.get_rng_state().sum().item())
            before, loaded = state(), set(sys.modules)
            warnings.simplefilter("error")
            import fastreduce
            print(state() == before, *sorted(set(sys.modules) - loaded))
        """
        same, *new = output_of(code).split()
        assert same == "True"
        assert "fastreduce" in new
        assert [x for x in new if x.startswith(self.HEAVY)] == []

    @pytest.mark.sweep("processes")
    @pytest.mark.parametrize(("module", "threads"), [("fastreduce", 0), ("torch", 2)])
    def test_a_group_that_is_destroyed_ends(self, module, threads):
        """Threads of Gloo's that free tensors while the interpreter ends would abort it. With torch
        alone they stay where an optimizer is made while there is a group."""
        code = f"""
            import glob, {module}, torch, torch.distributed as dist

            def threads():
                names = [open(x).read().strip() for x in glob.glob("/proc/self/task/*/comm")]
                return names.count("pt_gloo_runloop")

            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
            torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1)
            during = threads()
            dist.destroy_process_group()
            print(during, threads())
        """
        assert output_of(code) == f"2 {threads}"

    def test_is_not_there_before_it_is_asked_for(self):
        """Nor is anything missing then; what is heavy would show above."""
        modules = [x.name for x in pkgutil.iter_modules(fastreduce.__path__) if x.name[0] != "_"]
        code = f"""
            import sys, fastreduce
            known = dir(fastreduce)
            for x in {[*modules, *fastreduce.__all__]}:
                assert x in known and getattr(fastreduce, x) is not None, x
            fastreduce.topology.preset("dgx1"), fastreduce.training.train
            print(*sys.modules)
        """
        loaded = output_of(code).split()
        assert {"networkx", "fastreduce.topology", "fastreduce.simulation"} <= {*loaded}

    def test_control_what_is_nowhere_is_an_attribute_error(self):
        with pytest.raises(AttributeError, match="module 'fastreduce' has no attribute 'nothing'"):
            fastreduce.nothing  # noqa: B018


def test_an_extension_that_does_not_load_says_how_to_get_one():
    code = """
        import sys, torch
        sys.modules["fastreduce._C"] = None
        try:
            import fastreduce
        except ImportError as error:
            print(error)
    """
    said = output_of(code)
    assert torch.__version__ in said and "pip install" in said


class TestNames:
    def test_all_are_there_and_documented(self):
        for name in fastreduce.__all__:
            assert getattr(fastreduce, name).__doc__, name

    def test_stub_names_what_the_extension_has(self):
        stub = ast.parse(resources.files("fastreduce").joinpath("_C.pyi").read_text())
        named = {
            node.target.id if isinstance(node, ast.AnnAssign) else node.name
            for node in stub.body
            if isinstance(node, ast.AnnAssign | ast.FunctionDef | ast.ClassDef)
        }
        assert named == {name for name in vars(_C) if not name.startswith("_")}

    def test_types_are_announced(self):
        assert resources.files("fastreduce").joinpath("py.typed").is_file()

    def test_version_is_that_of_the_distribution(self):
        assert fastreduce.__version__ == metadata.version("fastreduce")

    def test_built_for_this_torch(self):
        assert _C.built_for_torch.split(".")[:2] == torch.__version__.split(".")[:2]
