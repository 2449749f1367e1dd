"""The pictures that the benchmarks wrote, shown by the site without a second copy of them."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page


def on_files(files: Files, config: MkDocsConfig) -> Files:
    results = Path(config.config_file_path).parent / "benchmarks" / "results"
    for path in sorted([*results.glob("*.png"), *results.glob("*.svg")]):
        files.append(File.generated(config, f"results/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """In the repository the links lead to the files, where a reader without the site finds them."""
    return markdown.replace("](../benchmarks/results/", "](results/")
