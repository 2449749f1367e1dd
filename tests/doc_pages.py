"""The pages of the docs, and the tables on them."""

from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
}


def table(text: str, first_cell: str) -> list[list[str]]:
    """The cells of the page's first table that begins so."""
    lines = text[text.index(f"| {first_cell} |") :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
