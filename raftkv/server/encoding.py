"""Answers of etcd's v3 JSON gateway, written as bytes.

The answers are put together from preencoded pieces instead of through a JSON encoder: they hold
nothing but base64 and decimal numbers, neither of which needs escaping, and this is the hot path.
The form is that of etcd's gateway: snake-case names, bytes as base64, 64-bit integers as strings,
defaults left out.
"""

from __future__ import annotations

import binascii
import hashlib
from collections.abc import Iterable, Sequence
from typing import Protocol

from raftkv.kv import Event

from .ports import DoorNode

__all__ = [
    "Head",
    "Headers",
    "Row",
    "b64",
    "deleted_answer",
    "events_json",
    "kv_json",
    "put_answer",
    "range_answer",
    "txn_answer",
    "wire_id",
]

b64 = binascii.b2a_base64


class Row(Protocol):
    """A key with its value and revisions, as the keyspace returns it."""

    @property
    def key(self) -> bytes: ...
    @property
    def value(self) -> bytes: ...
    @property
    def create_revision(self) -> int: ...
    @property
    def mod_revision(self) -> int: ...
    @property
    def version(self) -> int: ...
    @property
    def lease(self) -> int: ...


def wire_id(*names: str) -> int:
    """A stable, non-zero 64-bit number for names: etcd's cluster and member ids are numbers."""
    digest = hashlib.blake2b("\0".join(names).encode(), digest_size=8).digest()
    return int.from_bytes(digest) or 1


class Head:
    """The `header` of every answer; all but the revision is encoded once per term."""

    def __init__(self, cluster_id: int, member_id: int) -> None:
        self._before = b'{"cluster_id":"%d","member_id":"%d"' % (cluster_id, member_id)
        self._term = -1
        self._after = b""

    def json(self, revision: int, term: int) -> bytes:
        """The header's JSON; a revision or term of 0 is left out, as a default."""
        if term != self._term:
            self._term = term
            self._after = b',"raft_term":"%d"}' % term if term else b"}"
        if revision:
            return b'%b,"revision":"%d"%b' % (self._before, revision, self._after)
        return self._before + self._after


class Headers:
    """The headers of a node's answers."""

    def __init__(self, node: DoorNode) -> None:
        self._node = node
        self._head: Head | None = None

    def json(self, revision: int) -> bytes:
        """The header of an answer that is of this revision; 0 leaves it out."""
        head = self._head
        if head is None:
            status = self._node.status()
            cluster = status.cluster_id
            head = Head(wire_id(cluster), wire_id(cluster, status.name))
            if cluster:  # a node that has not found its cluster yet has no id to remember
                self._head = head
        return head.json(revision, self._node.term)


def kv_json(row: Row) -> bytes:
    """One key: etcd's `mvccpb.KeyValue`."""
    tail = b""
    if row.value:
        tail = b',"value":"%b"' % b64(row.value, newline=False)
    if row.lease:
        tail += b',"lease":"%d"' % row.lease
    return b'{"key":"%b","create_revision":"%d","mod_revision":"%d","version":"%d"%b}' % (
        b64(row.key, newline=False),
        row.create_revision,
        row.mod_revision,
        row.version,
        tail,
    )


def put_answer(head: bytes, prev: Row | None) -> bytes:
    """`PutResponse`."""
    if prev is None:
        return b'{"header":%b}' % head
    return b'{"header":%b,"prev_kv":%b}' % (head, kv_json(prev))


def range_answer(head: bytes, rows: Sequence[Row], more: bool, count: int) -> bytes:
    """`RangeResponse`."""
    parts = [b'{"header":', head]
    if rows:
        encoded = [kv_json(row) for row in rows]
        parts += [b',"kvs":[', b",".join(encoded), b"]"]
    if more:
        parts.append(b',"more":true')
    if count:
        parts.append(b',"count":"%d"' % count)
    parts.append(b"}")
    return b"".join(parts)


def deleted_answer(head: bytes, deleted: int, prevs: Sequence[Row]) -> bytes:
    """`DeleteRangeResponse`."""
    tail = b',"deleted":"%d"' % deleted if deleted else b""
    if prevs:
        tail += b',"prev_kvs":[%b]' % b",".join([kv_json(row) for row in prevs])
    return b'{"header":%b%b}' % (head, tail)


def events_json(events: Iterable[Event]) -> bytes:
    """The events of a `WatchResponse`. Of a deleted key the name and the revision are left."""
    parts = []
    for event in events:
        row = event.kv
        prev = b"" if event.prev is None else b',"prev_kv":%b' % kv_json(event.prev)
        if row.version:
            parts.append(b'{"kv":%b%b}' % (kv_json(row), prev))
        else:
            key = b64(row.key, newline=False)
            form = b'{"type":"DELETE","kv":{"key":"%b","mod_revision":"%d"}%b}'
            parts.append(form % (key, row.mod_revision, prev))
    return b"[%b]" % b",".join(parts)


def txn_answer(head: bytes, succeeded: bool, responses: Sequence[bytes]) -> bytes:
    """`TxnResponse`; `responses` are finished JSON objects."""
    tail = b',"succeeded":true' if succeeded else b""
    if responses:
        tail += b',"responses":[%b]' % b",".join(responses)
    return b'{"header":%b%b}' % (head, tail)
