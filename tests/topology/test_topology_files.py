"""Topologies as files: back exactly as they went, and what is wrong in one said by name."""

import json

import pytest
from hypothesis import given, settings
from machines import topologies

from fastreduce.topology import cluster, load, names, preset, save


def same(one, other):
    return (one.name, one.source, *contents(one)) == (other.name, other.source, *contents(other))


def contents(topology):
    return list(topology.graph.nodes(data=True)), list(topology.graph.edges(data=True))


class TestRoundTrip:
    @pytest.mark.parametrize("name", names())
    def test_presets(self, name, tmp_path):
        save(preset(name), tmp_path / "a.json")
        assert same(load(tmp_path / "a.json"), preset(name))

    @given(topology=topologies(known=False))
    @settings(max_examples=40)
    def test_any(self, topology, tmp_path_factory):
        path = tmp_path_factory.mktemp("any") / "a.json"
        save(topology, path)
        assert same(load(str(path)), topology)
        assert load(path).unknown() == topology.unknown()

    def test_control_what_differs_is_seen(self):
        assert not same(preset("dgx1"), cluster("dgx1", 1, 100))
        assert not same(preset("pcie4-x8"), preset("pcie5-x8"))


def at(*path, value=...):
    """Change, or without a value remove, what is at a path in the file's content."""

    def change(content):
        *way, last = path
        for key in way:
            content = content[key]
        if value is ...:
            del content[last]
        else:
            content[last] = value

    return change


def again(what):
    return lambda content: content[what].append(content[what][0])


def cut_off(content):
    content["links"] = [x for x in content["links"] if "gpu2" not in (x["src"], x["dst"])]


LINK = "link 'gpu0' -> 'pcie0'"
BAD = {
    "format": (at("format"), "format is None, want 'fastreduce topology'"),
    "version": (at("version"), "version is None, want 1"),
    "name": (at("name"), "the file is without 'name'; want format, version, name"),
    "a number as name": (at("name", value=3), "the file: name is 3, want a string"),
    "nodes": (at("nodes"), "the file is without 'nodes'"),
    "nodes by name": (at("nodes", value={}), "the file: nodes is {}, want a list"),
    "no nodes": (at("nodes", value=[]), "link 'gpu0' -> 'pcie0': there is no node 'gpu0'"),
    "an unknown key": (at("speed", value=1), "the file has 'speed', which is not known"),
    "a node in words": (at("nodes", 1, value="gpu1"), "node 1 is 'gpu1', want an object with name"),
    "a node without name": (at("nodes", 1, "name"), "node 1 is without 'name'"),
    "a node without kind": (at("nodes", 1, "kind"), "node 'gpu1': kind is None, want one of gpu"),
    "a node twice": (again("nodes"), "node 'gpu0' is there twice"),
    "a link twice": (again("links"), f"{LINK} is there twice"),
    "a link without end": (at("links", 0, "dst"), "link 0 is without 'dst'; want src, dst"),
    "an unknown end": (
        at("links", 0, "dst", value="x"),
        "link 'gpu0' -> 'x': there is no node 'x'",
    ),
    "no bandwidth": (at("links", 0, "bytes_per_s"), f"{LINK} is without 'bytes_per_s'"),
    "zero bandwidth": (at("links", 0, "bytes_per_s", value=0), f"{LINK}: bytes_per_s is 0, want"),
    "NaN": (at("links", 0, "latency_s", value=float("nan")), f"{LINK}: latency_s is nan, want sec"),
    "words": (at("links", 0, "bytes_per_s", value="16"), f"{LINK}: bytes_per_s is '16', want byte"),
    "a list": (at("links", 0, "medium", value=[]), f"{LINK}: medium is [], want a name"),
    "misspelt": (at("links", 0, "gbps", value=16), f"{LINK} is with 'gbps', which is not known"),
    "a node's self": (at("nodes", 0, "self", value=1), "node 'gpu0' is with 'self', which is not"),
    "a link's self": (at("links", 0, "self", value=1), f"{LINK} is with 'self', which is not"),
    "disconnected": (cut_off, "no links lead from 'gpu0' to 'gpu2'"),
}


def test_a_name_is_no_topology_to_save(tmp_path):
    with pytest.raises(TypeError, match=r"topology is 'dgx1'; want a Topology, as preset\(name\)"):
        save("dgx1", tmp_path / "a.json")
    assert not (tmp_path / "a.json").exists()


class TestBadFiles:
    @pytest.mark.parametrize("case", BAD)
    def test_say_where_and_what(self, case, tmp_path):
        path = tmp_path / "a.json"
        save(preset("book-pcie4"), path)
        content = json.loads(path.read_text())
        change, message = BAD[case]
        change(content)
        path.write_text(json.dumps(content))
        with pytest.raises(ValueError) as error:
            load(path)
        assert str(error.value).startswith(f"{path}: ")
        assert message in str(error.value)

    @pytest.mark.parametrize("keys", [("nodes", 1), ("nodes", 1, "kind"), ("links", 0, "medium")])
    def test_show_only_the_beginning_of_what_is_long(self, tmp_path, keys):
        path = tmp_path / "a.json"
        save(preset("book-pcie4"), path)
        content = json.loads(path.read_text())
        at(*keys, value=[0] * 10_000)(content)
        path.write_text(json.dumps(content))
        with pytest.raises(ValueError, match=r"is \[0, 0, .*\.\.\.\], want") as error:
            load(path)
        assert len(str(error.value)) < 500

    def test_that_are_not_there(self, tmp_path):
        with pytest.raises(FileNotFoundError):
            load(tmp_path / "a.json")

    def test_control_without_a_change_it_loads(self, tmp_path):
        save(preset("book-pcie4"), tmp_path / "a.json")
        content = json.loads((tmp_path / "a.json").read_text())
        (tmp_path / "b.json").write_text(json.dumps(content))
        assert same(load(tmp_path / "b.json"), preset("book-pcie4"))
