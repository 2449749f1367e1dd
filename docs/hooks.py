"""What the site has beside its pages: the benchmarks' pictures, and the book's notebooks."""

import re
from pathlib import Path

import jupytext
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

TITLE = re.compile(r"^# .*\n", re.MULTILINE)
PICTURE = re.compile(r"^!\[[^]]*\]\([^)]*\)\n\n?", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    results = Path(config.config_file_path).parent / "benchmarks" / "results"
    for path in sorted([*results.rglob("*.png"), *results.rglob("*.svg")]):
        name = f"results/{path.relative_to(results).as_posix()}"
        files.append(File.generated(config, name, abs_src_path=str(path)))
    for page in [file for file in files.documentation_pages() if _is_notebook(file)]:
        # A downloaded notebook has no picture beside it: it draws its own.
        text = PICTURE.sub("", page.content_string)
        content = jupytext.writes(jupytext.reads(text, fmt="md"), fmt="ipynb")
        files.append(File.generated(config, _notebook_of(page), content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    if _is_notebook(page.file):
        link = f"\n[Download as a notebook]({Path(_notebook_of(page.file)).name})\n"
        return TITLE.sub(lambda title: title[0] + link, markdown, count=1)
    # In the repository the links lead to the files, where a reader without the site finds them.
    return markdown.replace("](../benchmarks/results/", "](results/")


def _is_notebook(file: File) -> bool:
    return Path(file.src_uri).parent.name == "book" and file.name != "index"


def _notebook_of(file: File) -> str:
    return str(Path(file.src_uri).with_suffix(".ipynb"))
