"""One node of `python -m bench pauses`: a process that does what it is told and watches its loop.

    python -m bench.pause_node CONFIG.json

One JSON object a line on the standard input and output, one answer for each request; the first
answer comes unasked, once the node is ready. The loop is watched from the start of the process
until the first `WatchStop`. It ends with its standard input.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from bench.control import LINE_BYTES_MAX
from bench.loopwatch import LoopWatch, Watched
from raftkv import Node, NodeConfig, tune_gc, use_huge_pages
from raftkv.errors import RaftkvError
from raftkv.kv import PutOp

__all__ = [
    "Answer",
    "Ask",
    "Ended",
    "Load",
    "Puts",
    "Setup",
    "Snapshot",
    "WatchStart",
    "WatchStop",
    "Where",
    "main",
]

TXN_PUTS = 32
"""Puts in one command while the keys are loaded: that takes a third of a millisecond to apply."""

LOADERS = 6
KEY = b"key-%010d"


class Setup(msgspec.Struct, frozen=True):
    """`tuned`: tune the collector and use huge pages, as `raftkv serve` does."""

    node: NodeConfig
    tuned: bool


class Load(msgspec.Struct, frozen=True, tag="load"):
    """Put this many keys, values of so many bytes."""

    keys: int
    value_bytes: int


class Puts(msgspec.Struct, frozen=True, tag="puts"):
    """Overwrite keys of the first `keys`, so many puts at once, for so long."""

    keys: int
    value_bytes: int
    seconds: float
    in_flight: int


class Snapshot(msgspec.Struct, frozen=True, tag="snapshot"):
    """Write a snapshot now; answered when it is in place and the log compacted."""


class Where(msgspec.Struct, frozen=True, tag="where"):
    """Ask for the node's position."""


class WatchStart(msgspec.Struct, frozen=True, tag="watch"):
    """Start watching the loop."""


class WatchStop(msgspec.Struct, frozen=True, tag="watched"):
    """Stop watching and tell."""


Ask = Load | Puts | Snapshot | Where | WatchStart | WatchStop


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What every request is answered with."""

    error: str = ""
    role: str = ""
    applied: int = 0
    keys: int = 0
    rss_mib: int = 0
    done: int = 0
    unswept: int = 0
    watched: Watched | None = None


class Ended(Exception):
    """The other side is gone."""


class PauseNode:
    """The node and what is asked of it."""

    def __init__(self, node: Node, watch: LoopWatch) -> None:
        self._node = node
        self._watch = watch

    async def handle(self, ask: Ask) -> Answer:
        done, watched = 0, None
        match ask:
            case Load():
                done = await self._load(ask)
            case Puts():
                done = await self._puts(ask)
            case Snapshot():
                await self._snapshot()
            case WatchStart():
                self._watch.start()
            case WatchStop():
                watched = self._watch.stop()
        return self.where(done=done, watched=watched)

    def where(self, **more: Any) -> Answer:
        node, status = self._node, self._node.status()
        return Answer(
            role=status.role,
            applied=node.machine.index,
            keys=len(node.machine.view("kv").table("keys")),
            rss_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            unswept=len(node.machine.waste),
            **more,
        )

    async def _load(self, load: Load) -> int:
        numbers = iter(range(0, load.keys, TXN_PUTS))

        async def loader() -> None:
            for first in numbers:
                last = min(load.keys, first + TXN_PUTS)
                puts = [PutOp(KEY % n, os.urandom(load.value_bytes)) for n in range(first, last)]
                await self._node.kv.txn(success=puts, timeout_s=60.0)

        await asyncio.gather(*(loader() for _ in range(LOADERS)))
        return load.keys

    async def _puts(self, puts: Puts) -> int:
        until, done = time.monotonic() + puts.seconds, 0

        async def caller(number: int) -> None:
            nonlocal done
            while time.monotonic() < until:
                number = (number * 7919 + 13) % puts.keys
                await self._node.kv.put(KEY % number, os.urandom(puts.value_bytes))
                done += 1

        await asyncio.gather(*(caller(number) for number in range(puts.in_flight)))
        return done

    async def _snapshot(self) -> None:
        engine = self._node._part.engine  # type: ignore[union-attr]
        engine.snapshotting.begin()
        while engine.snapshotting.writing:
            await asyncio.sleep(0.05)


async def _run(setup: Setup) -> None:
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    watch = LoopWatch()
    watch.start()
    async with Node(setup.node, plugins=[]) as node:
        await node.wait_ready(120.0)
        worker = PauseNode(node, watch)
        _say(worker.where())
        decode = msgspec.json.Decoder(Ask).decode
        while line := await reader.readline():
            try:
                answer = await worker.handle(decode(line))
            except RaftkvError as error:
                answer = Answer(error=f"{type(error).__name__}: {error}")
            _say(answer)


def _say(answer: Answer) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


def main() -> int:
    setup = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Setup)
    if setup.tuned:
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
