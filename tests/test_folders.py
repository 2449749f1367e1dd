"""Where the user's files are kept, with platformdirs and without."""

import sys
from pathlib import Path

import pytest
import torch

import fastreduce
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


@pytest.fixture
def homeless(monkeypatch):
    """A user whom the system does not know, as in many containers."""
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 2**31 - 5)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda x: x.__name__)
def test_without_a_home_folder_the_error_names_the_variables(folder, homeless, monkeypatch):
    monkeypatch.setitem(sys.modules, "platformdirs", None)  # whose older versions take "~" for it
    with pytest.raises(FileNotFoundError, match=f"set HOME or {FOLDERS[folder][0]} to a folder"):
        folder()


def test_calls_need_no_home_folder(installed, homeless):
    fastreduce._C.forget_schedules()
    tensors = [torch.ones(3), torch.ones(3)]
    fastreduce.allreduce(tensors)
    assert tensors[1].tolist() == [2, 2, 2]
