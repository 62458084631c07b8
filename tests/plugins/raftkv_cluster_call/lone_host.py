"""A node without a log, for what needs only a disk, a clock and calls to other such nodes.

    hosts = Hosts("n1", "n2")
    hosts["n1"].rpc.register("echo", answer)

The disk is simulated: `host.disk.crash()` loses what was not synced, and a new `LoneHost` on the
same disk is the node after its restart. The view is a set of dicts that the test fills in.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from typing import Any

import msgspec

from raftkv.errors import PeerUnreachable, RemoteFailed, Timeout
from raftkv.plugin import Member
from raftkv.testing.disk import SimDisk

NETWORK_S = 0.001


class LoneRuntime:
    """The part of a `Runtime` that the plugins use, on the running (virtual) loop."""

    def __init__(self, disk: SimDisk, seed: int) -> None:
        self.files = disk
        self.rng = random.Random(seed)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def token(self, count: int) -> bytes:
        return self.rng.randbytes(count)

    def call_later(
        self, delay_s: float, callback: Callable[..., object], *args: Any
    ) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(delay_s, callback, *args)

    def offload(self, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        return asyncio.ensure_future(self._offloaded(function, *args))

    offload_bulk = offload

    async def _offloaded(self, function: Callable[..., Any], *args: Any) -> Any:
        await asyncio.sleep(NETWORK_S)
        return function(*args)

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)


class LoneRpc:
    def __init__(self, hosts: Hosts, name: str) -> None:
        self._hosts = hosts
        self._name = name
        self.handlers: dict[str, Callable[[str, bytes], Awaitable[bytes]]] = {}

    def register(self, method: str, handler: Callable[[str, bytes], Awaitable[bytes]]) -> None:
        self.handlers[method] = handler

    async def call(self, node: str, method: str, payload: bytes, timeout_s: float) -> bytes:
        self._hosts.asked.append((node, method))
        await asyncio.sleep(NETWORK_S)
        target = self._hosts.get(node)
        if target is None or not target.up:
            raise PeerUnreachable(f"{node} cannot be reached")
        if self._hosts.mishap(node, method):
            await asyncio.sleep(timeout_s)
            raise Timeout(f"{node} did not answer")
        try:
            async with asyncio.timeout(timeout_s):
                reply = await target.rpc.handlers[method](self._name, payload)
        except TimeoutError:
            raise Timeout(f"{node} did not answer") from None
        except Exception as error:
            raise RemoteFailed(f"{type(error).__name__}: {error}") from error
        return self._hosts.damage(node, method, reply)


class LoneView:
    """Tables as dicts; enough of a `TableView` for reading."""

    def __init__(self) -> None:
        self.index = 1
        self.now = 0
        self.members: dict[str, Member] = {}
        self.settings: dict[str, Any] = {"replicants_take_part": False}
        self.tables: dict[str, dict[Any, Any]] = {"meta": {}, "cursors": {}, "records": {}}

    def table(self, name: str) -> LoneTable:
        return LoneTable(self.tables.setdefault(name, {}))


class LoneTable:
    def __init__(self, rows: Mapping[Any, Any]) -> None:
        self._rows = rows

    def get(self, key: Any, default: Any = None) -> Any:
        return self._rows.get(key, default)

    def scan(self, **ranges: Any) -> Iterator[tuple[Any, Any]]:
        assert not ranges
        return iter(sorted(self._rows.items()))


class LoneHost:
    """A `Host` without a log."""

    options: Any = None
    role = "core"
    incarnation = 1

    def __init__(self, hosts: Hosts, name: str, disk: SimDisk | None = None, seed: int = 0) -> None:
        self.name = name
        self.disk = SimDisk(random.Random(seed)) if disk is None else disk
        self.runtime: Any = LoneRuntime(self.disk, seed)
        self.rpc: Any = LoneRpc(hosts, name)
        self.log = logging.getLogger("raftkv.plugins.calls")
        self.up = True
        self.state = LoneView()

    @property
    def directory(self) -> str:
        path = f"/data/{self.name}/plugins/calls"
        self.disk.makedirs(path)
        return path

    @property
    def members(self) -> Mapping[str, Member]:
        return self.state.members

    def view(self, plugin: str | None = None) -> Any:
        return self.state

    def now_ms(self) -> int:
        return int(self.runtime.monotonic() * 1000)

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return asyncio.ensure_future(coroutine)

    async def propose(self, command: msgspec.Struct, *, timeout_s: float | None = None) -> Any:
        raise AssertionError(f"there is no log: {command}")


class Hosts(dict[str, LoneHost]):
    """Some of them, and the network between."""

    def __init__(self, *names: str, seed: int = 0) -> None:
        super().__init__()
        self.restarts = 0
        self.asked: list[tuple[str, str]] = []
        # Whether a call of (node, method) is lost.
        self.mishap: Callable[[str, str], bool] = lambda node, method: False
        # What arrives of a reply.
        self.damage: Callable[[str, str, bytes], bytes] = lambda node, method, reply: reply
        for number, name in enumerate(names):
            self[name] = LoneHost(self, name, seed=seed + number)

    def restart(self, name: str) -> LoneHost:
        """The node after a power cut: a new process, what the disk kept, the same tables."""
        former = self[name]
        former.disk.crash()
        self.restarts += 1
        host = LoneHost(self, name, former.disk, 1000 * self.restarts)
        host.state = former.state
        self[name] = host
        return host
