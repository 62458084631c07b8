"""`Host.directory`: what a plugin keeps on a node, on real disks and on simulated ones."""

from __future__ import annotations

import asyncio
import os.path
from pathlib import Path
from typing import Any, ClassVar

from raftkv.plugin import Host, Plugin
from raftkv.testing import LocalCluster
from raftkv.testing.simulated import SimulatedCluster


class Keeper(Plugin[Host]):
    """Its API is its host."""

    name: ClassVar[str] = "keeper"

    def open(self, host: Host) -> Host:
        return host


class Other(Keeper):
    name: ClassVar[str] = "other"


def keep(host: Host, content: bytes) -> None:
    files, path = host.runtime.files, os.path.join(host.directory, "it")
    file = files.open(path, "w")
    file.write(content)
    file.datasync()
    file.close()
    files.sync_dir(host.directory)


def kept(host: Host) -> bytes:
    file = host.runtime.files.open(os.path.join(host.directory, "it"), "r")
    content = file.pread(0, file.size())
    file.close()
    return content


def test_each_plugin_has_a_directory_of_its_own_which_stays() -> None:
    async def body() -> None:
        plugins: list[Any] = [Keeper, Other]
        async with LocalCluster(cores=1, plugins=plugins, fsync="off") as cluster:
            node = cluster.nodes[0]
            keeper, other = node.plugin(Keeper), node.plugin(Other)
            data = Path(cluster.configs["core1"].dir)
            # Nobody has asked for one yet, so there is none.
            assert not (data / "plugins").exists()
            assert keeper.directory == str(data / "plugins" / "keeper")
            assert [path.name for path in (data / "plugins").iterdir()] == ["keeper"]
            assert other.directory == str(data / "plugins" / "other")
            keep(keeper, b"kept")
            node = await cluster.restart("core1")
            assert kept(node.plugin(Keeper)) == b"kept"

    asyncio.run(body())


def test_a_simulated_disk_keeps_it_through_a_power_cut_and_loses_what_was_not_synced() -> None:
    with SimulatedCluster(3, cores=1, plugins=[Keeper()], rate_per_s=1) as cluster:
        world = cluster.world

        def host() -> Host:
            found: Host = cluster.nodes["core1"].plugin(Keeper)
            return found

        machine = world.host("core1")
        machine.inside(lambda: keep(host(), b"synced"))

        def append() -> None:
            files = host().runtime.files
            files.open(os.path.join(host().directory, "it"), "a").write(b", lost")

        machine.inside(append)
        assert machine.inside(lambda: kept(host())) == b"synced, lost"
        assert host().directory == "/core1/plugins/keeper"
        # A machine's disk may keep of the rest what it likes.
        lost = 0
        for _ in range(8):
            before = machine.inside(lambda: kept(host()))
            world.crash("core1")
            cluster.nodes.clear()
            cluster.start("core1")
            world.wait(lambda: "core1" in cluster.nodes, 10, "the node")
            found = machine.inside(lambda: kept(host()))
            assert found.startswith(b"synced")
            lost += found != before
            machine.inside(append)
        assert lost
