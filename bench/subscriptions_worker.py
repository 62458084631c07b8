"""A node with the plugin `subscriptions`, and one region's part of a load (`bench.subscriptions`).

It serves the coordinator as `bench.limbo_worker` does for the limbo.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from bench.clock import OsClock
from bench.control import (
    AskCursor,
    AwaitTakeover,
    Cursor,
    Done,
    DropTopic,
    Flush,
    MakeTopic,
    Request,
    Setup,
    State,
    Status,
    StopConsumer,
    StopPublisher,
    TakeOver,
    WatchCursor,
)
from bench.messages import MessageCount
from bench.schema import RowWriter
from bench.subscriptions import (
    SUBSCRIPTION,
    Following,
    Moves,
    SubscriptionsLoad,
    Takeover,
    Trace,
    topic_of,
)
from raftkv import Node
from raftkv_subscriptions import Subscriptions

__all__ = ["SubscriptionsWorker"]

READY_TIMEOUT_S = 50.0
SWEPT_S = 30.0
LOOK_EVERY_S = 0.02


class SubscriptionsWorker:
    """The requests of the coordinator that concern one node of a region."""

    def __init__(self, setup: Setup, node: Node, writer: RowWriter) -> None:
        self._node = node
        self._writer = writer
        self._messages = MessageCount()
        self._messages.install()
        self._api: Any = node.plugin(Subscriptions)
        self._clock = OsClock()
        self._following: Following | None = None
        self._takeover: Takeover | None = None
        self._trace: Trace | None = None

    async def start(self) -> None:
        """Wait for the node to take part."""
        await self._node.wait_ready(READY_TIMEOUT_S)

    async def handle(self, request: Request) -> Any:
        """Does what is asked; returns the answer."""
        match request:
            case Status():
                return self._state()
            case MakeTopic():
                await self._make(request)
            case SubscriptionsLoad():
                self._following = Following(self._api, request, self._clock)
                await self._following.start()
            case StopConsumer():
                assert self._following is not None, "no load was started"
                await self._following.stop_consumer()
                return self._following.followed
            case StopPublisher():
                assert self._following is not None, "no load was started"
                return await self._following.stop_publisher()
            case WatchCursor(number, origin):
                self._trace = Trace(
                    self._api.host.listen, lambda: self._floor(number, origin), self._clock
                )
            case AskCursor(number, origin):
                return Cursor(self._floor(number, origin))
            case TakeOver(number):
                moves = Moves(()) if self._trace is None else self._trace.close()
                self._trace = None
                self._takeover = Takeover(self._api, number)
                await self._takeover.start()
                return moves
            case AwaitTakeover(upto, idle_s, timeout_s):
                assert self._takeover is not None, "nobody has taken over"
                return await self._takeover.finish(upto, idle_s, timeout_s)
            case DropTopic(number, "withdraw"):
                await self._api.declare(topic_of(number), replicated=False, change=True)
            case DropTopic(number):
                await self._api.delete(topic_of(number))
                await self._swept()
            case Flush():
                await asyncio.to_thread(self._writer.flush)
            case _:
                raise ValueError(f"a node with topics cannot do {type(request).__name__}")
        return Done()

    async def _make(self, request: MakeTopic) -> None:
        topic, replicate = topic_of(request.number), request.mode != "off"
        if replicate:
            await self._api.set_mode(request.mode)
        if not request.first:
            return
        await self._api.declare(topic)
        await self._api.subscribe(
            topic, SUBSCRIPTION, kind="exclusive", initial="earliest", replicate=replicate
        )

    async def _swept(self) -> None:
        """Returns when nothing is left of deleted topics: the next load must not pay for it."""
        view = self._node.machine.view("subscriptions")
        async with asyncio.timeout(SWEPT_S):
            while any(len(view.table(name)) for name in ("dropped_topics", "dropped_subs")):
                await asyncio.sleep(LOOK_EVERY_S)

    def _floor(self, number: int, origin: str) -> int:
        """Up to which seq of that region the subscription is acknowledged here; 0: not there."""
        view = self._node.machine.view("subscriptions")
        topic = view.table("topics").get(topic_of(number))
        if topic is None:
            return 0
        sub = view.table("subs").get((topic.id, SUBSCRIPTION))
        if sub is None:
            return 0
        floor = view.table("floors").get((sub.id, origin))
        return 0 if floor is None else int(floor.floor)

    def _state(self) -> State:
        status = self._node.status()
        return State(
            role=status.role,
            leader=status.leader,
            commit_index=status.commit_index,
            applied_index=status.applied_index,
            endpoint=status.endpoint,
            outcomes={},
            buckets={},
            commands_applied=status.commands_applied,
            messages=self._messages.messages,
            sent_bytes=self._messages.bytes,
            cpu_s=time.process_time(),
        )

    def close(self) -> None:
        self._messages.remove()
