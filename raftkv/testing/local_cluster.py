"""A cluster inside one process, on loopback sockets and real files: for tests and for trying out.

    async with LocalCluster(cores=3, replicants=3) as cluster:
        await cluster.nodes[0].kv.put(b"k", b"v")
        await cluster.kill(cluster.leader().name)

All nodes share the event loop, so this is no place to measure speed. A killed node is stopped
without a word to anybody, and restarts from its directory.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import msgspec

from raftkv.cli.ports import free_ports
from raftkv.config import Limits, NodeConfig, RaftTimes
from raftkv.node import Node
from raftkv.plugin import Plugin
from raftkv.security.directory import certify
from raftkv.state.core import Core

__all__ = ["LocalCluster", "free_ports"]

Plugins = Sequence[type[Plugin[Any]] | Plugin[Any]]


class LocalCluster:
    """`cores` voters named core1.. and `replicants` copies named replicant1..

    `plugins` run beside the keyspace. `directory` is kept if it is given, else a temporary one is
    made and removed. `fsync`, `raft` and `limits` go into every node's configuration. With `tls`
    the nodes get certificates, in `<directory>/certs`.
    """

    def __init__(
        self,
        cores: int = 3,
        replicants: int = 0,
        *,
        plugins: Plugins = (),
        directory: str | None = None,
        fsync: str = "on",
        raft: RaftTimes | None = None,
        limits: Limits | None = None,
        tls: bool = False,
    ) -> None:
        self._tls = tls
        self._plugins = plugins
        self._own_directory = directory is None
        self.directory = directory or tempfile.mkdtemp(prefix="raftkv-")
        core_names = [f"core{number}" for number in range(1, cores + 1)]
        names = core_names + [f"replicant{number}" for number in range(1, replicants + 1)]
        addresses = {
            name: f"127.0.0.1:{port}"
            for name, port in zip(names, free_ports(len(names)), strict=True)
        }
        self.configs = {
            name: msgspec.convert(
                {
                    "name": name,
                    "role": "core" if name in core_names else "replicant",
                    "dir": f"{self.directory}/{name}",
                    "peer_address": addresses[name],
                    "cores": {core: addresses[core] for core in core_names},
                    "fsync": fsync,
                    "plugins": (),
                },
                NodeConfig,
            )
            for name in names
        }
        for name, config in self.configs.items():
            self.configs[name] = msgspec.structs.replace(
                config, raft=raft or config.raft, limits=limits or config.limits
            )
        self._certify(names)
        self.running: dict[str, Node] = {}
        #: The newest core format that a node knows, where that is not the one of this code.
        self.core_formats: dict[str, int] = {}

    @property
    def certificates(self) -> str:
        """With `tls`: the directory that `raftkv certs` works on."""
        return f"{self.directory}/certs"

    def _certify(self, names: Sequence[str]) -> None:
        """With `tls`: give these nodes certificates."""
        if not self._tls:
            return
        made = certify(self.certificates, self.configs["core1"].cluster, names, ["127.0.0.1"])
        for name in names:
            self.configs[name] = msgspec.structs.replace(self.configs[name], tls=made[name])

    async def __aenter__(self) -> LocalCluster:
        try:
            await asyncio.gather(*(self.start(name) for name in self.configs))
            await self.wait_ready()
            await self._acquainted()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop all nodes; remove the directory if it was made here."""
        # No office is handed over where everybody goes: the leader would wait for an heir in vain.
        await asyncio.gather(*(node.stop(hand_over=False) for node in self.running.values()))
        self.running.clear()
        if self._own_directory:
            shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def nodes(self) -> list[Node]:
        """The running nodes, cores first."""
        return [self.running[name] for name in self.configs if name in self.running]

    @property
    def cores(self) -> list[Node]:
        return [node for node in self.nodes if node.role == "core"]

    @property
    def replicants(self) -> list[Node]:
        return [node for node in self.nodes if node.role == "replicant"]

    def leader(self) -> Node | None:
        """The running core that leads the highest term, if one does."""
        leaders = [node for node in self.cores if node.status().role == "leader"]
        return max(leaders, key=lambda node: node.status().term, default=None)

    async def start(self, name: str) -> Node:
        """Start a node that is not running. It may not be ready yet when this returns."""
        newest = self.core_formats.get(name, Core.version)
        node = Node(self.configs[name], plugins=self._plugins, core_format_max=newest)
        self.running[name] = node
        await node.start()
        return node

    async def start_new_core(self, name: str) -> Node:
        """Start a core with an empty directory that knows the others; nobody has added it yet."""
        address = f"127.0.0.1:{free_ports(1)[0]}"
        template = self.configs["core1"]
        self.configs[name] = msgspec.structs.replace(
            template,
            name=name,
            dir=f"{self.directory}/{name}",
            peer_address=address,
            cores={**template.cores, name: address},
        )
        self._certify([name])
        return await self.start(name)

    async def kill(self, name: str) -> None:
        """End a node without a clean shutdown of its office."""
        await self.running.pop(name).stop(hand_over=False)

    async def restart(self, name: str) -> Node:
        """Kill if it runs, start from the same directory, wait until it is ready."""
        if name in self.running:
            await self.kill(name)
        node = await self.start(name)
        await node.wait_ready()
        return node

    async def wait_ready(self, timeout_s: float = 30.0) -> None:
        """Return once every running node has a session."""
        await asyncio.gather(*(node.wait_ready(timeout_s) for node in self.nodes))

    async def _acquainted(self, timeout_s: float = 30.0) -> None:
        """Return once every running node knows every other one, and all use the same formats.

        A node that is ready knows itself. Until it has applied the start of another one, it has no
        address for a call to it; until a raise of the formats, it decides as a former release.
        """
        async with asyncio.timeout(timeout_s):
            while True:
                if all(self._knows_all(node) and self._is_raised(node) for node in self.nodes):
                    return
                await asyncio.sleep(0.005)

    def _knows_all(self, node: Node) -> bool:
        members = node.machine.members
        return all(
            other.name in members and members[other.name].incarnation >= other.incarnation
            for other in self.nodes
        )

    def _is_raised(self, node: Node) -> bool:
        """Whether it uses the newest formats of plugins that all running nodes know.

        A node that stands for a former release may hold that up for good.
        """
        if self.core_formats:
            return True
        known = [other.machine.plugin_versions for other in self.nodes]
        newest = {name: min(each.get(name, 0) for each in known) for name in known[0]}
        active = node.machine.active_versions
        return all(active.get(name, 0) >= version for name, version in newest.items())

    async def converge(self, timeout_s: float = 10.0) -> int:
        """Wait until every running node has applied what the leader has; returns the index."""
        async with asyncio.timeout(timeout_s):
            while True:
                indexes = {node.machine.index for node in self.nodes}
                commits = {node.status().commit_index for node in self.cores}
                if len(indexes) == 1 and indexes == commits:
                    return indexes.pop()
                await asyncio.sleep(0.005)
