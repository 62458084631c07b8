"""Brokers and clients on the faked cluster, and the benchmark's own judge of what they were told.

A `World` plays the clients, so it knows what each connect has to be answered. It keeps that in the
benchmark's `History` of each client, counts wrong answers as the benchmark does, and audits every
node with the benchmark's `audit_outcome`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection
from typing import Any, Literal

from bench.truth import AuditOutcome, History, audit_outcome, without_discarded
from raftkv.errors import RaftkvError
from raftkv_lcr.modes import effective_mode
from raftkv_lcr.old_node import OldApi, OldLCR
from raftkv_lcr.owner import Message
from raftkv_lcr.result import OpenedSession
from raftkv_lcr.testing.broker import MemoryBroker, Session
from tests.plugins.raftkv_lcr.fakes import Cluster, FakeNode

__all__ = ["Group", "OldFakeNode", "World", "message", "texts"]

# Long enough for everything that was spread, unregistered or handed over to have arrived.
REST_S = 3.0


def message(text: str) -> Message:
    return Message(text, text.encode())


def texts(session: Session | None) -> list[str]:
    """What a session holds, by the ids of its messages; pendings of a frozen one included."""
    assert session is not None
    return [one.id for one in (*session.content, *session.pendings)]


class OldFakeNode(FakeNode):
    """A node of the version before the linear registry."""

    def __init__(self, cluster: Cluster, name: str, role: Literal["core", "replicant"]) -> None:
        super().__init__(cluster, name, role, OldLCR())


Group = Literal["lcr_on", "lcr_off"]


class World:
    """Brokers on the nodes of a cluster, and clients that do one thing at a time."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.brokers: dict[str, MemoryBroker] = {}
        self.histories: dict[str, History] = {}
        # Wrong answers, by the benchmark's words.
        self.anomalies: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        # client -> the node and the channel of its last successful connect
        self.seats: dict[str, tuple[str, str]] = {}
        for node in cluster.nodes.values():
            self.attach(node)

    def attach(self, node: FakeNode) -> MemoryBroker:
        broker = self.brokers[node.name] = MemoryBroker(node.name)
        self.cluster.attach(node, broker)
        return broker

    async def old_node(self, name: str, role: Literal["core", "replicant"]) -> FakeNode:
        """Let a node of the version before join."""
        node = OldFakeNode(self.cluster, name, role)
        await self.cluster.join(node)
        self.attach(node)
        return node

    async def new_node(self, name: str, role: Literal["core", "replicant"]) -> FakeNode:
        """Let a node of this version join."""
        node = await self.cluster.add(name, role)
        self.attach(node)
        return node

    def begin_lag(self, name: str, seconds: float) -> None:
        """Let that node apply what others wrote only `seconds` later, in both registries."""
        node = self.cluster.nodes[name]
        node.lcr.legacy.lag_s = seconds
        self.cluster.pause(name)
        asyncio.get_running_loop().call_later(seconds, self.cluster.resume, name)

    def history(self, client: str) -> History:
        return self.histories.setdefault(client, History(client, maybe=[], live=[]))

    async def connect(
        self, node: str, client: str, channel: str, *, clean_start: bool = False, **words: Any
    ) -> OpenedSession:
        """Connect, and judge the answer as the benchmark does."""
        history = self.history(client)
        present = history.present
        try:
            opened = await self.brokers[node].connect(
                client, channel, clean_start=clean_start, **words
            )
        except RaftkvError as error:
            self.outcomes[error.code] += 1
            history.connect_failed(channel, "timeout")
            raise
        self.outcomes[opened.outcome] += 1
        if opened.outcome != "ok":
            history.connect_failed(channel, opened.outcome)
            return opened
        if present is not None and opened.present != (present and not clean_start):
            self.anomalies["wrong_session_present"] += 1
        predecessor = opened.predecessor
        ended = predecessor is not None and (opened.present or clean_start)
        history.connected(channel, predecessor.channel if predecessor and ended else None)
        self.seats[client] = (node, channel)
        return opened

    async def leave(self, client: str) -> None:
        """The client says goodbye where it connected last."""
        node, channel = self.seats.pop(client)
        await self.brokers[node].disconnect(client, channel)
        self.history(client).disconnected(channel, "ok")

    def publish(self, client: str, text: str) -> bool:
        """A message for the client, where it connected last."""
        node, _ = self.seats[client]
        return self.brokers[node].publish(client, message(text))

    def live(self, client: str) -> list[tuple[str, str]]:
        """The client's live sessions, by node and channel."""
        return [
            (name, session.channel)
            for name, broker in self.brokers.items()
            if self.cluster.nodes[name].alive
            for session in broker.sessions.values()
            if session.client_id == client and session.live
        ]

    def session(self, client: str) -> Session | None:
        """The client's live session, where it connected last."""
        node, channel = self.seats[client]
        return self.brokers[node].sessions.get((client, channel))

    def registered(self, node: str, client: str) -> Collection[str]:
        """What that node's copy of the registry in use shows."""
        api = self.cluster.nodes[node].lcr
        mode = effective_mode(self.cluster.nodes[node].view()).mode
        if isinstance(api, OldApi) or mode == "disabled":
            return [row.channel for row in api.legacy.channels_local(client)]
        return [row.channel for row in api.channels_local(client)]

    def audit(self, client: str) -> Counter[AuditOutcome]:
        """The benchmark's findings about one client, one per node."""
        found: Counter[AuditOutcome] = Counter()
        ended = {
            session.channel
            for broker in self.brokers.values()
            for session in broker.sessions.values()
            if session.client_id == client and session.closed_for is not None
        }
        expected = without_discarded(self.history(client).expectation(), ended)
        for name, node in self.cluster.nodes.items():
            if node.alive:
                found[audit_outcome(expected, self.registered(name, client))] += 1
        return found

    def audit_all(self) -> Counter[AuditOutcome]:
        return sum((self.audit(client) for client in self.histories), Counter())

    async def rest(self, seconds: float = REST_S) -> None:
        await asyncio.sleep(seconds)

    async def warm_up(self) -> None:
        """Let every node have its first copy of the old registry."""
        for node in self.cluster.nodes.values():
            if node.alive:
                await node.lcr.legacy.ready()
