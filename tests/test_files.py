"""Files of ours: written whole, locked, and what errors say: found, wanted, what to do."""

import fcntl
import io
import json
import os
import resource

import pytest

from fastreduce import draw, explain, files, simulate
from fastreduce.algorithms import ring
from fastreduce.files import alone_in, lock, parse, replacing, stderr_is_terminal
from fastreduce.plan.report import write
from fastreduce.topology import preset, save

WANTED = "fastreduce program"
RIGHT = {"format": WANTED, "version": 1, "k": 4}


def test_control_the_right_one_is_read():
    assert parse(json.dumps(RIGHT).encode(), WANTED, 1) == RIGHT


@pytest.mark.parametrize(
    "content",
    [b"", b'{"format": ', b"\xff\xfe\x00", b"[" * 100_000],
    ids=["nothing", "cut short", "bytes", "nested beyond Python's stack"],
)
def test_what_is_not_json_is_refused(content):
    with pytest.raises(ValueError, match=r"not JSON, or not all of it: .*; write it again"):
        parse(content, WANTED, 1)


@pytest.mark.parametrize("content", [b"[]", b"null", b"7"])
def test_what_is_no_object_is_refused(content):
    found = content.decode().replace("null", "None")
    with pytest.raises(ValueError) as error:
        parse(content, WANTED, 1)
    assert str(error.value).startswith(f'found {found}, want an object with "format": "{WANTED}"')


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "fastreduce table"}, "format is 'fastreduce table', want 'fastreduce program'"),
        ({"format": None}, "format is None, want 'fastreduce program'; pass another file"),
        ({"version": 2}, "version is 2, want 1; write it again with this version of fastreduce"),
        ({"version": None}, "version is None, want 1"),
    ],
)
def test_another_format_or_version_is_refused(change, words):
    with pytest.raises(ValueError) as error:
        parse(json.dumps(RIGHT | change).encode(), WANTED, 1)
    assert str(error.value).startswith(words)


def test_a_key_that_is_there_twice_is_refused():
    """json would take the last, and half of a file edited by hand would be gone unseen."""
    for twice in ('{"links": [1], "links": []}', '{"nodes": [{"links": [1], "links": []}]}'):
        content = json.dumps(RIGHT)[:-1] + f', "of": {twice}}}'
        with pytest.raises(ValueError, match=r"has 'links' twice, the last time as \[\];"):
            parse(content.encode(), WANTED, 1)
    assert parse(b'{"a": {"links": 1}, "links": 2, ' + json.dumps(RIGHT).encode()[1:], WANTED, 1)


def test_a_key_that_is_there_twice_is_found_among_many():
    """Each with each would take minutes for 100,000."""
    compared = 0

    class Key(str):
        __hash__ = str.__hash__

        def __eq__(self, other):
            nonlocal compared
            compared += 1
            return str(self) == str(other)

    keys = [Key(number) for number in [*range(1000), 999]]
    with pytest.raises(ValueError, match="has '999' twice"):
        files._each_once([(key, None) for key in keys])
    assert compared < 10_000


def test_writers_of_one_name_have_a_file_each_whatever_their_process(tmp_path):
    """Two containers may have the same number of a process."""
    path = tmp_path / "mine.json"
    with replacing(path) as one, replacing(path) as other:
        assert one != other
        one.write_text("one")
        other.write_text("other")
    assert path.read_text() == "one" and os.listdir(tmp_path) == ["mine.json"]


@pytest.fixture
def full_disk():
    """Nothing of more than 100 bytes can be written."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize(
    "written",
    [
        lambda path: save(preset("dgx1"), path),
        lambda path: draw(ring(4), path.with_suffix(".svg")),
        lambda path: draw(ring(4), path.with_suffix(".png")),
        lambda path: simulate(ring(4), "dgx1", "1MB").to_trace(path),
        lambda path: simulate(ring(4), "dgx1", "1MB").to_png(path),
        lambda path: write("a plan", [("times", explain("1MB", topology="dgx1"))], path),
    ],
    ids=["topology", "SVG", "PNG", "trace", "timeline", "page"],
)
def test_on_a_full_disk_what_was_there_stays_and_the_error_names_it(tmp_path, full_disk, written):
    for name in ("mine.json", "mine.svg", "mine.png"):
        (tmp_path / name).write_text("as it was")
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(OSError, match=r"File too large: '.*mine\.(json|svg|png)'"):
        written(tmp_path / "mine.json")
    assert sorted(os.listdir(tmp_path)) == before
    assert {(tmp_path / name).read_text() for name in before} == {"as it was"}


def test_a_pipe_is_written_to_and_stays_one(tmp_path):
    """Else /dev/stdout would become a file, for whoever may write to its folder."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as reader:
        save(preset("book-pcie4"), path)
        assert json.loads(reader.read())["name"] == "book-pcie4"
    assert path.is_fifo() and os.listdir(tmp_path) == ["pipe"]


def test_who_has_locked_a_file_has_it_until_it_is_closed(tmp_path):
    with (tmp_path / "mine").open("w") as mine, (tmp_path / "mine").open("r+") as another:
        lock(mine)
        with pytest.raises(BlockingIOError):
            lock(another, wait=False)
        mine.close()
        lock(another, wait=False)


def test_without_locks_on_the_file_system_all_have_it(tmp_path, monkeypatch):
    def without(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", without)
    for wait in (True, False):
        with (tmp_path / "mine").open("w") as file:
            lock(file, wait=wait)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stderr", "shown"), [(Terminal(), True), (io.StringIO(), False), (None, False)]
)
def test_a_bar_is_shown_on_a_terminal_only(monkeypatch, stderr, shown):
    monkeypatch.setattr("sys.stderr", stderr)
    assert stderr_is_terminal() == shown


def test_a_process_that_is_forked_meanwhile_does_not_keep_a_folder_locked(tmp_path):
    """As a data loader's, which another thread begins."""
    goes_on, end = os.pipe()
    with alone_in(tmp_path):
        child = os.fork()
        if child == 0:
            os.close(end)
            os.read(goes_on, 1)
            os._exit(0)
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        lock(folder, wait=False)
    finally:
        os.close(folder)
        os.close(goes_on)
        os.close(end)
        os.waitpid(child, 0)
