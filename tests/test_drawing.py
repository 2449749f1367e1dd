"""Pictures of programs, timelines and topologies: as files, as values, and in notebooks."""

import struct
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from matplotlib.colors import to_rgba

from fastreduce import HOST, Instruction, Program, algorithms, draw, simulate
from fastreduce.colors import color_of
from fastreduce.drawing import Picture
from fastreduce.program.picture import program_figure
from fastreduce.simulation.busy import Busy
from fastreduce.topology import cluster, preset


def book(program, slices=1):
    return simulate(program, "book-pcie4", "160MB", slices=slices)


MALFORMED = Program(2, 1, [Instruction(0, 7, (0, 1), (0, 1))])
DRAWN = {
    "program": algorithms.ring(3),
    "timeline": book(algorithms.ring(2)),
    "topology": preset("dgx1"),
}


def png_size(path):
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", head[16:])


def words(picture):
    """The texts of an SVG, by how often they are there."""
    texts = [e.text for e in ElementTree.fromstring(picture).iter() if e.tag.endswith("text")]
    return {text: texts.count(text) for text in texts}


class TestProgram:
    def test_ranks_are_columns_and_steps_are_rows(self):
        found = words(draw(algorithms.ring(4)))
        assert {f"rank {r}" for r in range(4)} <= found.keys()
        assert {f"step {s}" for s in range(1, 7)} <= found.keys()
        assert "step 7" not in found and "host" not in found
        assert [found[f"\N{GREEK CAPITAL LETTER SIGMA} {shard}"] for shard in range(4)] == [3] * 4
        assert [found[str(shard)] for shard in range(4)] == [3] * 4

    def test_what_depends_on_nothing_is_one_step(self):
        assert "step 2" not in words(draw(algorithms.sharded(4)))

    def test_the_host_has_a_column_where_it_takes_part(self):
        assert words(draw(Program(2, 1, [Instruction(HOST, 0, (0, 1), (0, 1))])))["host"] == 1

    def test_all_columns_are_in_view_and_an_instruction_has_its_shards_colour(self):
        (axes,) = program_figure(algorithms.ring(4)).axes
        left, right = axes.get_xlim()
        assert left < 0 and right > 3
        boxes = [x.get_bbox_patch() for x in axes.texts if x.get_bbox_patch()]
        assert len(boxes) == 24
        assert {x.get_facecolor() for x in boxes} == {to_rgba(color_of(i, 4)) for i in range(4)}

    def test_an_empty_program_is_a_picture_too(self):
        assert "rank 1" in words(draw(Program(2, 1, [])))

    def test_a_malformed_one_is_refused(self):
        with pytest.raises(ValueError, match="shard 7 is not one of 1"):
            draw(MALFORMED)


class TestTimeline:
    def test_names_devices_links_and_what_they_do(self):
        found = words(draw(book(algorithms.ring(2))))
        assert {"gpu0", "gpu1", "gpu0 -> pcie0", "pcie0 -> gpu1"} <= found.keys()
        assert {"shard 1 <- ranks 1, 0", "shard 1 <- rank 1"} <= found.keys()

    def test_grows_with_its_lanes(self, tmp_path):
        sizes = []
        for name, program in (("few", algorithms.ring(2)), ("many", algorithms.ring(4))):
            book(program, slices=2).to_png(tmp_path / name)
            sizes.append(png_size(tmp_path / name))
        (few_width, few_height), (many_width, many_height) = sizes
        assert few_width == many_width and few_height < many_height

    @pytest.mark.parametrize(
        "program", [Program(2, 1, []), algorithms.leader(1), algorithms.multi_ring(5)]
    )
    def test_draws_whatever_there_is(self, program, tmp_path):
        simulate(program, preset("dgx1"), 1, verify=False).to_png(tmp_path / "some.png")
        assert min(png_size(tmp_path / "some.png")) > 100


class TestFiles:
    @pytest.mark.parametrize("what", DRAWN.values(), ids=DRAWN)
    def test_are_svg_or_png_as_the_path_says(self, what, tmp_path):
        draw(what, tmp_path / "a.svg")
        assert (tmp_path / "a.svg").read_text() == draw(what)
        draw(what, str(tmp_path / "a.PNG"))
        assert min(png_size(tmp_path / "a.PNG")) > 100

    def test_a_dollar_in_a_name_is_no_formula(self, tmp_path):
        machine = replace(preset("book-pcie4"), name="a $x_{$ b")
        busy = Busy(machine, simulate(algorithms.ring(4), machine, "1MB", slices=1))
        for what in (machine, busy, busy.timeline):
            assert any("a $x_{$ b" in text for text in words(draw(what)))

    def test_a_long_title_is_wrapped(self):
        machine = replace(preset("book-pcie4"), name="a machine of many words " * 8)
        timeline = simulate(algorithms.ring(4), machine, "1MB", slices=1)
        lines = [x for x in words(draw(timeline)) if "machine" in x or "busbw" in x]
        assert len(lines) > 1 and max(map(len, lines)) < 140

    @pytest.mark.parametrize("name", ["a.gif", "a.pdf", "svg", "a.svg.bak"])
    def test_other_suffixes_are_refused_before_anything_is_drawn(self, name, tmp_path):
        with pytest.raises(ValueError, match=rf"{name}': want a path that ends in .svg or .png"):
            draw(MALFORMED, tmp_path / name)
        assert list(tmp_path.iterdir()) == []

    def test_nothing_else_is_drawn(self, tmp_path):
        with pytest.raises(TypeError, match="found str; want a Program, a Timeline"):
            draw("ring", tmp_path / "ring.svg")

    def test_the_same_program_gives_the_same_file(self, tmp_path):
        for name in ("one.svg", "two.svg"):
            draw(algorithms.tree(5), tmp_path / name)
        assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
        assert draw(algorithms.tree(6)) != draw(algorithms.tree(5))

    @pytest.mark.sweep("large pictures")
    def test_a_huge_png_has_fewer_dots(self, tmp_path):
        """At its full 110 dots per inch it would have 180 million."""
        wide = Program(1000, 1, [Instruction(r, 0, (r,), (r,)) for r in range(0, 1000, 250)])
        draw(wide, tmp_path / "wide.png")
        width, height = png_size(tmp_path / "wide.png")
        assert width < 1 << 16 and width * height < 41e6


class TestNotebooks:
    @pytest.mark.parametrize("what", DRAWN.values(), ids=DRAWN)
    def test_show_what_is_drawn(self, what):
        assert what._repr_svg_() == draw(what)

    def test_a_picture_is_a_value(self):
        picture = draw(algorithms.ring(2))
        assert isinstance(picture, Picture)
        assert picture._repr_svg_() == str(picture) and str(picture).endswith("</svg>\n")
        assert repr(picture) == f"<Picture: {len(picture):,} characters of SVG>"

    @pytest.mark.parametrize(
        "what",
        [
            algorithms.ring(32),
            simulate(algorithms.ring(16), preset("dgx2-v100"), "160MB", slices=8),
            cluster("dgx-h100", 32, 400, nics=8),
        ],
        ids=["program", "timeline", "topology"],
    )
    def test_of_what_is_too_large_they_show_the_text(self, what):
        assert what._repr_svg_() is None
        assert len(repr(what)) < 100

    def test_of_what_is_malformed_too(self):
        assert MALFORMED._repr_svg_() is None
