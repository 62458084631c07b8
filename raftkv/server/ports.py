"""What the door needs from a node: the smallest interface that `raftkv.Node` fulfils.

The tests of the door bring their own implementation, a node without a cluster and a disk.

A word that writes works on a `Writer`. That is the node itself, unless the request names a client
session: then it is what the `SessionBinder` gives for this one request, whose proposals carry the
session and the number of the request, so that the write is applied once however often it is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from raftkv.kv import (
    CompactResult,
    Compare,
    DeleteRangeOp,
    DeleteRangeResult,
    GrantResult,
    Operation,
    PutResult,
    RangeOp,
    RangeResult,
    RevokeResult,
    TxnResult,
    Watch,
)
from raftkv.kv.hashing import KeyspaceHash
from raftkv.kv.keeping import LeaseStatus
from raftkv.kv.work_budget import WorkBudget
from raftkv.plugin import Consistency, Under

__all__ = [
    "DoorMetrics",
    "DoorNode",
    "Keyspace",
    "KeyspaceWriter",
    "LeaseWriter",
    "Leases",
    "MemberStanding",
    "SessionBinder",
    "Standing",
    "Writer",
]


class KeyspaceWriter(Protocol):
    """The part of `raftkv.kv.KVApi` that etcd's writing words need."""

    async def put(
        self,
        key: bytes,
        value: bytes,
        *,
        lease: int = 0,
        prev_kv: bool = False,
        ignore_value: bool = False,
        ignore_lease: bool = False,
    ) -> PutResult: ...

    async def delete_range(self, operation: DeleteRangeOp) -> DeleteRangeResult: ...

    async def txn(
        self,
        compare: Iterable[Compare] = (),
        success: Iterable[Operation] = (),
        failure: Iterable[Operation] = (),
    ) -> TxnResult: ...

    async def compact(self, revision: int) -> CompactResult: ...


class WatchSource(Protocol):
    """The part of `raftkv.kv.watch_hub.WatchHub` that the door uses."""

    def open(
        self,
        key: bytes,
        range_end: bytes = b"",
        *,
        start_revision: int = 0,
        prev_kv: bool = False,
        put: bool = True,
        delete: bool = True,
        progress_s: float = 0.0,
    ) -> Watch: ...


class Walk(Protocol):
    """The part of `raftkv.kv.walk.Walk` that the door uses."""

    def done(self) -> bool: ...

    async def page(
        self, keys_max: int, *, consistency: Consistency = "linearizable"
    ) -> RangeResult: ...


class Keyspace(KeyspaceWriter, Protocol):
    """And for its reading words. `hub` is None on a node that was not started."""

    async def read(
        self, operation: RangeOp, *, consistency: Consistency = "linearizable"
    ) -> RangeResult: ...

    def rows(self, operation: RangeOp) -> int: ...

    def rows_max(self, operation: RangeOp) -> int: ...

    def walk(self, operation: RangeOp) -> Walk: ...

    def place(
        self, operation: RangeOp, consistency: Consistency = "local"
    ) -> AbstractAsyncContextManager[None]: ...

    async def hash(
        self, revision: int = 0, *, consistency: Consistency = "linearizable"
    ) -> KeyspaceHash: ...

    @property
    def lowest_revision(self) -> int: ...

    @property
    def revision(self) -> int: ...

    @property
    def hub(self) -> WatchSource | None: ...

    @property
    def budget(self) -> WorkBudget: ...


class LeaseWriter(Protocol):
    """The part of `raftkv.kv.leases.LeaseApi` that goes through the log."""

    async def grant(self, ttl_s: int, *, id: int = 0) -> GrantResult: ...

    async def revoke(self, id: int) -> RevokeResult: ...


class Leases(LeaseWriter, Protocol):
    """And what does not."""

    async def keep_alive(self, id: int) -> int: ...

    async def time_to_live(self, id: int, *, keys: bool = False) -> LeaseStatus: ...

    async def list(self) -> tuple[int, ...]: ...


class Writer(Protocol):
    """What a writing word works on."""

    @property
    def kv(self) -> KeyspaceWriter: ...

    @property
    def leases(self) -> LeaseWriter: ...


class SessionBinder(Protocol):
    """Client sessions: who writes under the headers of a request."""

    def bind(self, headers: Mapping[bytes, bytes]) -> Writer:
        """A writer for one request with these headers (names in lower case), of which one begins
        with `raftkv-`. Raises `BadRequest` or a `Refused` for headers that are no session's."""

    def bind_known(self, headers: Mapping[bytes, bytes]) -> Writer | None:
        """`bind`, if the session is known to this node at this moment, so that its writer waits for
        nothing but the write; else None, also for headers that `bind` would refuse."""

    def under(self, headers: Mapping[bytes, bytes], plugin: str) -> Under:
        """The same for one proposal of a plugin's route. Raises `BadRequest`."""


class MemberStanding(Protocol):
    """A member as the door's member list shows it."""

    @property
    def name(self) -> str: ...

    @property
    def role(self) -> str: ...

    @property
    def peer_address(self) -> str: ...

    @property
    def http_address(self) -> str | None: ...


class Standing(Protocol):
    """What the door reads of a node's status; `/v1/status` gives the whole of it as JSON."""

    @property
    def name(self) -> str: ...

    @property
    def cluster_id(self) -> str: ...

    @property
    def role(self) -> str: ...

    @property
    def commit_index(self) -> int: ...

    @property
    def applied_index(self) -> int: ...

    @property
    def ready(self) -> bool: ...

    @property
    def fault(self) -> str | None: ...

    @property
    def alarms(self) -> Iterable[str]: ...

    @property
    def hindrance(self) -> str | None: ...

    @property
    def members(self) -> Iterable[MemberStanding]: ...


class DoorMetrics(Protocol):
    """The part of `raftkv.metrics.Metrics` that the door uses."""

    def render(self, accept: str = "") -> tuple[str, bytes]: ...


class QuotaDesk(Protocol):
    """The part of `raftkv.quotas.Quotas` that the HTTP API uses."""

    async def disarm(self) -> tuple[str, ...]: ...


class DoorNode(Protocol):
    """The part of a node that the door uses. It is a `Writer`, too."""

    @property
    def kv(self) -> Keyspace: ...

    @property
    def leases(self) -> Leases: ...

    @property
    def metrics(self) -> DoorMetrics: ...

    @property
    def quotas(self) -> QuotaDesk: ...

    @property
    def leader(self) -> str | None: ...

    @property
    def term(self) -> int: ...

    def status(self) -> Standing: ...

    async def barrier(
        self, consistency: Consistency = "linearizable", *, timeout_s: float | None = None
    ) -> None: ...
