"""A node with the plugin `txqueue` and the producers of a load (`bench.txqueue`) beside it.

It serves the coordinator as `bench.limbo_worker` does for the limbo. Whichever node leads has the
producers; every node is looked at when a load is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from bench.clock import OsClock
from bench.control import (
    AskCommitted,
    AwaitCallers,
    CheckQueues,
    Committed,
    Done,
    DropQueues,
    Flush,
    MakeQueues,
    Ran,
    Request,
    Setup,
    State,
    Status,
)
from bench.limbo import LimboSeat
from bench.messages import MessageCount
from bench.roles import RoleWatch
from bench.schema import Row, RowWriter
from bench.txqueue import TxqueueLoad, TxqueueProducers, judge, queues_of
from raftkv import Node
from raftkv_txqueue import Message, TxQueue

__all__ = ["TxqueueWorker", "bodies_in"]

READY_TIMEOUT_S = 50.0
PAGE = 1_000
"""Messages that are looked at in one turn of the node's loop, so that heartbeats go on."""


class TxqueueWorker:
    """The requests of the coordinator that concern one node with the queues."""

    def __init__(self, setup: Setup, node: Node, writer: RowWriter) -> None:
        self._setup = setup
        self._node = node
        self._writer = writer
        self._role = RoleWatch(node)
        self._messages = MessageCount()
        self._messages.install()
        self._api: Any = node.plugin(TxQueue)
        self._clock = OsClock()
        seat = LimboSeat(setup.run, setup.layout, setup.name, self._current_role)
        self._producers = TxqueueProducers(self._api, Message, seat, self._clock, writer.add)

    async def start(self) -> None:
        """Wait for the node to take part."""
        await self._node.wait_ready(READY_TIMEOUT_S)
        self._role.start()

    def _current_role(self) -> str:
        return self._role.current

    async def handle(self, request: Request) -> Any:
        """Does what is asked; returns the answer."""
        match request:
            case Status():
                return self._state()
            case MakeQueues(number):
                for queue in queues_of(number):
                    await self._api.declare(queue)
            case TxqueueLoad():
                await self._producers.start(request)
            case AwaitCallers():
                tally = await self._producers.over()
                return Ran(outcomes=tally.outcomes, buckets=tally.buckets, elapsed_s=0.0)
            case AskCommitted():
                return Committed(tuple(self._producers.committed))
            case CheckQueues():
                await self._check(request)
            case DropQueues(number):
                for queue in queues_of(number):
                    await self._api.delete(queue)
            case Flush():
                await asyncio.to_thread(self._writer.flush)
            case _:
                raise ValueError(f"a node with the queues cannot do {type(request).__name__}")
        return Done()

    def _state(self) -> State:
        status, view = self._node.status(), self._node.machine.view("txqueue")
        tally = self._producers.tally
        return State(
            role=status.role,
            leader=status.leader,
            commit_index=status.commit_index,
            applied_index=status.applied_index,
            endpoint=status.endpoint,
            outcomes=tally.outcomes,
            buckets=tally.buckets,
            commands_applied=status.commands_applied,
            messages=self._messages.messages,
            sent_bytes=self._messages.bytes,
            pending=len(view.table("transactions")),
            rows_dropped=len(view.table("dropped")),
        )

    async def _check(self, request: CheckQueues) -> None:
        """Four rows: what is here of the load, and what is wrong with it."""
        load, setup = request.load, self._setup
        start_us, began = self._clock.wall_us(), self._clock.now()
        contents: dict[str, Sequence[bytes]] = {
            queue: await bodies_in(self._api, queue) for queue in queues_of(load.number)
        }
        found = await asyncio.to_thread(judge, load, request.committed, contents)
        duration_us = round((self._clock.now() - began) * 1e6)
        counts = {
            "messages": found.messages,
            "surplus": found.surplus,
            "torn": found.torn,
            "displaced": found.displaced,
        }
        for op, count in counts.items():
            self._writer.add(
                Row(
                    setup.run, setup.layout, load.scenario, "audit", "none", setup.name,
                    self._current_role(), op, setup.name, 1, start_us, duration_us, "ok",
                    index=count, load=load.load,
                )
            )  # fmt: skip

    def close(self) -> None:
        self._messages.remove()


async def bodies_in(api: Any, queue: str) -> list[bytes]:
    """All that is in the queue, available or not, in its order, as this node shows it."""
    bodies: list[bytes] = []
    first = 1
    while True:
        page = await api.browse(
            queue, first=first, limit=PAGE, everything=True, consistency="local"
        )
        bodies += [each.message.body for each in page]
        if len(page) < PAGE:
            return bodies
        first = page[-1].seq + 1
        await asyncio.sleep(0)
