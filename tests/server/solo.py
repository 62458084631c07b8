"""A node without a cluster: the real state machine and keyspace, and no log below them.

Every proposal is applied at once. `trouble` makes every following call fail with that error, as a
node does that has lost its leader or is overloaded.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import msgspec

from raftkv.errors import Refused
from raftkv.kv import KV, GrantResult, KVApi, LeaseNotFound, LeaseStatus, RevokeResult
from raftkv.kv.watch_hub import WatchHub
from raftkv.plugin import Consistency
from raftkv.runtime import OsRuntime
from raftkv.state import Envelope, NodeUp, NodeUpResult, StateMachine, encode_batch


class SoloMember(msgspec.Struct, frozen=True):
    name: str
    role: str
    peer_address: str
    http_address: str | None


class SoloStatus(msgspec.Struct, frozen=True):
    name: str
    role: str
    leader: str | None
    term: int
    cluster_id: str
    commit_index: int
    applied_index: int
    fsync: str
    ready: bool
    fault: str | None
    members: list[SoloMember]
    alarms: list[str]
    hindrance: str | None


class SoloHost:
    """The part of `raftkv.plugin.Host` that the keyspace's API uses."""

    def __init__(self, name: str) -> None:
        self.machine = StateMachine([KV()])
        self.name = name
        self.hub: WatchHub | None = None
        self.trouble: Callable[[], Exception] | None = None
        self.consistencies: list[str] = []
        self._seq = itertools.count(1)
        opening = NodeUp(1, name, "core", name, "127.0.0.1:1", None, (("kv", KV.version),))
        opened = self._apply(0, 1, "core", opening)
        assert isinstance(opened, NodeUpResult)
        self._session = opened.session

    async def propose(self, command: msgspec.Struct, *, timeout_s: float | None = None) -> Any:
        self.fail()
        outcome = self.apply("kv", command)
        if isinstance(outcome, Refused):
            raise outcome
        return outcome

    async def barrier(
        self, consistency: Consistency = "linearizable", *, timeout_s: float | None = None
    ) -> None:
        self.consistencies.append(consistency)
        if consistency == "linearizable":
            self.fail()

    def view(self, plugin: str | None = None) -> Any:
        return self.machine.view("kv")

    @functools.cached_property
    def runtime(self) -> OsRuntime:
        """Of the loop that asks first."""
        return OsRuntime()

    @property
    def incarnation(self) -> int:
        return 1

    @property
    def settings(self) -> Any:
        return self.machine.view("kv").settings

    def apply(self, plugin: str, command: msgspec.Struct) -> Any:
        """The outcome of one more command of this node, a refusal too."""
        return self._apply(self._session, next(self._seq), plugin, command)

    def _apply(self, session: int, seq: int, plugin: str, command: msgspec.Struct) -> Any:
        envelope = Envelope(session, seq, 0, plugin, msgspec.msgpack.encode(command))
        body = encode_batch(1_000, [envelope])
        ((_, _, outcome),) = self.machine.apply(self.machine.index + 1, body)
        if self.hub is not None:
            self.hub.progressed()
        return outcome

    def fail(self) -> None:
        if self.trouble is not None:
            raise self.trouble()


class SoloLeases:
    """Leases of which nobody counts the time: what is asked for is what is left."""

    def __init__(self, kv: KVApi, host: SoloHost) -> None:
        self._kv = kv
        self._host = host

    async def grant(self, ttl_s: int, *, id: int = 0) -> GrantResult:
        return await self._kv.leases.grant(ttl_s, id=id)

    async def revoke(self, id: int) -> RevokeResult:
        return await self._kv.leases.revoke(id)

    async def keep_alive(self, id: int) -> int:
        self._host.fail()
        row = self._host.view().table("leases").get(id)
        if row is None:
            raise LeaseNotFound(f"there is no lease {id}")
        ttl_s: int = row.ttl_s
        return ttl_s

    async def time_to_live(self, id: int, *, keys: bool = False) -> LeaseStatus:
        row = self._host.view().table("leases").get(id)
        if row is None:
            return LeaseStatus(id, 0, -1)
        attached = self._host.view().table("attached").scan(prefix=(id,)) if keys else ()
        return LeaseStatus(id, row.ttl_s, row.ttl_s, tuple(key for (_, key), _ in attached))

    async def list(self) -> tuple[int, ...]:
        return tuple(lease for lease, _ in self._host.view().table("leases").scan())


class SoloMetrics:
    """Counts how often it was rendered."""

    def __init__(self) -> None:
        self.renders = 0

    def render(self, accept: str = "") -> tuple[str, bytes]:
        self.renders += 1
        body = f"# {self.renders}, asked for {accept!r}\n"
        return "text/plain; version=0.0.4", body.encode()


class SoloQuotas:
    """Counts how often NOSPACE was disarmed."""

    def __init__(self, host: SoloHost) -> None:
        self._host = host
        self.disarmed = 0

    async def disarm(self) -> tuple[str, ...]:
        self._host.fail()
        self.disarmed += 1
        return ("kv",)


class SoloNode:
    """Fulfils `raftkv.server.ports.DoorNode`. `start_watches` needs the loop of the door."""

    def __init__(self, name: str = "solo", leader: str | None = "solo") -> None:
        self.host = SoloHost(name)
        self.kv = KVApi(self.host)  # type: ignore[arg-type]
        self.leases = SoloLeases(self.kv, self.host)
        self.metrics = SoloMetrics()
        self.quotas = SoloQuotas(self.host)
        self.name = name
        self.leader = leader
        self.term = 7
        self.ready = True
        self.fault: str | None = None
        self.alarms: list[str] = []
        self.hindrance: str | None = None

    def start_watches(self) -> None:
        self.kv.hub = self.host.hub = WatchHub(self.host)  # type: ignore[arg-type]
        self.host.hub.start()

    async def barrier(
        self, consistency: Consistency = "linearizable", *, timeout_s: float | None = None
    ) -> None:
        await self.host.barrier(consistency)

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
            ready=self.ready,
            fault=self.fault,
            members=[
                SoloMember(self.name, "core", "127.0.0.1:1", "127.0.0.1:2"),
                SoloMember("reader", "replicant", "127.0.0.1:3", None),
            ],
            alarms=list(self.alarms),
            hindrance=self.hindrance,
        )
