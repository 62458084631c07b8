"""The hash of the keyspace: the same wherever the keys are the same, another one otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar, cast

import pytest

from raftkv.kv import Compacted, FutureRevision, KVApi
from raftkv.kv.hashing import KeyspaceHash
from raftkv.plugin import Host
from tests.kv.fake_host import FakeHost
from tests.kv.small_work import bounded_work

T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(coroutine)


def other() -> KVApi:
    return KVApi(cast(Host, FakeHost()))


async def fill(kv: KVApi) -> None:
    await kv.leases.grant(60, id=7)
    for number in range(25):
        await kv.put(b"k%02d" % number, b"v")
    await kv.put(b"k03", b"w", lease=7)
    await kv.delete(b"k20")


def test_the_form_of_the_digest_stays(kv: KVApi) -> None:
    """Nodes of two versions are compared while a cluster is upgraded."""
    empty = run(kv.hash())
    assert (empty.revision, empty.keys, empty.digest.hex()[:16]) == (1, 0, "0e5751c026e543b2")
    run(fill(kv))
    found = run(kv.hash())
    assert (found.revision, found.keys, found.digest.hex()[:16]) == (28, 24, "8a98788ff4f15af5")
    assert found.short == int(found.digest.hex()[:8], 16)


def test_it_depends_on_the_revision_and_not_on_what_came_later(
    kv: KVApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftkv.kv.hashing.SLICE_KEYS", 4)
    bounded_work(kv, monkeypatch, 4)
    run(fill(kv))
    was = run(kv.hash())

    async def meanwhile() -> KeyspaceHash:
        hashing = asyncio.ensure_future(kv.hash())
        for number in range(5):
            await asyncio.sleep(0)
            await kv.put(b"k24", b"%d" % number)
            await kv.delete(b"k%02d" % number)
        assert not hashing.done()
        return await hashing

    assert run(meanwhile()) == was
    assert run(kv.hash()) != was
    assert run(kv.hash(was.revision)) == was
    run(kv.compact(was.revision))
    assert run(kv.hash(was.revision)) == was
    assert run(kv.hash(was.revision + 2)).digest != was.digest
    with pytest.raises(Compacted):
        run(kv.hash(was.revision - 1))
    with pytest.raises(FutureRevision):
        run(kv.hash(99))


def test_large_values_are_hashed_a_few_in_each_turn(
    kv: KVApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(fill(kv))
    whole = run(kv.hash())
    monkeypatch.setattr("raftkv.kv.hashing.SLICE_BYTES", 4 * len(b"k00v"))

    async def turns() -> int:
        hashing, count = asyncio.create_task(kv.hash()), 0
        while not hashing.done():
            count += 1
            await asyncio.sleep(0)
        assert hashing.result() == whole
        return count

    assert run(turns()) >= 24 // 4


@pytest.mark.parametrize("change", ["value", "key", "lease", "version", "create", "gone"])
def test_any_difference_shows(kv: KVApi, change: str) -> None:
    theirs = other()

    async def apart() -> None:
        for each in (kv, theirs):
            await each.leases.grant(60, id=7)
            await each.put(b"a", b"1")
        match change:
            case "value":
                await kv.put(b"b", b"1")
                await theirs.put(b"b", b"2")
            case "key":
                await kv.put(b"b", b"x1")
                await theirs.put(b"bx", b"1")
            case "lease":
                await kv.put(b"b", b"1", lease=7)
                await theirs.put(b"b", b"1")
            case "version":
                # Two puts of one key, and one of it behind one that is gone again.
                for each, first in ((kv, b"b"), (theirs, b"c")):
                    await each.put(first, b"1")
                    await each.put(b"b", b"1")
                await theirs.delete(b"c")
                await kv.delete(b"c")
                await kv.put(b"d", b"1")
                await kv.delete(b"d")
            case "create":
                for each, early in ((kv, True), (theirs, False)):
                    await each.put(b"b" if early else b"c", b"1")
                    await each.put(b"c" if early else b"b", b"1")
            case _:
                await kv.put(b"b", b"1")
                await theirs.put(b"b", b"1")
                await theirs.delete(b"b")
        ours, found = await kv.hash(), await theirs.hash()
        assert ours.digest != found.digest

    run(apart())
