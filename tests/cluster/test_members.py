"""The cores of a running cluster are changed from the command line while clients write.

One core joins, the leader is removed, a core that lost its disk is replaced, a replicant is
promoted and restarted with its old configuration; then a majority is lost and the cluster is
recovered from one directory. No acknowledged write is lost before that last step.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raftkv.cli import processes
from raftkv.cli.devcluster import DevCluster
from raftkv.cli.door_client import DoorClient
from raftkv.testing.local_cluster import free_ports
from tests.cluster.clients import DEADLINE_S, HttpClient, Load

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parent.parent.parent
CLIENTS = 16
PROGRESS = 60


@pytest.fixture
def dev(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DevCluster]:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'plugins'}")
    cluster = DevCluster(tmp_path / "members")
    cluster.create(cores=3, replicants=1, plugins=[])
    yield cluster
    cluster.down()


def raftkv(*arguments: str) -> Any:
    """Run the command; the JSON document it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "raftkv", *arguments, "--json"],
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def standings(document: Any) -> dict[str, str]:
    return {row["name"]: row["standing"] for row in document["members"]}


def start_core4(dev: DevCluster) -> tuple[subprocess.Popen[bytes], str]:
    """A core that stands in nobody's file but its own; its process and its endpoint."""
    text = Path(dev.config_path("core1")).read_text(encoding="utf-8")
    peer, door = (f"127.0.0.1:{port}" for port in free_ports(2))
    lines = []
    for line in text.splitlines():
        key = line.partition(" = ")[0]
        changed = {"name": "core4", "peer_address": peer, "http_address": door}
        lines.append(f'{key} = "{changed[key]}"' if key in changed else line)
    home = Path(dev.directory) / "core4"
    home.mkdir()
    config = home / "node.toml"
    config.write_text("\n".join([*lines, f'core4 = "{peer}"\n']), encoding="utf-8")
    command = [sys.executable, "-m", "raftkv"]
    child = processes.start(command, str(config), str(home / "log"))
    return child, f"http://{door}"


async def change_everything(dev: DevCluster, door4: str) -> str:
    """All the changes of the module's text, each while the load goes on; the core that stays."""
    at = ("--dir", dev.directory)

    async def verb(*arguments: str) -> dict[str, str]:
        return standings(await asyncio.to_thread(raftkv, "member", *arguments, *at))

    assert (await verb("add", "core4"))["core4"] == "voter"
    leader = await asyncio.to_thread(dev.leader)
    assert (await verb("remove", leader))[leader] == "removed"
    async with asyncio.timeout(DEADLINE_S):
        while dev.pid(leader) is not None:
            await asyncio.sleep(0.02)
    wiped, stays = (name for name in ("core1", "core2", "core3") if name != leader)
    await asyncio.to_thread(dev.kill_node, wiped)
    shutil.rmtree(dev.config(wiped).dir)
    assert (await verb("remove", wiped))[wiped] == "removed"
    await asyncio.to_thread(dev.start_node, wiped)
    assert (await verb("add", wiped))[wiped] == "voter"
    assert (await verb("promote", "replicant1"))["replicant1"] == "voter"
    await asyncio.to_thread(dev.kill_node, "replicant1")
    await asyncio.to_thread(dev.start_node, "replicant1")
    await asyncio.to_thread(dev.wait_writable, ["replicant1"], timeout_s=DEADLINE_S)
    found = await verb("list")
    voters = {name for name, standing in found.items() if standing == "voter"}
    assert voters == {"core4", wiped, stays, "replicant1"}
    async with Load(dev, b"last/", CLIENTS) as load:
        await load.acknowledges(PROGRESS)
    readers = [HttpClient(url) for url in (door4, dev.endpoint(wiped), dev.endpoint("replicant1"))]
    await load.check(readers)
    return stays


def test_the_cores_are_changed_under_load_and_recovered(dev: DevCluster) -> None:
    dev.up(timeout_s=DEADLINE_S)
    core4, door4 = start_core4(dev)

    async def whole() -> str:
        async with Load(dev, b"members/", CLIENTS) as load:
            await load.acknowledges(PROGRESS)
            stays = await change_everything(dev, door4)
            await load.acknowledges(PROGRESS)
        readers = [HttpClient(url) for url in (door4, dev.endpoint(stays))]
        await load.check(readers)
        for reader in readers:
            reader.close()
        return stays

    try:
        stays = asyncio.run(whole())
    finally:
        core4.kill()
        core4.wait()
    dev.down()
    after = raftkv("recover", "--dir", dev.config(stays).dir, "--force-new-cluster", "--yes")
    assert after["voters"] == [stays]
    dev.start_node(stays)
    door = DoorClient([dev.endpoint(stays)], timeout_s=DEADLINE_S)
    door.put(b"k", b"v")
    found = raftkv("member", "list", "--endpoint", dev.endpoint(stays))
    assert standings(found)[stays] == "voter"
    assert found["epoch"] == after["epoch"]
