"""Stands in for `python -m raftkv`: a node that embeds raftkv and counts without a pause.

Several tasks propose increments, each under a tag of its own, with deadlines so short that an
election makes many of them unknown; those are settled with `node.outcome`. Everything that the node
is told goes into the file `book` beside the configuration, one line for one write, so that the book
survives the death of the process:

    begin TAG             about to be proposed
    ok TAG TOTAL          acknowledged; the counter stood at TOTAL
    denied TAG            certainly not applied
    unknown TAG           the outcome is not known yet
    applied|absent TAG    what the log said of an unknown one

`GET /v1/counter/tally` gives the replicated state, `POST /v1/counter/stop` ends the counting and
returns once every unknown increment has been settled.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from raftkv.config import NodeConfig, load_config
from raftkv.errors import NotApplied, OutcomeUnknown, RaftkvError
from raftkv.node import Node
from raftkv.plugin import Context, Host, Plugin, Request, Response, Route, Service, TableSpec

COUNTERS = 12
# Shorter than an election, so that the death of a leader makes unknown outcomes.
TIMEOUT_S = 0.3
RETRY_S = 0.02


class Increment(msgspec.Struct, frozen=True, array_like=True, tag="increment"):
    """Count one. `tag` names this very increment."""

    Result: ClassVar[Any] = int
    tag: str


class Counter(Plugin[Host]):
    """A total, and how often each tag was applied: more than once is the fault looked for."""

    name = "counter"
    commands = (Increment,)
    tables = (TableSpec("total", str, int), TableSpec("tags", str, int))

    def apply(self, command: Increment, ctx: Context) -> int:
        tags, totals = ctx.table("tags"), ctx.table("total")
        tags.put(command.tag, tags.get(command.tag, 0) + 1)
        total: int = totals.get("", 0) + 1
        totals.put("", total)
        return total

    def open(self, host: Host) -> Host:
        return host

    def service(self, host: Host, api: Host) -> Service:
        return Counting(host, BOOK)


class Counting(Service):
    """The tasks that count, the book, and the routes for the test."""

    def __init__(self, host: Host, book: Path) -> None:
        self._host = host
        self._book = os.open(book, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._life = os.getpid()
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    def on_incarnation(self, incarnation: int) -> None:
        if not self._tasks:
            self._tasks = [
                self._host.spawn(self._count(f"{self._host.name}-{self._life}-{n}"), f"count {n}")
                for n in range(COUNTERS)
            ]

    async def stop(self) -> None:
        os.close(self._book)

    def _note(self, *words: object) -> None:
        os.write(self._book, (" ".join(map(str, words)) + "\n").encode())

    async def _count(self, task: str) -> None:
        number = 0
        while not self._stopping:
            number += 1
            tag = f"{task}-{number}"
            self._note("begin", tag)
            try:
                total = await self._host.propose(Increment(tag), timeout_s=TIMEOUT_S)
            except NotApplied:
                self._note("denied", tag)
                await asyncio.sleep(RETRY_S)
            except OutcomeUnknown as unknown:
                self._note("unknown", tag)
                await self._settle(tag, unknown)
            else:
                self._note("ok", tag, total)

    async def _settle(self, tag: str, unknown: OutcomeUnknown) -> None:
        """Ask until the log has answered; the question itself may time out as often as it likes."""
        while True:
            try:
                outcome = await self._host.outcome(
                    unknown.session, unknown.seq, timeout_s=TIMEOUT_S
                )
            except RaftkvError:
                await asyncio.sleep(RETRY_S)
                continue
            words = {"applied": "applied", "not_applied": "absent"}
            self._note(words.get(outcome.verdict, outcome.verdict), tag)
            return

    def routes(self) -> Sequence[Route]:
        return (
            Route("GET", "tally", self._tally, "The replicated state."),
            Route("POST", "stop", self._end, "Stop counting and settle what is unknown."),
        )

    async def _tally(self, request: Request) -> Response:
        await self._host.barrier()
        view = self._host.view()
        tags = dict(view.table("tags").scan())
        return Response({"total": view.table("total").get("", 0), "tags": tags})

    async def _end(self, request: Request) -> Response:
        self._stopping = True
        await asyncio.gather(*self._tasks)
        return Response({"counters": len(self._tasks)})


async def serve(config: NodeConfig) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with Node(config, plugins=[Counter]):
        await stop.wait()


if __name__ == "__main__":
    assert sys.argv[1:3] == ["serve", "--config"]
    BOOK = Path(sys.argv[3]).with_name("book")
    logging.basicConfig(level=logging.INFO)
    asyncio.run(serve(load_config(sys.argv[3])))
