"""Where the user's files are kept, with platformdirs and without."""

import sys
from pathlib import Path

import pytest

from fastreduce import folders

FOLDERS = {
    folders.cache: ("XDG_CACHE_HOME", ".cache/fastreduce"),
    folders.data: ("XDG_DATA_HOME", ".local/share/fastreduce"),
}


@pytest.fixture(params=["platformdirs", "no platformdirs"])
def installed(request, monkeypatch):
    if request.param == "no platformdirs":
        monkeypatch.setitem(sys.modules, "platformdirs", None)
    return request.param


@pytest.mark.skipif(sys.platform != "linux", reason="platformdirs goes by the system's rules")
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda x: x.__name__)
def test_of_the_xdg_base_directories(folder, installed, monkeypatch, tmp_path):
    variable, default = FOLDERS[folder]
    monkeypatch.setenv(variable, str(tmp_path))
    assert folder() == tmp_path / "fastreduce"
    monkeypatch.delenv(variable)
    assert folder() == Path.home() / default
