"""When snapshots are started and given up (snapshot mode), by the leader.

A snapshot of a topic is started every `period_ms` while there is something new in it, a replicated
subscription, and a link to every active region. Everything is compared again in the log; a start
that it declined is not repeated before the topic has moved. In vector mode, and when nothing moves,
nothing is looked at and nothing is proposed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from raftkv.errors import RaftkvError, Stopped
from raftkv.plugin import Host, View

from .commands import SnapshotAbandon, SnapshotStart, Started
from .rows import Pending, Topic
from .snapshots import why_not

__all__ = ["SnapshotTimer", "to_abandon", "to_start"]

# A cluster without a leader is tried again after so long.
RETRY_S: Final = 0.25


def to_start(view: View) -> Iterator[tuple[str, Topic]]:
    """Topics of which the log would start a snapshot."""
    if view.settings["mode"] != "snapshot":
        return
    for name, topic in view.table("topics").scan():
        if topic.replicated and why_not(view, name) == "":
            yield name, topic


def to_abandon(view: View) -> Iterator[tuple[int, str, int]]:
    """Pending snapshots: when they are too old by the log's clock, topic, id."""
    timeout_ms = view.settings["timeout_ms"]
    pending: Pending
    for topic_id, pending in view.table("pending").scan():
        name: str | None = view.table("names").get(topic_id)
        if name is not None:
            yield pending.started_ms + timeout_ms, name, pending.id


class SnapshotTimer:
    """Of one node; at work between `start` and `stop`. `can`: whether all regions are reached."""

    def __init__(self, host: Host, can: Callable[[], bool]) -> None:
        self._host = host
        self._can = can
        self._running: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        #: Topics whose start was declined, and their next position then.
        self._declined: dict[int, int] = {}
        self.started = 0

    def start(self) -> None:
        """This node leads."""
        self._declined.clear()
        if self._running is None:
            self._running = self._host.spawn(self._run(), "snapshots")

    def stop(self) -> None:
        """It does no longer."""
        running, self._running = self._running, None
        if running is not None:
            running.cancel()

    def look(self) -> None:
        """Something was applied."""
        self._wake.set()

    async def _run(self) -> None:
        runtime = self._host.runtime
        while True:
            self._wake.clear()
            try:
                waits = await self._pass()
            except Stopped:
                return
            except RaftkvError as error:
                self._host.log.debug("a snapshot waits: %s", type(error).__name__)
                await runtime.sleep(RETRY_S)
                continue
            view = self._host.view()
            if view.settings["mode"] == "snapshot":
                # At most one look a period, and one soon after something was applied.
                await runtime.sleep(view.settings["period_ms"] / 1000)
            if not waits:
                await self._wake.wait()

    async def _pass(self) -> bool:
        """Start and give up what is due; whether something waits for a time, or for a link."""
        due = [
            (name, topic)
            for name, topic in to_start(self._host.view())
            if self._declined.get(topic.id) != topic.next
        ]
        waits = bool(due)
        if due and self._can():
            for name, topic in due:
                done: Started = await self._host.propose(SnapshotStart(name))
                if done.started:
                    self.started += 1
                    self._declined.pop(topic.id, None)
                else:
                    self._declined[topic.id] = topic.next
        for at_ms, name, id in list(to_abandon(self._host.view())):
            waits = True
            if at_ms <= self._host.now_ms():
                await self._host.propose(SnapshotAbandon(name, id))
        return waits
