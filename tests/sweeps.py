"""Long tests, marked ``sweep(kind)``: they run with --sweep; without, the last line counts them.

A plugin: conftest.py takes these hooks.
"""

from collections import Counter
from collections.abc import Iterable

import pytest


def one_in(count: int, cases: Iterable[object], kind: str) -> list[object]:
    """Parameters of which the short run takes the first and every ``count``-th after it."""
    later = pytest.mark.sweep(kind)
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)), marks=later if i % count else ()
        )
        for i, case in enumerate(cases)
    ]


LEFT_OUT = pytest.StashKey[Counter[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sweep", action="store_true", help="run the long sweeps too")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEFT_OUT] = Counter()
    line = "sweep(kind): takes long in all; runs with --sweep alone, and is counted by its kind"
    config.addinivalue_line("markers", line)


@pytest.hookimpl(trylast=True)  # what -k and -m leave out is not counted
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("sweep"):
        return
    sweeps = [item for item in items if item.get_closest_marker("sweep")]
    config.hook.pytest_deselected(items=sweeps)
    items[:] = [item for item in items if not item.get_closest_marker("sweep")]
    kinds = Counter(item.get_closest_marker("sweep").args[0] for item in sweeps)
    config.stash[LEFT_OUT].update(kinds)
    if hasattr(config, "workeroutput"):
        config.workeroutput["left_out"] = dict(kinds)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """All workers of pytest-xdist collect the same tests: what one of them says is true of all."""
    kinds = getattr(node, "workeroutput", {}).get("left_out")
    if kinds is not None:
        node.config.stash[LEFT_OUT] = Counter(kinds)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Behind pytest's own last line."""
    kinds, terminal = config.stash[LEFT_OUT], config.pluginmanager.get_plugin("terminalreporter")
    if kinds and terminal:
        listed = ", ".join(f"{kind} {count:,}" for kind, count in kinds.most_common())
        terminal.write_line(
            f"{kinds.total():,} long tests left out ({listed}): pytest --sweep runs them too"
        )
