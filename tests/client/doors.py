"""Clusters with doors, and a proxy before a door that a test can make fail in every way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

from raftkv.config import RaftTimes
from raftkv.node import Node
from raftkv.server import App, Door
from raftkv.server.members import member_routes
from raftkv.server.sessions import Sessions
from raftkv.testing.local_cluster import LocalCluster

QUICK = RaftTimes(
    heartbeat_ms=50,
    election_timeout_min_ms=400,
    election_timeout_max_ms=800,
    resend_ms=300,
)


class Proxy:
    """Stands between clients and one door. `mode` is looked at for every piece of data:

    "pass"      both ways
    "drop"      requests reach the door, its answers reach nobody and the connection is closed
    "hang"      requests reach the door, nothing comes back, ever
    "refuse"    connections are closed at once
    """

    def __init__(self, port: int) -> None:
        self._door_port = port
        self._port = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.mode = "pass"
        self.dropped = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Close every connection that stands."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            if self.mode == "refuse":
                return
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._door_port)
            try:
                await self._both_ways(reader, writer, up_reader, up_writer)
            finally:
                up_writer.close()
        except (OSError, asyncio.CancelledError):
            return
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            writer.close()

    async def _both_ways(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        up_reader: asyncio.StreamReader,
        up_writer: asyncio.StreamWriter,
    ) -> None:
        ways = (
            asyncio.create_task(self._up(reader, up_writer)),
            asyncio.create_task(self._down(up_reader, writer)),
        )
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()

    async def _down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if self.mode == "pass":
                writer.write(data)
                await writer.drain()
                continue
            self.dropped += 1
            if self.mode == "hang":
                await asyncio.Event().wait()
            return


class Served:
    """The doors of a cluster, by the names of its nodes; a proxy before each."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.doors: dict[str, Door] = {}
        self.proxies: dict[str, Proxy] = {}
        self._stack = contextlib.AsyncExitStack()

    async def open(self, node: Node) -> None:
        """Put a door, and a proxy, before a running node."""
        sessions = Sessions(node)
        plugins = {name: each.routes() for name, each in node.hosting.services.items()}
        routes = {**plugins, "members": member_routes(node), **sessions.routes()}
        door = Door(App(node, routes=routes, sessions=sessions), "127.0.0.1", 0)
        await door.start()
        self.doors[node.name] = door
        self.proxies[node.name] = await self._stack.enter_async_context(Proxy(door.port))

    async def kill(self, name: str) -> None:
        """End a node and its door, as a crash does."""
        self.proxies[name].mode = "refuse"
        self.proxies[name].cut()
        await self.cluster.kill(name)
        await self.doors.pop(name).stop()

    async def close(self) -> None:
        await self._stack.aclose()
        await asyncio.gather(*(door.stop() for door in self.doors.values()))

    @property
    def urls(self) -> list[str]:
        """The proxies', in the order of the nodes."""
        return [proxy.url for proxy in self.proxies.values()]


@contextlib.asynccontextmanager
async def served(cores: int = 3, replicants: int = 0, **options: Any) -> AsyncIterator[Served]:
    """A ready cluster with doors."""
    options = {"fsync": "off", "raft": QUICK, **options}
    async with LocalCluster(cores, replicants, **options) as cluster:
        doors = Served(cluster)
        try:
            for node in cluster.nodes:
                await doors.open(node)
            yield doors
        finally:
            await doors.close()
