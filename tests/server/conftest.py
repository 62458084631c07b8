"""A door on a free port, served by its own event loop in a thread."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from raftkv.kv import KVApi
from raftkv.plugin import Consistency
from raftkv.server import App, Door
from raftkv.server.tls import DoorTls
from tests.server.solo import SoloLeases, SoloMetrics, SoloNode, SoloQuotas, SoloStatus

START_TIMEOUT_S = 20.0


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


class Stand:
    """Stands at the door for one node after another: starting a server takes longer than a test."""

    def __init__(self) -> None:
        self.node = SoloNode()

    @property
    def kv(self) -> KVApi:
        return self.node.kv

    @property
    def leader(self) -> str | None:
        return self.node.leader

    @property
    def term(self) -> int:
        return self.node.term

    @property
    def leases(self) -> SoloLeases:
        return self.node.leases

    @property
    def metrics(self) -> SoloMetrics:
        return self.node.metrics

    @property
    def quotas(self) -> SoloQuotas:
        return self.node.quotas

    async def barrier(
        self, consistency: Consistency = "linearizable", *, timeout_s: float | None = None
    ) -> None:
        await self.node.barrier(consistency, timeout_s=timeout_s)

    def status(self) -> SoloStatus:
        return self.node.status()


class Served:
    """A served node, and requests to it."""

    def __init__(self, tls: DoorTls | None = None, **options: Any) -> None:
        self._stand = Stand()
        self._tls = tls
        self._options = options
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self.app: App
        self.door: Door

    @property
    def node(self) -> SoloNode:
        return self._stand.node

    def renew(self) -> None:
        """Put an empty node behind the door."""
        self._stand.node = SoloNode()
        self.run(self._start_watches())

    async def _start_watches(self) -> None:
        self._stand.node.start_watches()

    def start(self) -> None:
        self._thread.start()
        self.run(self._open())

    def run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(START_TIMEOUT_S)

    async def _open(self) -> None:
        self._stand.node.start_watches()
        self.app = App(self._stand, version="1.2.3", **self._options)
        self.door = Door(self.app, "127.0.0.1", 0, tls=self._tls)
        await self.door.start()

    def stop(self) -> None:
        self.run(self.door.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.door.port, timeout=10)

    def ask(
        self, method: str, path: str, body: bytes | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        connection = self.connect()
        try:
            connection.request(method, path, body)
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        """POST a JSON document (bytes go as they are); status and the decoded answer."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        status, _, answer = self.ask("POST", path, data)
        return status, json.loads(answer)

    def put(self, key: bytes, value: bytes) -> Any:
        status, answer = self.post("/v3/kv/put", {"key": b64(key), "value": b64(value)})
        assert status == 200, answer
        return answer


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    served = Served()
    served.start()
    yield served
    served.stop()


@pytest.fixture
def served(server: Served) -> Served:
    """An empty node behind a door with the default limits."""
    server.renew()
    return server
