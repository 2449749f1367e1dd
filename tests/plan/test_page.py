"""A plan as one page: complete, and without anything from outside."""

import pytest
from pages import Page, browser, why_no_browser

from fastreduce import algorithms, explain, simulate
from fastreduce.plan.report import page, write
from fastreduce.plan.sizes import over_sizes
from fastreduce.plan.step import what_if
from fastreduce.simulation.busy import Busy
from fastreduce.topology import preset


@pytest.fixture(scope="module")
def sections():
    book, program = preset("book-pcie4"), algorithms.sharded(4)
    timeline = simulate(program, book, "160MB")
    return [
        ("Algorithms", explain("160MB", topology=book)),
        ("Sizes", over_sizes([4_000_000], topology=book)),
        ("Busy links", Busy(book, timeline)),
        ("Timeline", timeline),
        ("Program", program),
        ("A step", what_if("resnet50", "100ms", topology=book, most_gpus=2)),
    ]


@pytest.fixture(scope="module")
def folder(sections, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    write("160 MB <here>", sections, folder / "report.html")
    return folder


@pytest.fixture(scope="module")
def text(folder):
    return (folder / "report.html").read_text(encoding="utf-8")


def test_refers_to_nothing_outside(text):
    found = Page(text)
    assert found.outside == [] and found.open == []


def test_has_the_tables_and_the_pictures(text, sections):
    found = Page(text)
    assert found.tags.count("h2") == len(sections)
    assert found.tags.count("table") == 3 and "<td>sharded</td>" in text
    assert len(found.pictures) == 5
    assert all(x.startswith(b"<?xml") and b"</svg>" in x for x in found.pictures)


def test_pictures_refer_to_nothing_outside_either(text):
    for picture in Page(text).pictures:
        svg = picture.decode()
        used = [x.split('"')[0] for x in svg.split('href="')[1:]]
        assert all(x.startswith(("#", "data:")) for x in used)
        assert "<script" not in svg and "@import" not in svg


def test_a_timeline_that_is_too_full_is_pixels():
    crowded = simulate(algorithms.ring(8), "dgx1", "160MB", slices=10)
    assert crowded._repr_svg_() is None
    (picture,) = Page(page("ring", [("Timeline", crowded)])).pictures
    assert picture.startswith(b"\x89PNG")


def test_a_program_that_is_too_full_is_words():
    text = page("ring", [("Program", algorithms.ring(32))])
    assert "Program(k=32" in text and "too many to draw" in text and not Page(text).pictures


def test_names_are_text_not_tags(text):
    assert "<title>160 MB &lt;here&gt;</title>" in text and "<here>" not in text


def test_is_one_file(folder):
    assert [path.name for path in folder.iterdir()] == ["report.html"]


@pytest.mark.parametrize(
    "wrong",
    [
        '<img src="picture.png">',
        '<script>alert("hello")</script>',
        '<a href="https://example.com">more</a>',
        "<style>@import 'https://example.com/a.css'</style>",
        '<link rel="stylesheet">',
    ],
)
def test_control_what_comes_from_outside_is_noticed(wrong):
    assert Page(wrong).outside


def test_control_a_tag_that_closes_nothing_is_noticed():
    with pytest.raises(AssertionError, match="closes nothing"):
        Page("<p>one</table>")


@pytest.mark.sweep("a browser")
@pytest.mark.skipif(bool(why_no_browser()), reason=f"needs {why_no_browser()}")
@pytest.mark.parametrize(("width", "height"), [(1200, 900), (390, 844)], ids=["screen", "phone"])
def test_in_a_browser(folder, width, height):
    with browser(width, height) as driver:
        driver.get((folder / "report.html").as_uri())
        run = driver.execute_script
        loaded = run("return [...document.images].map(x => [x.complete, x.naturalWidth > 300])")
        assert loaded == [[True, True]] * 5
        fetched = run("return performance.getEntriesByType('resource').map(x => x.name)")
        assert [x for x in fetched if not x.startswith("data:")] == []
        # Wide tables and pictures scroll by themselves; the page does not.
        assert run("return document.documentElement.scrollWidth") <= width
        assert [x for x in driver.get_log("browser") if x["level"] == "SEVERE"] == []
        heading = run("return getComputedStyle(document.querySelector('td')).fontSize")
        assert float(heading.removesuffix("px")) >= 12
