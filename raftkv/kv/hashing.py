"""One number for the whole keyspace as of a revision: nodes that differ in it differ in their data.

All nodes apply the same log, so at one revision they hold the same keys. That they do is worth
looking at now and then, for memory and programs have faults. The number depends on the revision and
on nothing else: not on how much history a node still has, nor on whether it came by its keys
through a snapshot or through entries.

It is BLAKE2b of 32 bytes over the keys in order, each as six numbers, big-endian: the lengths of
key and value (32 bits), create revision, mod revision, version and lease (64 bits, signed), and
then the key and the value.

A million keys take about two seconds of a node's time, in slices (large.py), while it goes on.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Final

import msgspec

from .commands import KeyValue
from .large import SLICE_KEYS
from .walk import Walk
from .work_budget import WorkBudget

__all__ = ["KeyspaceHash", "hash_in_slices"]

_DIGEST_BYTES: Final = 32
# Of keys and values, hashed in one turn of the loop: about two milliseconds.
SLICE_BYTES: Final = 1024 * 1024
_HEAD: Final = struct.Struct(">IIqqqq").pack


class KeyspaceHash(msgspec.Struct, frozen=True):
    """What the keyspace was at `revision`: so many keys, and their digest of 32 bytes."""

    revision: int
    keys: int
    digest: bytes

    @property
    def short(self) -> int:
        """The digest's first 32 bits, for etcd's field of that size."""
        return int.from_bytes(self.digest[:4])


async def hash_in_slices(walk: Walk, budget: WorkBudget) -> KeyspaceHash:
    """Hash what a walk over all keys finds. It must not have begun; it needs no barrier."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    page = await walk.page(SLICE_KEYS, consistency="local")
    revision, keys = page.revision, page.count
    await _hash(digest, page.kvs, budget)
    while not walk.done():
        page = await walk.page(SLICE_KEYS)
        await _hash(digest, page.kvs, budget)
    return KeyspaceHash(revision, keys, digest.digest())


async def _hash(digest: hashlib.blake2b, kvs: Sequence[KeyValue], budget: WorkBudget) -> None:
    """The keys of a page; large ones in several turns of the loop."""
    begin = size = 0
    for end, kv in enumerate(kvs, 1):
        size += len(kv.key) + len(kv.value)
        if size >= SLICE_BYTES:
            digest.update(_written(kvs[begin:end]))
            begin, size = end, 0
            await budget.turn()
    digest.update(_written(kvs[begin:]))


def _written(kvs: Sequence[KeyValue]) -> bytes:
    return b"".join(
        [
            _HEAD(
                len(kv.key),
                len(kv.value),
                kv.create_revision,
                kv.mod_revision,
                kv.version,
                kv.lease,
            )
            + kv.key
            + kv.value
            for kv in kvs
        ]
    )
