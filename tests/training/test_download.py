"""A download ends whole and checked, or in an error; it is resumed, retried, and never hangs."""

import hashlib
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from time import sleep
from urllib.error import URLError

import pytest

from fastreduce.training import download as module
from fastreduce.training.download import DownloadError, download

NAME = "train-labels-idx1-ubyte.gz"
CONTENT = bytes(range(256)) * 1000
FILES = {NAME: hashlib.sha256(CONTENT).hexdigest()}


class Server(ThreadingHTTPServer):
    """Serves CONTENT; each request takes the next of ``behaviours``, the last one for ever."""

    def __init__(self, *behaviours: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.behaviours = list(behaviours) or ["serve"]
        self.ranges: list[str | None] = []
        self.url = f"http://127.0.0.1:{self.server_port}/"

    def await_requests(self, count: int) -> None:
        while len(self.ranges) < count:
            sleep(0.001)


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        asked = self.headers["Range"]
        self.server.ranges.append(asked)
        behaviours = self.server.behaviours
        behaviour = behaviours.pop(0) if len(behaviours) > 1 else behaviours[0]
        if behaviour.isdigit():
            return self.send_error(int(behaviour))
        start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked else 0
        if behaviour == "ignore range":
            start = 0
        if start >= len(CONTENT):
            return self.send_error(416)
        body = bytes(len(CONTENT)) if behaviour == "corrupt" else CONTENT[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:100_000])
        if behaviour == "wait for another":
            self.server.await_requests(2)
        if behaviour != "break off":
            self.wfile.write(body[100_000:])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def serve(monkeypatch) -> Iterator:
    monkeypatch.setattr(module, "PAUSE_S", 0.0)
    servers = []

    def start(*behaviours: str) -> Server:
        server = Server(*behaviours)
        servers.append(server)
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


HALF = CONTENT[:128_000]
# How the server behaves, what an earlier try left, and the ranges then asked for.
GOOD = {
    "all at once": (["serve"], None, [None]),
    "resumed": (["serve"], HALF, ["bytes=128000-"]),
    "resumed, but the server ignores ranges": (["ignore range"], HALF, ["bytes=128000-"]),
    "broken off twice": (
        ["break off", "break off", "serve"],
        None,
        [None, "bytes=100000-", "bytes=200000-"],
    ),
    "was whole already": (["serve"], CONTENT, [f"bytes={len(CONTENT)}-"]),
    "what was left was wrong": (["serve"], bytes(1000), ["bytes=1000-", None]),
    "what was left was too long": (["serve"], CONTENT + b"x", ["bytes=256001-", None]),
    "busy twice": (["503", "503", "serve"], None, [None, None, None]),
    "corrupt once": (["corrupt", "serve"], None, [None, None]),
}


@pytest.mark.parametrize(("behaviours", "left", "ranges"), GOOD.values(), ids=GOOD)
def test_a_download_that_ends_well(serve, tmp_path, behaviours, left, ranges):
    server = serve(*behaviours)
    if left is not None:
        (tmp_path / f"{NAME}.part").write_bytes(left)
    download(tmp_path, url=server.url, files=FILES)
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [(NAME, CONTENT)]
    assert server.ranges == ranges


# How the server behaves, how often it is asked, the error's words, and what is left to resume.
BAD = {
    "corrupt": (["corrupt"], 3, ["found SHA-256", f"wanted {FILES[NAME]}"], {}),
    "not there": (["404"], 1, ["404", "after 1 try"], {}),
    "busy": (["503"], 3, ["503", "after 3 tries"], {}),
    "breaks off": (
        ["break off", "503"],
        3,
        ["503"],
        {f"{NAME}.part": CONTENT[:100_000]},
    ),
}


@pytest.mark.parametrize(("behaviours", "asked", "words", "left"), BAD.values(), ids=BAD)
def test_a_download_that_fails_leaves_nothing_under_the_name(
    serve, tmp_path, behaviours, asked, words, left
):
    server = serve(*behaviours)
    with pytest.raises(DownloadError) as error:
        download(tmp_path, url=server.url, files=FILES)
    for word in [f"{server.url}{NAME}", *words]:
        assert word in str(error.value)
    assert len(server.ranges) == asked
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == left


def test_a_file_that_is_there_is_not_asked_for(serve, tmp_path):
    server = serve()
    (tmp_path / NAME).write_bytes(b"mine")
    download(tmp_path, url=server.url, files=FILES)
    assert server.ranges == []
    assert (tmp_path / NAME).read_bytes() == b"mine"


def test_without_a_server_it_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "PAUSE_S", 0.0)
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(DownloadError, match=r"refused.*after 1 try"):
        download(tmp_path, url=f"http://127.0.0.1:{port}/", files=FILES)


def test_a_server_that_never_answers_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "PAUSE_S", 0.0)
    monkeypatch.setattr(module, "CONNECT_TIMEOUT_S", 0.05)
    with closing(socket.create_server(("127.0.0.1", 0))) as mute:
        url = f"http://127.0.0.1:{mute.getsockname()[1]}/"
        with pytest.raises(DownloadError, match=r"no answer within 0\.05 s.*after 1 try"):
            download(tmp_path, url=url, files=FILES)


class TestTwoAtOnce:
    """Threads here, which lock as processes do: each opens the folder for itself."""

    @staticmethod
    def begin(server, folder):
        pool = ThreadPoolExecutor(1)
        begun = pool.submit(download, folder, url=server.url, files=FILES)
        pool.shutdown(wait=False)
        return begun

    def test_one_fetches_and_the_other_has_it_too(self, serve, tmp_path):
        server = serve("wait for another", "serve")
        one = self.begin(server, tmp_path)
        server.await_requests(1)
        other = self.begin(server, tmp_path)
        one.result(), other.result()
        assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [(NAME, CONTENT)]
        assert len(server.ranges) == 2

    def test_what_the_other_has_begun_is_resumed(self, serve, tmp_path):
        server, part = serve(), tmp_path / f"{NAME}.part"
        with module.alone_in(tmp_path):
            one = self.begin(server, tmp_path)
            server.await_requests(1)
            part.write_bytes(HALF)
        one.result()
        assert (tmp_path / NAME).read_bytes() == CONTENT
        assert server.ranges == [None, f"bytes={len(HALF)}-"]

    def test_who_cannot_reach_the_server_waits_for_nobody(self, serve, tmp_path):
        with (
            module.alone_in(tmp_path),
            pytest.raises(DownloadError, match=r"404.*after 1 try"),
        ):
            download(tmp_path, url=serve("404").url, files=FILES)


@pytest.mark.parametrize("files_before", [0, 1])
def test_a_server_that_has_answered_once_is_tried_again(monkeypatch, serve, tmp_path, files_before):
    """An offline machine gives up at once; a connection that drops on the way does not."""
    url, real, calls = serve().url, module._open, []

    def drop_one(request):
        calls.append(request.full_url)
        if len(calls) == 1 + files_before:
            raise URLError("network is unreachable")
        return real(request)

    monkeypatch.setattr(module, "_open", drop_one)
    names = {f"{number}-{NAME}": FILES[NAME] for number in range(2)}
    if files_before:
        download(tmp_path, url=url, files=names)
        assert (len(calls), len(list(tmp_path.iterdir()))) == (3, 2)
    else:
        with pytest.raises(DownloadError, match=r"unreachable.*after 1 try"):
            download(tmp_path, url=url, files=names)


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        download(tmp_path / "file" / "below", files=FILES)
