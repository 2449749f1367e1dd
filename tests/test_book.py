"""The pages of docs/book run from top to bottom, with small sizes, and show what was measured."""

import json

import pytest
from doc_pages import table
from nbclient.exceptions import CellExecutionError
from run import HERE, PAGES, RESULTS, execute, notebook
from sweeps import one_in

# For each page, small values of what its first cell assigns.
SMALL = {
    "asynchrony": {"sizes": [1, 4096], "repetitions": 2, "calls": 40, "elements": 4096},
    "concise": {"batch_size": 4, "steps": 1},
    "from_scratch": {"image_count": 8, "test_count": 4, "epochs": 1, "batch_size": 4},
    "hardware": {
        "sizes_bytes": [1024, 4096],
        "parts": 2,
        "rounds": 1,
        "topologies": ["book-pcie4"],
    },
    "hybridization": {"depth": 1, "batch_sizes": [2], "rounds": 1},
    "parameter_server": {
        **{"topologies": ["book-pcie4"], "elements": 1024, "ranks": 2, "rounds": 1},
        **{"steps": 6, "late_s": 0.0, "runs": 1},
    },
    "overlap": {
        **{"size": 32, "products": 2, "layers": 3, "gradient_elements": 1024, "rounds": 1},
        **{"width": 256, "batch_size": 4},
    },
}

# Each takes five seconds or more: the short run has one of them.
RUN = one_in(len(PAGES), sorted(PAGES), "notebooks")


def text_of(page):
    return PAGES[page].read_text(encoding="utf-8")


def sizes_of(page):
    """The names that the page's first cell assigns."""
    first = next(cell for cell in notebook(text_of(page)).cells if cell.cell_type == "code")
    names: dict = {}
    exec(first.source, {}, names)
    return set(names)


def shown(page_text):
    """The figures in the page's table."""
    _, _, *rows = table(page_text, "what")
    return dict(rows)


def shells(page_text):
    """Cells in another language: jupytext makes some of blocks of a shell, too."""
    cells = (cell for cell in notebook(page_text).cells if cell.cell_type == "code")
    return [cell.source for cell in cells if cell.source.startswith("%%")]


@pytest.fixture(autouse=True)
def a_place_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # the machine is busy with other tests
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))


@pytest.mark.parametrize("page", RUN)
def test_a_page_runs_and_draws(page, tmp_path):
    execute(notebook(text_of(page), SMALL[page]), tmp_path)
    assert (tmp_path / f"{page}.png").read_bytes().startswith(b"\x89PNG")
    found = json.loads((tmp_path / f"{page}.json").read_text())
    assert found


@pytest.mark.parametrize("page", PAGES)
class TestPage:
    def test_small_values_are_of_sizes_that_it_has(self, page):
        assert SMALL[page].keys() <= sizes_of(page)

    def test_its_table_has_the_figures_that_were_kept(self, page):
        assert shown(text_of(page)) == json.loads((RESULTS / f"{page}.json").read_text())

    def test_it_shows_its_picture_and_is_in_the_index(self, page):
        assert f"](results/{page}.png)" in text_of(page)
        assert (RESULTS / f"{page}.png").exists()
        assert f"]({page}.md)" in (HERE / "index.md").read_text(encoding="utf-8")

    def test_only_python_becomes_code(self, page):
        assert shells(text_of(page)) == []


class TestControl:
    def test_a_wrong_assertion_fails(self, tmp_path):
        page = "```python\ncount = 3\n```\n\n```python\nassert count == 3\n```\n"
        with pytest.raises(CellExecutionError, match="AssertionError"):
            execute(notebook(page, {"count": 4}), tmp_path)

    @pytest.mark.parametrize("page", PAGES)
    def test_a_wrong_figure_is_noticed(self, page):
        text = text_of(page)
        figure = next(iter(shown(text).values()))
        assert shown(text.replace(f"| {figure} |", f"| 1{figure} |", 1)) != shown(text)

    def test_a_shell_is_noticed(self):
        assert shells("```python\n1\n```\n\n```sh\nls\n```\n") == ["%%sh\nls"]
