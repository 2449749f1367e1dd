"""Network namespaces as machines at one switch, on links that tc's token buckets slow down.

Needs Linux, root, and the commands ip, tc (Debian: iproute2) and unshare.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from filelock import FileLock  # torch brings it

PORT = 29400
BRIDGE = "fastreduce"  # and with a number each machine
FILES = Path("/etc/netns")  # what is below FILES / name stands for /etc in that namespace


def missing_commands() -> str:
    """What this needs and this machine has not; empty if nothing is missing."""
    missing = [name for name in ("ip", "tc", "unshare") if shutil.which(name) is None]
    return ", ".join(["root"] * (os.geteuid() != 0) + missing)


def shell(line: str) -> None:
    subprocess.run(line.split(), check=True)


@contextlib.contextmanager
def namespaces(count: int, rate_mbit: int) -> Iterator[list[str]]:
    """Names of network namespaces at one bridge; gone when the context ends."""
    names = [f"{BRIDGE}{i}" for i in range(count)]
    bucket = f"root tbf rate {rate_mbit}mbit burst 128kb latency 100ms"
    with FileLock(Path(tempfile.gettempdir(), "fastreduce-namespaces.lock")):
        _remove()
        try:
            shell(f"ip link add {BRIDGE} type bridge")
            shell(f"ip link set {BRIDGE} up")
            for i, name in enumerate(names):
                (FILES / name).mkdir(parents=True)
                hosts = [f"{address(j)} {other}" for j, other in enumerate(names)]
                (FILES / name / "hosts").write_text("\n".join(["127.0.0.1 localhost", *hosts, ""]))
                shell(f"ip netns add {name}")
                shell(f"ip link add {name} type veth peer name eth0 netns {name}")
                shell(f"ip link set {name} master {BRIDGE} up")
                shell(f"ip -n {name} addr add {address(i)}/24 dev eth0")
                shell(f"ip -n {name} link set eth0 up")
                shell(f"ip -n {name} link set lo up")
                shell(f"tc qdisc add dev {name} {bucket}")
                shell(f"tc -n {name} qdisc add dev eth0 {bucket}")
            yield names
        finally:
            _remove()


def _remove() -> None:
    """All of them, also what a run left that was killed: who holds the lock uses none."""
    for files in FILES.glob(f"{BRIDGE}[0-9]*"):
        # The link goes at once; with its namespace it would later.
        for line in (f"ip link del {files.name}", f"ip netns del {files.name}"):
            subprocess.run(line.split(), stderr=subprocess.DEVNULL)
        shutil.rmtree(files)
    subprocess.run(["ip", "link", "del", BRIDGE], stderr=subprocess.DEVNULL)


def address(machine: int) -> str:
    return f"10.77.0.{machine + 1}"


def cut_off(name: str) -> None:
    shell(f"ip -n {name} link set eth0 down")


def start_in(
    name: str, command: Sequence[str], variables: Mapping[str, object], *apart: str
) -> subprocess.Popen[bytes]:
    """A process of that machine, of its name; ``apart`` are more of unshare's options."""
    found = {"MASTER_ADDR": address(0), "MASTER_PORT": PORT, "GLOO_SOCKET_IFNAME": "eth0"}
    found["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # there is no name server
    environment = {**os.environ, **{key: str(x) for key, x in {**found, **variables}.items()}}
    named = f'hostname {name} && exec "$@"'
    inside = ["ip", "netns", "exec", name, "unshare", "--uts", *apart, "sh", "-c", named, "sh"]
    return subprocess.Popen([*inside, *command], env=environment)
