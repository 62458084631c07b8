"""Concurrent clients of a cluster's doors, and the books they keep of what they were told.

The books are the point: a test may ask of the cluster only what it has promised to a client, so
every answer is filed as one of three. *Acknowledged* must be there for ever. *Denied* (a NotApplied
answer, or a connection that was never made) must not be there. *Unknown* (a lost connection, a
deadline) may be either.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

from raftkv.cli.devcluster import DevCluster

# Far beyond any election or restart: what takes longer hangs.
DEADLINE_S = 60.0
REQUEST_TIMEOUT_S = 15.0
# A client whose node is down looks again after this.
RETRY_S = 0.05

# The `reason` of every answer that promises that nothing was and nothing will be applied.
NOT_APPLIED = {
    "not_applied",
    "overloaded",
    "no_leader",
    "too_large",
    "stopped",
    "read_timeout",
    "peer_unreachable",
}


class Denied(Exception):
    """Nothing happened and nothing will."""


class Unknown(Exception):
    """It may have happened."""


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


class HttpClient:
    """One kept-alive connection to one door, opened again when it was lost."""

    def __init__(self, endpoint: str) -> None:
        host, _, port = endpoint.removeprefix("http://").rpartition(":")
        self._address = host, int(port)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def request(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """The status and body of the answer. Raises `Denied` if nothing was sent, or `Unknown`."""
        if self._streams is None:
            try:
                self._streams = await asyncio.open_connection(*self._address)
            except OSError as error:
                raise Denied(f"not connected: {error}") from None
        reader, writer = self._streams
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: [::1]\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                writer.write(head.encode("ascii") + body)
                return await self._answer(reader)
        except (OSError, EOFError, TimeoutError) as error:
            # Whatever still comes on this connection answers a request that was given up.
            self.close()
            raise Unknown(f"no answer: {error!r}") from None

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[int, bytes]:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("ascii").lower()
        status, *headers = head.split("\r\n")
        fields = dict(line.split(": ", 1) for line in headers if line)
        body = await reader.readexactly(int(fields["content-length"]))
        if fields.get("connection") == "close":
            self.close()
        return int(status.split(" ")[1]), body

    async def call(self, path: str, body: dict[str, Any]) -> Any:
        """POST one of etcd's words: its answer, or `Denied` or `Unknown`."""
        status, raw = await self.request("POST", path, json.dumps(body).encode())
        answer = json.loads(raw) if raw else {}
        if status == 200:
            return answer
        reason = answer.get("reason", "")
        if reason in NOT_APPLIED:
            raise Denied(f"{status} {reason}")
        raise Unknown(f"{status} {raw.decode()}")

    async def put(self, key: bytes, value: bytes) -> int:
        """Write a key; the revision."""
        answer = await self.call("/v3/kv/put", {"key": b64(key), "value": b64(value)})
        return int(answer["header"]["revision"])

    async def get(self, key: bytes) -> bytes | None:
        """Read a key, linearizably."""
        found = (await self.call("/v3/kv/range", {"key": b64(key)})).get("kvs", [])
        return base64.b64decode(found[0].get("value", "")) if found else None

    async def scan(self, prefix: bytes) -> dict[bytes, tuple[bytes, int]]:
        """All keys with the prefix, linearizably: key -> (value, version)."""
        end = prefix[:-1] + bytes([prefix[-1] + 1])
        answer = await self.call("/v3/kv/range", {"key": b64(prefix), "range_end": b64(end)})
        return {
            base64.b64decode(kv["key"]): (base64.b64decode(kv["value"]), int(kv["version"]))
            for kv in answer.get("kvs", [])
        }

    async def status(self) -> dict[str, Any]:
        """The node's status; raises as `request` does."""
        try:
            _, raw = await self.request("GET", "/v1/status")
        except Unknown:
            # The node may have been started again since this connection was last used.
            _, raw = await self.request("GET", "/v1/status")
        answer: dict[str, Any] = json.loads(raw)
        return answer

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


@contextlib.asynccontextmanager
async def clients(dev: DevCluster) -> AsyncIterator[dict[str, HttpClient]]:
    """One client for each node."""
    made = {name: HttpClient(dev.endpoint(name)) for name in dev.names}
    try:
        yield made
    finally:
        for client in made.values():
            client.close()


class Load:
    """Clients that put new keys through all nodes, without a pause, and file every answer."""

    def __init__(self, dev: DevCluster, prefix: bytes, clients_count: int) -> None:
        self._prefix = prefix
        self._numbers = itertools.count()
        self._progress = asyncio.Condition()
        self._stopping = False
        endpoints = dev.endpoints()
        self._clients = [HttpClient(endpoints[n % len(endpoints)]) for n in range(clients_count)]
        self._tasks: list[asyncio.Task[None]] = []
        self.acknowledged: set[bytes] = set()
        self.denied: set[bytes] = set()
        self.unknown: set[bytes] = set()

    async def __aenter__(self) -> Load:
        self._tasks = [asyncio.create_task(self._write(client)) for client in self._clients]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Let every client finish its request; afterwards the books are complete."""
        self._stopping = True
        await asyncio.gather(*self._tasks)
        for client in self._clients:
            client.close()

    async def _write(self, client: HttpClient) -> None:
        while not self._stopping:
            key = b"%b%06d" % (self._prefix, next(self._numbers))
            try:
                await client.put(key, value_of(key))
            except Denied:
                self.denied.add(key)
                await asyncio.sleep(RETRY_S)
            except Unknown:
                self.unknown.add(key)
                await asyncio.sleep(RETRY_S)
            else:
                self.acknowledged.add(key)
                async with self._progress:
                    self._progress.notify_all()

    async def acknowledges(self, count: int) -> None:
        """Return once `count` more writes have been acknowledged than now."""
        wanted = len(self.acknowledged) + count
        async with asyncio.timeout(DEADLINE_S), self._progress:
            await self._progress.wait_for(lambda: len(self.acknowledged) >= wanted)

    async def check(self, readers: Sequence[HttpClient]) -> None:
        """Compare the books with what every reader sees. The load must have been stopped."""
        seen = [await self._settled(reader) for reader in readers]
        for found in seen:
            keys = set(found)
            assert not self.acknowledged - keys, "acknowledged writes are lost"
            assert not self.denied & keys, "writes that were denied have been applied"
            assert not keys - self.acknowledged - self.unknown, "nobody wrote these"
            wrong = {key: v for key, v in found.items() if v != (value_of(key), 1)}
            assert not wrong, "other values than were written, or written more than once"
        assert all(found == seen[0] for found in seen), "the nodes do not agree"

    async def _settled(self, reader: HttpClient) -> dict[bytes, tuple[bytes, int]]:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                with contextlib.suppress(Denied, Unknown):  # just started again: not ready yet
                    return await reader.scan(self._prefix)
                await asyncio.sleep(RETRY_S)


def value_of(key: bytes) -> bytes:
    """What is written under a key: nobody can write it by mistake."""
    return b"value of " + key[::-1]
