"""One node of a chaos cluster: what `raftkv serve` runs, over a disk that can fail.

    python -m bench.chaos.node FILE        FILE: a `NodeSetup` as JSON

The node, its state machine, its door and its loop are those of production; only its files come
from files.py. Beside etcd's words the door answers

    GET  /v1/chaos/digest      {"index": ..., "digest": ...}: the whole state at this index
    GET  /v1/chaos/lease/KEY   the key as a lease read finds it (`raft.lease_ms` must be set)
    GET  /v1/chaos/callers     what the callers inside this process have seen, see `Callers`

The process dies with the one that started it, so that nothing outlives a run that was killed.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ctypes
import logging
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import msgspec
import uvloop

from bench.chaos.files import Books, FaultyFiles
from raftkv.config import NodeConfig, parse_address
from raftkv.errors import RaftkvError
from raftkv.kv import RangeOp
from raftkv.node import Node
from raftkv.plugin import Request, Response, Route
from raftkv.runtime import OsRuntime, ProtocolFactory
from raftkv.server import App, Door

__all__ = ["EXIT_FAULT", "NodeSetup", "main"]

EXIT_FAULT = 3
"""The node has stopped itself; the reason is the last line of its log."""

KEYS_PER_CALLER = 16
ACKNOWLEDGED_KEPT = 20_000
PR_SET_PDEATHSIG = 1

_log = logging.getLogger("bench.chaos.node")


class NodeSetup(msgspec.Struct, frozen=True, kw_only=True):
    """`control` and `strikes` as in files.py; `books` None: no power will be cut.

    `source_host` is the loopback address that it dials from, so that the proxy knows it by it.
    `callers` put in a closed loop inside this process, as a program that embeds the node would.
    """

    node: NodeConfig
    control: str
    strikes: str
    books: str | None = None
    source_host: str | None = None
    callers: int = 0
    value_bytes: int = 64


class ChaosRuntime(OsRuntime):
    """The real world, with files that can fail, dialling from an address of this node's own."""

    def __init__(self, files: FaultyFiles, source_host: str | None) -> None:
        super().__init__()
        self.files = files
        self._local = None if source_host is None else (source_host, 0)

    async def connect(self, factory: ProtocolFactory, host: str, port: int) -> asyncio.Transport:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(factory, host, port, local_addr=self._local)
        return transport


class Callers:
    """Puts in a closed loop, and when they were acknowledged.

    A caller has one put outstanding. `recent` holds (began, acknowledged) on the monotonic clock,
    which all processes of a machine share.
    """

    def __init__(self, node: Node, count: int, value_bytes: int) -> None:
        self._node = node
        self._value = bytes(value_bytes)
        self.count = count
        self.acknowledged = 0
        self.failed = 0
        self.recent: deque[tuple[float, float]] = deque(maxlen=ACKNOWLEDGED_KEPT)

    async def run(self) -> None:
        """Until it is cancelled."""
        with contextlib.suppress(RaftkvError):  # no leader yet: the callers themselves will wait
            await self._node.wait_ready()
        await asyncio.gather(*(self._call(number) for number in range(self.count)))

    async def _call(self, number: int) -> None:
        name = self._node.name.encode()
        keys = [b"callers/%b/%d/%d" % (name, number, n) for n in range(KEYS_PER_CALLER)]
        put, recent, turn = self._node.kv.put, self.recent, 0
        while True:
            began = time.monotonic()
            try:
                await put(keys[turn % KEYS_PER_CALLER], self._value)
            except RaftkvError:
                self.failed += 1
                await asyncio.sleep(0.001)  # one that comes at once must not hold up the loop
            else:
                self.acknowledged += 1
                recent.append((began, time.monotonic()))
            turn += 1


class Extras:
    """The routes that only a chaos node has."""

    def __init__(self, node: Node, callers: Callers) -> None:
        self._node = node
        self._callers = callers

    def routes(self) -> Sequence[Route]:
        return (
            Route("GET", "digest", self._digest, "The state's digest and its index."),
            Route("GET", "lease/{key}", self._lease, "A lease read of one key."),
            Route("GET", "callers", self._calls, "What the callers in here have seen."),
        )

    async def _digest(self, request: Request) -> Response:
        machine = self._node.machine
        while not machine.between_entries:
            await asyncio.sleep(0)
        return Response({"index": machine.index, "digest": machine.digest()})

    async def _lease(self, request: Request) -> Response:
        key = request.params["key"].encode()
        found = await self._node.kv.read(RangeOp(key), consistency="lease")
        value = base64.b64encode(found.kvs[0].value).decode() if found.kvs else None
        return Response({"value": value})

    async def _calls(self, request: Request) -> Response:
        since = float(request.query.get("since", "inf"))
        callers = self._callers
        acks = [ended for began, ended in callers.recent if began >= since]
        return Response(
            {
                "acknowledged": callers.acknowledged,
                "failed": callers.failed,
                "first": min(acks, default=None),
            }
        )


async def _serve(setup: NodeSetup, files: FaultyFiles) -> None:
    """Until it is cancelled, or until the node's fault, which it raises."""
    config = setup.node
    assert config.http_address is not None
    runtime = ChaosRuntime(files, setup.source_host)
    async with Node(config, runtime=runtime) as node:
        callers = Callers(node, setup.callers, setup.value_bytes)
        routes = {name: each.routes() for name, each in node.hosting.services.items()}
        routes["chaos"] = Extras(node, callers).routes()
        door = Door(App(node, routes=routes), *parse_address(config.http_address))
        await door.start()
        calling = asyncio.ensure_future(callers.run())
        try:
            raise await node.fault
        finally:
            calling.cancel()
            await door.stop()


async def _until_signal(setup: NodeSetup, files: FaultyFiles) -> None:
    loop = asyncio.get_running_loop()
    signalled = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, signalled.set)
    serving = loop.create_task(_serve(setup, files))
    asked = loop.create_task(signalled.wait())
    await asyncio.wait({serving, asked}, return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    serving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await serving


def _die_with_parent() -> None:
    """Linux ends this process with its parent, even while it is stopped (SIGSTOP)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main(arguments: Sequence[str]) -> int:
    """Run one node to its end."""
    _die_with_parent()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    setup = msgspec.json.decode(Path(arguments[0]).read_bytes(), type=NodeSetup)
    books = None if setup.books is None else Books(setup.books)
    files = FaultyFiles(setup.control, setup.strikes, books)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_until_signal(setup, files))
    except RaftkvError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        # A sync that hangs in the node's own thread must not keep the process.
        os._exit(EXIT_FAULT)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
