"""What the recipes need of a cluster: an embedded `raftkv.Node`, or a `raftkv.Client`.

Anything with these two attributes will do. Only what the recipes use is named here; the full
signatures are those of `node.kv` and `node.leases`.

A store that also has `outcome`, as both of them do, lets a recipe settle a write whose answer it
did not hear, before it goes on; without it the recipes can only ask again.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from raftkv.kv import (
    Compare,
    DeleteRangeResult,
    Keepable,
    KeyValue,
    Operation,
    PutResult,
    RangeResult,
    TxnResult,
    WatchBatch,
)
from raftkv.kv.commands import SortBy
from raftkv.plugin import Outcome

__all__ = ["KvPort", "Settling", "Store", "WatchPort"]


class WatchPort(Protocol):
    """A running watch."""

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> WatchBatch: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...


class KvPort(Protocol):
    """What the recipes use of the keyspace."""

    async def put(
        self, key: bytes, value: bytes, *, lease: int = 0, timeout_s: float | None = None
    ) -> PutResult: ...

    async def get(
        self, key: bytes, *, revision: int = 0, timeout_s: float | None = None
    ) -> KeyValue | None: ...

    async def range(
        self,
        first: bytes | None = None,
        last: bytes | None = None,
        *,
        prefix: bytes | None = None,
        limit: int = 0,
        keys_only: bool = False,
        count_only: bool = False,
        revision: int = 0,
        sort_by: SortBy = "key",
        descending: bool = False,
        min_create_revision: int = 0,
        max_create_revision: int = 0,
        timeout_s: float | None = None,
    ) -> RangeResult: ...

    async def delete(self, key: bytes, *, timeout_s: float | None = None) -> DeleteRangeResult: ...

    async def txn(
        self,
        compare: Iterable[Compare] = (),
        success: Iterable[Operation] = (),
        failure: Iterable[Operation] = (),
        *,
        timeout_s: float | None = None,
    ) -> TxnResult: ...

    def watch(
        self,
        key: bytes | None = None,
        last: bytes | None = None,
        *,
        prefix: bytes | None = None,
        start_revision: int = 0,
        put: bool = True,
        delete: bool = True,
    ) -> WatchPort: ...


class Store(Protocol):
    """A `raftkv.Node`, a `raftkv.Client`, or what a test puts in their place."""

    @property
    def kv(self) -> KvPort: ...

    @property
    def leases(self) -> Keepable: ...


@runtime_checkable
class Settling(Protocol):
    """A store that can tell what became of a write."""

    async def outcome(
        self, session: int, seq: int, *, timeout_s: float | None = None
    ) -> Outcome: ...
