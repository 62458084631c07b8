"""Software transactional memory: read and write any keys, as if nobody else were there.

    async def transfer(tx):
        a, b = int(await tx.get(b"a")), int(await tx.get(b"b"))
        tx.put(b"a", b"%d" % (a - 10))
        tx.put(b"b", b"%d" % (b + 10))
    done = await atomically(node, transfer)

The function runs against one revision of the keyspace: its first read fixes that, and all others
read as of then, so it never sees half of another's work. What it writes is kept aside and shown to
its own reads. At the end one transaction compares every key and prefix that was read with what was
seen, and writes. If anything has changed meanwhile, the function runs again. So it must have no
effect but through `tx`.

The result is serializable, and strictly so: the transaction takes place at its commit, or, if it
writes nothing, at its first read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import msgspec

from raftkv.kv import (
    Compacted,
    Compare,
    DeleteRangeOp,
    KeyValue,
    Operation,
    PutOp,
    prefix_end,
)
from raftkv.validation import checked

from .ports import Store
from .waiting import insist, once

__all__ = ["Committed", "Transaction", "atomically"]

T = TypeVar("T")


class Committed(msgspec.Struct, Generic[T], frozen=True):
    """What the function returned, and the revision of the commit (of the read, if none was)."""

    value: T
    token: int


@checked
class Transaction:
    """What the function of `atomically` works with."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._revision = 0
        self._seen: dict[bytes, KeyValue | None] = {}
        self._prefixes: dict[bytes, tuple[KeyValue, ...]] = {}
        self._writes: dict[bytes, PutOp | DeleteRangeOp] = {}

    async def get(self, key: bytes) -> bytes | None:
        """The value of a key, None if there is none."""
        written = self._writes.get(key)
        if written is not None:
            return written.value if isinstance(written, PutOp) else None
        if key not in self._seen:
            kv = self._store.kv
            at = self._revision
            found = await insist(lambda: kv.range(key, key + b"\0", revision=at))
            self._read(found.revision)
            self._seen[key] = found.kvs[0] if found.kvs else None
        seen = self._seen[key]
        return None if seen is None else seen.value

    async def prefix(self, prefix: bytes) -> dict[bytes, bytes]:
        """All keys that start with `prefix`, with their values, in key order."""
        if prefix not in self._prefixes:
            kv = self._store.kv
            at = self._revision
            found = await insist(lambda: kv.range(prefix=prefix, revision=at))
            self._read(found.revision)
            self._prefixes[prefix] = found.kvs
        rows = {kv.key: kv.value for kv in self._prefixes[prefix]}
        for key, written in self._writes.items():
            if not key.startswith(prefix):
                continue
            if isinstance(written, PutOp):
                rows[key] = written.value
            else:
                rows.pop(key, None)
        return dict(sorted(rows.items()))

    def put(self, key: bytes, value: bytes, *, lease: int = 0) -> None:
        """Set a key at the commit."""
        self._writes[key] = PutOp(key, value, lease=lease)

    def delete(self, key: bytes) -> None:
        """Delete a key at the commit."""
        self._writes[key] = DeleteRangeOp(key)

    def _read(self, revision: int) -> None:
        if not self._revision:
            self._revision = revision

    def _compares(self) -> list[Compare]:
        compares = [
            Compare(key, "mod", "=", 0 if seen is None else seen.mod_revision)
            for key, seen in self._seen.items()
        ]
        for prefix, rows in self._prefixes.items():
            # Nothing was put since then, and nothing of what was there is gone.
            end = prefix_end(prefix)
            compares.append(Compare(prefix, "mod", "<", self._revision + 1, end))
            compares += [
                Compare(kv.key, "mod", "=", kv.mod_revision)
                for kv in rows
                if kv.key not in self._seen
            ]
        return compares

    async def commit(self) -> int | None:
        """For `atomically`: the revision of the commit, or of the reads (0: nothing was done).

        None: something that was read has changed. It must be run again, as another transaction.
        """
        if not self._writes:
            return self._revision
        operations: list[Operation] = list(self._writes.values())
        done = await once(self._store, self._compares(), operations)
        return done.revision if done.succeeded else None


@checked
async def atomically(store: Store, function: Callable[[Transaction], Awaitable[T]]) -> Committed[T]:
    """Run `function` until what it read is still so when what it wrote is written.

    Raises what the function raises, without writing anything. Raises `LimitExceeded` or `TooLarge`
    if it reads or writes more keys than a transaction may have (`txn_ops_max`), and OutcomeUnknown
    if it cannot be known whether it was committed.
    """
    while True:
        transaction = Transaction(store)
        try:
            value = await function(transaction)
            revision = await transaction.commit()
        except Compacted:
            revision = None  # it took so long that its revision was forgotten
        if revision is not None:
            return Committed(value, revision)
        await asyncio.sleep(0)
