"""Tables on disk: whole, of this machine, or refused."""

import errno
import json
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import WRONG_TIMES, grids, put, table, times, without

from fastreduce import folders
from fastreduce.plan.defaults import BETWEEN_GPUS
from fastreduce.plan.table_files import load, save


class TestFiles:
    @given(grids())
    def test_round_trip(self, found):
        with tempfile.TemporaryDirectory() as folder:
            path = save(table(found), Path(folder, "some", "where.json"))
            assert load(path) == table(found)
            assert os.listdir(path.parent) == ["where.json"]

    @given(st.dictionaries(st.sampled_from(BETWEEN_GPUS), st.none() | st.integers(1, 1 << 62)))
    def test_round_trip_of_sizes_for_the_copy_engine(self, found):
        with tempfile.TemporaryDirectory() as folder:
            path = save(table(copy_engine_bytes=found), Path(folder, "mine.json"))
            assert load(path).copy_engine_bytes == found

    def test_a_file_from_before_there_were_any_is_as_good(self, tmp_path):
        path = save(table(copy_engine_bytes={"pcie": 1 << 20}), tmp_path / "mine.json")
        content = json.loads(path.read_text())
        del content["copy_engine_bytes"]
        path.write_text(json.dumps(content))
        assert load(path) == table()

    def test_default_is_the_users_data_folder(self, home):
        path = save(table())
        assert path.parent == home == folders.data()
        assert f"-fastreduce-{table().fastreduce}-torch-{table().torch}.json" in path.name
        assert load() == table()

    def test_devices_and_versions_have_files_of_their_own(self, home):
        names = ("a CPU, 2 threads", "a CPU; 2 threads", "b" * 300 + "1", "b" * 300 + "2")
        others = [table(device=name) for name in names]
        others += [table(fastreduce="0.2.0"), table(torch="9.9"), table()]
        paths = {save(other) for other in others}
        assert len(paths) == len(others)
        assert all(path.parent == home and len(path.name) < 256 for path in paths)

    @pytest.mark.parametrize(("spoil", "words"), WRONG_TIMES)
    def test_refuses_holes_and_says_in_which_file(self, spoil, words, tmp_path):
        found = times()
        spoil(found)
        self.refuses(lambda content: put(content, found, "times_s"), words, tmp_path)

    @pytest.mark.parametrize(
        ("spoil", "words"),
        [
            (lambda c: put(c, 2, "version"), "version is 2, want 1"),
            (
                lambda c: put(c, "fastreduce topology", "format"),
                "format is 'fastreduce topology', want 'fastreduce table'",
            ),
            (lambda c: put(c, "another CPU", "device"), "measured with device 'another CPU', but"),
            (lambda c: put(c, "0.0.1", "fastreduce"), "measured with fastreduce '0.0.1', but this"),
            (lambda c: put(c, "1.13", "torch"), r"measured with torch '1\.13', but this is '2\."),
            (lambda c: put(c, 7, "date"), "date is 7, want a string"),
            (lambda c: without(c, "device"), "device is None, want a string"),
            (lambda c: put(c, [], "times_s"), r"times_s is \[\], want an object"),
            (
                lambda c: put(c, 1 << 20, "copy_engine_bytes"),
                "copy_engine_bytes is 1048576, want an object",
            ),
            (
                lambda c: put(c, -1, "copy_engine_bytes", "pcie"),
                "copy_engine_bytes, pcie: found -1, want bytes above zero, or null for never",
            ),
            (lambda c: put(c, 3, "times_s", "cpu"), "cpu: found 3, want an object"),
            (
                lambda c: put(c, 3, "times_s", "cpu", "ring", "2"),
                "ring, k = 2: found 3, want an obj",
            ),
            (
                lambda c: put(c, {}, "times_s", "cpu", "ring", "two"),
                "ring: found key 'two', want a",
            ),
            (
                lambda c: put(c, 1.0, "times_s", "cpu", "ring", "2", "0"),
                "k = 2: found key '0', want",
            ),
        ],
    )
    def test_refuses_what_is_no_table_of_this_machine(self, spoil, words, tmp_path):
        self.refuses(spoil, words, tmp_path)

    def refuses(self, spoil, words, folder):
        path = save(table(), folder / "mine.json")
        load(path)  # control
        content = json.loads(path.read_text())
        spoil(content)
        path.write_text(json.dumps(content))
        with pytest.raises(ValueError, match=f"{path}: .*{words}"):
            load(path)

    @pytest.mark.parametrize("text", ["", "{", "[]", "null", "\x00", "7"])
    def test_refuses_what_is_no_object(self, text, tmp_path):
        path = tmp_path / "mine.json"
        path.write_text(text)
        with pytest.raises(ValueError, match=str(path)):
            load(path)

    def test_a_save_that_fails_leaves_the_old_table_alone(self, monkeypatch, home):
        save(table())

        def full(*_):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a file of no concern")

        monkeypatch.setattr(os, "replace", full)
        with pytest.raises(OSError, match="No space left") as caught:
            save(table(times(2e-6)))
        assert Path(caught.value.filename).parent == home
        assert caught.value.filename.endswith(".json")
        assert load() == table()
        assert len(os.listdir(home)) == 1
