"""The parts of the package import each other one way round."""

import ast
from collections.abc import Iterator
from importlib.util import resolve_name
from pathlib import Path

import networkx as nx
import pytest
from sweeps import one_in

import fastreduce

ROOT = Path(fastreduce.__file__).parents[1]


def imported(source: str, package: str) -> Iterator[str]:
    """What a module takes from fastreduce, also inside functions and for its types alone."""
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            origin = resolve_name("." * node.level + (node.module or ""), package)
            names = [f"{origin}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names = [f"{node.value.id}.{node.attr}"]  # where there is "import fastreduce"
        yield from (name for name in names if name.startswith("fastreduce."))


def modules() -> dict[str, set[str]]:
    """For each module, what it takes; for fastreduce/__init__.py under "fastreduce.__init__"."""
    found = {}
    for path in (ROOT / "fastreduce").rglob("*.py"):
        *package, module = path.relative_to(ROOT).with_suffix("").parts
        source = path.read_text(encoding="utf-8")
        found[".".join([*package, module])] = set(imported(source, ".".join(package)))
    return found


def circles(taken: dict[str, set[str]]) -> list[set[str]]:
    """Subpackages, and modules beside them, that import each other, directly or by way of others.

    What is taken from fastreduce itself is taken from where fastreduce has it from.
    """
    origin = {f"fastreduce.{x.rpartition('.')[2]}": x for x in taken["fastreduce.__init__"]}
    graph = nx.DiGraph()
    for module, names in taken.items():
        part = module.split(".")[1]
        parts = {origin.get(name, name).split(".")[1] for name in names}
        graph.add_edges_from((part, other) for other in parts - {part} if part != "__init__")
    return [found for found in nx.strongly_connected_components(graph) if len(found) > 1]


def test_no_parts_import_each_other():
    assert circles(modules()) == []


@pytest.mark.parametrize(
    "planted",
    one_in(
        4,
        [
            "from fastreduce.plan.explain import explain",
            "def later():\n    from fastreduce.plan import explain",
            "if TYPE_CHECKING:\n    from fastreduce.plan.plan import Plan",
            "import fastreduce.plan.explain",
            "import fastreduce\nfastreduce.explain",
            "from fastreduce import explain",
            "from ..plan.explain import explain",
            "from .. import plan",
        ],
        "cases",
    ),
)
def test_control_a_circle_is_found(planted):
    taken = modules() | {"fastreduce.topology.x": set(imported(planted, "fastreduce.topology"))}
    assert any({"plan", "topology"} <= found for found in circles(taken))
