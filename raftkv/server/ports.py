"""What the door needs from a node: the smallest interface that `raftkv.Node` fulfils.

The tests of the door bring their own implementation with a dict inside, so that they need neither
a cluster nor a disk.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from raftkv.kv import (
    Compare,
    DeleteRangeResult,
    Operation,
    PutResult,
    RangeOp,
    RangeResult,
    TxnResult,
)
from raftkv.plugin import Consistency

__all__ = ["DoorNode", "Keyspace", "Standing"]


class Keyspace(Protocol):
    """The part of `raftkv.kv.KVApi` that etcd's words need."""

    async def put(self, key: bytes, value: bytes, *, prev_kv: bool = False) -> PutResult: ...

    async def read(
        self, operation: RangeOp, *, consistency: Consistency = "linearizable"
    ) -> RangeResult: ...

    async def delete(
        self, key: bytes | None = None, last: bytes | None = None, *, prev_kv: bool = False
    ) -> DeleteRangeResult: ...

    async def txn(
        self,
        compare: Iterable[Compare] = (),
        success: Iterable[Operation] = (),
        failure: Iterable[Operation] = (),
    ) -> TxnResult: ...


class Standing(Protocol):
    """What the door reads of a node's status; `/v1/status` gives the whole of it as JSON."""

    @property
    def name(self) -> str: ...

    @property
    def cluster_id(self) -> str: ...


class DoorNode(Protocol):
    """The part of a node that the door uses."""

    @property
    def kv(self) -> Keyspace: ...

    @property
    def leader(self) -> str | None: ...

    @property
    def term(self) -> int: ...

    def status(self) -> Standing: ...
