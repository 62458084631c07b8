"""A core with a door, and callers inside it: the process of `bench.embedding`.

    python -m bench.embedded_node SETUP.json

One JSON object a line on the standard input and output, one answer for each request; the first
answer comes unasked, once the node is ready. It ends with its standard input.
"""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from bench.control import LINE_BYTES_MAX
from bench.limbo_asked import (
    Fates,
    LimboAsk,
    LimboTold,
    Own,
    SeenHere,
    WriteOnce,
    WriteOwnKeys,
    limbo_answer,
)
from bench.orders import Order, chooser
from bench.peers.callers import ReadCheckWrite, Took, read_check_write
from bench.runner.product import door_of
from bench.txqueue_asked import (
    ConsumeBatches,
    MakeQueue,
    ProduceBatches,
    PurgeQueue,
    QueueDepth,
    TxqueueAsk,
    TxqueueTold,
    txqueue_answer,
)
from raftkv import Node, NodeConfig, tune_gc, use_huge_pages
from raftkv.errors import RaftkvError
from raftkv.kv import Compare, PutOp, RangeOp, RangeResult
from raftkv.plugin import Consistency

if TYPE_CHECKING:
    from raftkv_lcr import LcrApi
    from raftkv_limbo import LimboApi
    from raftkv_txqueue import TxQueueApi

__all__ = [
    "Answer",
    "Ask",
    "Cas",
    "Gets",
    "Load",
    "Puts",
    "Setup",
    "Snapshot",
    "Watchers",
    "Where",
    "main",
]

TXN_PUTS = 32
"""Puts in one command while the keys are loaded."""

LOADERS = 6
KEY = b"key-%010d"
HOT = b"hot"


class Setup(msgspec.Struct, frozen=True):
    """The process's file. `registry`: run the Linear Channel Registry, too; `limbo`: the limbo;
    `txqueue`: the queues."""

    node: NodeConfig
    registry: bool = False
    limbo: bool = False
    txqueue: bool = False


class Load(msgspec.Struct, frozen=True, tag="load"):
    """Put this many keys, values of so many bytes; `done` tells how many."""

    keys: int
    value_bytes: int


class Puts(msgspec.Struct, frozen=True, tag="puts"):
    """Overwrite keys of the first `keys`, so many puts at once, for so long."""

    keys: int
    value_bytes: int
    seconds: float
    in_flight: int
    order: Order = "uniform"


class Gets(msgspec.Struct, frozen=True, tag="gets"):
    """Get keys of the first `keys`, so many at once, for so long."""

    keys: int
    seconds: float
    in_flight: int
    consistency: Consistency = "linearizable"
    order: Order = "uniform"


class Cas(msgspec.Struct, frozen=True, tag="cas"):
    """So many callers compare and swap ONE key; `won` tells how often one of them did.

    `in_log` is the second way of bench/cas.py.
    """

    callers: int
    seconds: float
    in_log: bool = False


class Watchers(msgspec.Struct, frozen=True, tag="watchers"):
    """Have so many watchers, each on a key of its own among the first `keys`; 0 ends them."""

    count: int
    keys: int


class Snapshot(msgspec.Struct, frozen=True, tag="snapshot"):
    """Write a snapshot now; answered when it is in place."""


class Where(msgspec.Struct, frozen=True, tag="where"):
    """Ask for the node's position only."""


Ask = (
    Load | Puts | Gets | Cas | ReadCheckWrite | Watchers | Snapshot | Where | LimboAsk | TxqueueAsk
)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What every request is answered with. Latencies are of the single calls."""

    error: str = ""
    role: str = ""
    endpoint: str = ""
    applied: int = 0
    keys: int = 0
    rss_bytes: int = 0
    # Processor time of the whole process so far.
    cpu_s: float = 0.0
    snapshotting: bool = False
    snapshots: int = 0
    done: int = 0
    won: int = 0
    seconds: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    max_ms: float = 0.0
    file_bytes: int = 0
    took: Took = Took()
    limbo: LimboTold = LimboTold()
    txqueue: TxqueueTold = TxqueueTold()


class EmbeddedNode:
    """The node and what is asked of it."""

    def __init__(
        self,
        node: Node,
        endpoint: str,
        lcr: LcrApi | None = None,
        limbo: LimboApi | None = None,
        txqueue: TxQueueApi | None = None,
    ) -> None:
        self._node = node
        self._endpoint = endpoint
        self._lcr = lcr
        self._limbo = limbo
        self._txqueue = txqueue
        self._watchers: list[asyncio.Task[None]] = []

    async def handle(self, ask: Ask) -> Answer:
        began_s = time.perf_counter()
        more: dict[str, Any] = {}
        match ask:
            case Load():
                await self._load(ask)
                more["done"] = ask.keys
            case Puts():
                more = await self._puts(ask)
            case Gets():
                more = await self._gets(ask)
            case Cas():
                more = await self._cas(ask)
            case ReadCheckWrite():
                more["took"] = await read_check_write(self._node, self._lcr, ask)
            case Watchers():
                await self._watch(ask)
            case Snapshot():
                more["file_bytes"] = await self._snapshot()
            case Own() | WriteOwnKeys() | WriteOnce() | Fates() | SeenHere():
                assert self._limbo is not None, "the node runs without the limbo"
                more["limbo"] = await limbo_answer(self._node, self._limbo, ask)
            case MakeQueue() | PurgeQueue() | QueueDepth() | ProduceBatches() | ConsumeBatches():
                assert self._txqueue is not None, "the node runs without the queues"
                more["txqueue"] = await txqueue_answer(self._txqueue, ask)
        return self.where(seconds=time.perf_counter() - began_s, **more)

    def where(self, **more: Any) -> Answer:
        node = self._node
        return Answer(
            role=node.status().role,
            endpoint=self._endpoint,
            applied=node.machine.index,
            keys=len(node.machine.view("kv").table("keys")),
            rss_bytes=_rss_bytes(),
            cpu_s=time.process_time(),
            snapshotting=self._snapshotting.writing,
            snapshots=self._snapshots,
            **more,
        )

    async def _load(self, load: Load) -> None:
        numbers = iter(range(0, load.keys, TXN_PUTS))

        async def loader() -> None:
            for first in numbers:
                last = min(load.keys, first + TXN_PUTS)
                puts = [PutOp(KEY % n, os.urandom(load.value_bytes)) for n in range(first, last)]
                await self._node.kv.txn(success=puts, timeout_s=60.0)

        await asyncio.gather(*(loader() for _ in range(LOADERS)))

    async def _puts(self, puts: Puts) -> dict[str, Any]:
        put, value = self._node.kv.put, os.urandom(puts.value_bytes)

        async def call(number: int) -> Any:
            return await put(KEY % number, value)

        choose = chooser(puts.order, puts.keys)
        return await _closed_loop(call, puts.in_flight, puts.seconds, choose)

    async def _gets(self, gets: Gets) -> dict[str, Any]:
        get, consistency = self._node.kv.get, gets.consistency

        async def call(number: int) -> Any:
            return await get(KEY % number, consistency=consistency)

        choose = chooser(gets.order, gets.keys)
        return await _closed_loop(call, gets.in_flight, gets.seconds, choose)

    async def _cas(self, cas: Cas) -> dict[str, Any]:
        """See bench/cas.py for the two ways."""
        txn, won, tried = self._node.kv.txn, 0, 0
        first = await self._node.kv.put(HOT, b"0")
        until_s = time.perf_counter() + cas.seconds
        exists = Compare(HOT, "version", ">", 0)

        async def caller(number: int) -> None:
            nonlocal won, tried
            known, put = first.revision, PutOp(HOT, b"%d" % number, prev_kv=cas.in_log)
            while time.perf_counter() < until_s:
                holds = exists if cas.in_log else Compare(HOT, "mod", "=", known)
                result = await txn([holds], [put], [RangeOp(HOT)])
                tried += 1
                if result.succeeded:
                    won += 1
                    known = result.revision
                else:
                    found = result.results[0]
                    assert isinstance(found, RangeResult)
                    known = found.kvs[0].mod_revision

        await asyncio.gather(*(caller(number) for number in range(cas.callers)))
        return {"done": tried, "won": won}

    async def _watch(self, wanted: Watchers) -> None:
        for task in self._watchers:
            task.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        self._watchers.clear()
        created: list[asyncio.Future[None]] = []

        async def watcher(number: int, ready: asyncio.Future[None]) -> None:
            async with self._node.kv.watch(KEY % number) as watch:
                await watch.created()
                ready.set_result(None)
                async for _ in watch:
                    pass

        loop = asyncio.get_running_loop()
        for number in range(wanted.count):
            ready: asyncio.Future[None] = loop.create_future()
            created.append(ready)
            self._watchers.append(loop.create_task(watcher(number % wanted.keys, ready)))
            if number % 1000 == 999:
                await asyncio.gather(*created[-1000:])
        await asyncio.gather(*created)

    @property
    def _engine(self) -> Any:
        return self._node._part.engine  # type: ignore[union-attr]

    @property
    def _snapshotting(self) -> Any:
        return self._engine.snapshotting

    @property
    def _snapshots(self) -> int:
        """Snapshots begun so far."""
        return int(self._engine.counts.snapshots_written + self._snapshotting.writing)

    async def _snapshot(self) -> int:
        self._snapshotting.begin()
        while self._snapshotting.writing:
            await asyncio.sleep(0.01)
        files = Path(self._node.config.dir).rglob("*.snap")
        newest = max(files, key=lambda path: path.stat().st_mtime, default=None)
        return newest.stat().st_size if newest is not None else 0


async def _closed_loop(
    call: Callable[[int], Awaitable[Any]],
    in_flight: int,
    seconds: float,
    choose: Callable[[], Callable[[], int]],
) -> dict[str, Any]:
    """So many callers, each with one call outstanding on the key that `choose` gives it."""
    took_s: list[float] = []
    clock, add = time.perf_counter, took_s.append
    until_s = clock() + seconds

    async def caller() -> None:
        number = choose()
        began_s = clock()
        while began_s < until_s:
            await call(number())
            ended_s = clock()
            add(ended_s - began_s)
            began_s = ended_s

    await asyncio.gather(*(caller() for _ in range(in_flight)))
    took_s.sort()
    return {
        "done": len(took_s),
        "p50_ms": statistics.median(took_s) * 1000,
        "p99_ms": took_s[int(len(took_s) * 0.99)] * 1000,
        "max_ms": took_s[-1] * 1000,
    }


def _rss_bytes() -> int:
    """Resident memory now, not at its highest."""
    pages = int(Path("/proc/self/statm").read_bytes().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def _run(setup: Setup) -> None:
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    apis: dict[str, Any] = {}  # the plugin, then what the node has of it
    if setup.registry:
        from raftkv_lcr import LCR

        apis["lcr"] = LCR
    if setup.limbo:
        from raftkv_limbo import Limbo

        apis["limbo"] = Limbo
    if setup.txqueue:
        from raftkv_txqueue import TxQueue

        apis["txqueue"] = TxQueue
    async with Node(setup.node, plugins=list(apis.values())) as node:
        await node.wait_ready(120.0)
        door = door_of(node, version="bench")
        await door.start()
        try:
            apis = {name: node.plugin(plugin) for name, plugin in apis.items()}
            worker = EmbeddedNode(node, door.endpoint, **apis)
            _say(worker.where())
            decode = msgspec.json.Decoder(Ask).decode
            while line := await reader.readline():
                try:
                    answer = await worker.handle(decode(line))
                except RaftkvError as error:
                    answer = Answer(error=f"{type(error).__name__}: {error}")
                _say(answer)
        finally:
            await door.stop()


def _say(answer: Answer) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


def main() -> int:
    """Run one node to the end of its standard input."""
    setup = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Setup)
    tune_gc()
    use_huge_pages()
    try:
        import uvloop

        factory: Any = uvloop.new_event_loop
    except ImportError:
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_run(setup))
    # What is left of a million rows need not be freed one by one.
    gc.disable()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
