"""A node without a cluster: the real state machine and keyspace, and no log below them.

Every proposal is applied at once. `trouble` makes every following call fail with that error, as a
node does that has lost its leader or is overloaded.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import msgspec

from raftkv.errors import Refused
from raftkv.kv import KV, KVApi
from raftkv.plugin import Consistency
from raftkv.state import Envelope, NodeUp, NodeUpResult, StateMachine, encode_batch


class SoloStatus(msgspec.Struct, frozen=True):
    name: str
    role: str
    leader: str | None
    term: int
    cluster_id: str
    commit_index: int
    applied_index: int
    fsync: str


class SoloHost:
    """The part of `raftkv.plugin.Host` that the keyspace's API uses."""

    def __init__(self, name: str) -> None:
        self.machine = StateMachine([KV()])
        self.trouble: Callable[[], Exception] | None = None
        self.consistencies: list[str] = []
        self._seq = itertools.count(1)
        opening = NodeUp(1, name, "core", name, "127.0.0.1:1", None, (("kv", KV.version),))
        opened = self._apply(0, 1, "core", opening)
        assert isinstance(opened, NodeUpResult)
        self._session = opened.session

    async def propose(self, command: msgspec.Struct, *, timeout_s: float | None = None) -> Any:
        self._fail()
        outcome = self._apply(self._session, next(self._seq), "kv", command)
        if isinstance(outcome, Refused):
            raise outcome
        return outcome

    async def barrier(
        self, consistency: Consistency = "linearizable", *, timeout_s: float | None = None
    ) -> None:
        self.consistencies.append(consistency)
        if consistency == "linearizable":
            self._fail()

    def view(self) -> Any:
        return self.machine.view("kv")

    @property
    def settings(self) -> Any:
        return self.machine.view("kv").settings

    def _apply(self, session: int, seq: int, plugin: str, command: msgspec.Struct) -> Any:
        envelope = Envelope(session, seq, 0, plugin, msgspec.msgpack.encode(command))
        body = encode_batch(1_000, [envelope])
        ((_, _, outcome),) = self.machine.apply(self.machine.index + 1, body)
        return outcome

    def _fail(self) -> None:
        if self.trouble is not None:
            raise self.trouble()


class SoloNode:
    """Fulfils `raftkv.server.ports.DoorNode`."""

    def __init__(self, name: str = "solo", leader: str | None = "solo") -> None:
        self.host = SoloHost(name)
        self.kv = KVApi(self.host)  # type: ignore[arg-type]
        self.name = name
        self.leader = leader
        self.term = 7

    def status(self) -> SoloStatus:
        index = self.host.machine.index
        return SoloStatus(
            name=self.name,
            role="leader" if self.leader == self.name else "follower",
            leader=self.leader,
            term=self.term,
            cluster_id="c0ffee",
            commit_index=index,
            applied_index=index,
            fsync="off",
        )
