"""Topologies by name."""

import os
from pathlib import Path

import pytest

from fastreduce.topology import as_topology, machines, names, preset, rings, save
from fastreduce.topology import named as module


def test_a_topology_is_itself():
    machine = preset("dgx1")
    assert as_topology(machine) is machine


@pytest.mark.parametrize("name", names())
def test_a_preset(name):
    assert as_topology(name).name == preset(name).name


@pytest.mark.parametrize("kind", [str, Path])
def test_a_file(kind, tmp_path):
    save(preset("dgx-a100"), tmp_path / "mine.json")
    assert as_topology(kind(tmp_path / "mine.json")).name == "dgx-a100"


def test_a_pipe(tmp_path):
    """A shell passes the output of a command as one."""
    save(preset("dgx-a100"), tmp_path / "mine.json")
    read, write = os.pipe()
    os.write(write, (tmp_path / "mine.json").read_bytes())
    os.close(write)
    try:
        assert as_topology(f"/dev/fd/{read}").name == "dgx-a100"
    finally:
        os.close(read)


def test_this_machine(monkeypatch):
    machine = preset("dgx1")
    monkeypatch.setattr(module, "detect", lambda: machine)
    assert as_topology("detect") is machine


@pytest.mark.parametrize("name", ["dgx9", "", ".", "no/such.json"])
def test_unknown_names(name):
    with pytest.raises(ValueError, match=r"unknown topology .*known are book-dgx1, .* detect"):
        as_topology(name)


def test_a_file_that_is_wrong(tmp_path):
    (tmp_path / "mine.json").write_text("{}")
    with pytest.raises(ValueError, match=r"mine\.json: format is None, want 'fastreduce topology'"):
        as_topology(tmp_path / "mine.json")


@pytest.mark.parametrize("found", [None, 4, ["dgx1"]])
def test_what_is_neither(found):
    with pytest.raises(TypeError, match="want a Topology, a preset's name such as 'dgx1'"):
        as_topology(found)


def test_rings_and_machines_take_names():
    assert rings("dgx1") == rings(preset("dgx1"))
    assert machines("dgx1") == machines(preset("dgx1"))
