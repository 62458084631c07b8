"""Walks over a range in pages, of one caller and of clients that page by themselves.

The keyspace goes on in between. What is held of the past must fit it all the same, and must not
cost more the more pages there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftkv.errors import ReadTimeout
from raftkv.kv import (
    FROM_KEY,
    KV,
    Compacted,
    DeleteRangeOp,
    EmptyKey,
    FutureRevision,
    KeyValue,
    KVApi,
    PutOp,
    RangeOp,
    RangeResult,
    compaction,
)
from raftkv.kv.history import Past
from raftkv.kv.large import SLICE_KEYS
from raftkv.kv.past_reads import PASTS_MAX
from raftkv.kv.service import KVService
from raftkv.kv.work_budget import WORK_MAX
from raftkv.plugin import Host
from tests.kv.fake_host import FakeHost

T = TypeVar("T")
NAMES = [b"%c" % code for code in range(ord("a"), ord("m"))]


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(coroutine)


async def fill(kv: KVApi, keys: int) -> None:
    for number in range(keys):
        await kv.put(b"k%04d" % number, b"old")


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The keys of all events that were looked at in the history."""
    seen: list[bytes] = []
    undo = Past._undo

    def counting(past: Past, kv: KeyValue, prev: KeyValue | None) -> None:
        seen.append(kv.key)
        undo(past, kv, prev)

    monkeypatch.setattr(Past, "_undo", counting)
    return seen


def test_a_walk_looks_at_each_change_once(kv: KVApi, looked_at: list[bytes]) -> None:
    async def walk() -> list[bytes]:
        found = []
        await fill(kv, 100)
        async for page in kv.pages(page_keys=5):
            found += [each.value for each in page.kvs]
            for number in range(0, 100, 10):
                await kv.put(b"k%04d" % number, b"new")
        return found

    assert run(walk()) == [b"old"] * 100
    assert 0 < len(looked_at) <= 200


def test_pages_of_a_client_look_at_each_change_once(kv: KVApi, looked_at: list[bytes]) -> None:
    async def walk() -> list[RangeResult]:
        await fill(kv, 100)
        pages = [await kv.range(b"k", limit=5)]
        while pages[-1].more:
            for number in range(0, 100, 10):
                await kv.put(b"k%04d" % number, b"new")
            begin = pages[-1].kvs[-1].key + b"\0"
            pages.append(await kv.range(begin, limit=5, revision=pages[0].revision))
        return pages

    pages = run(walk())
    assert [each.count for each in pages] == list(range(100, 0, -5))
    assert [each.value for page in pages for each in page.kvs] == [b"old"] * 100
    assert 0 < len(looked_at) <= 200


def test_a_compaction_that_a_walk_has_overtaken_does_not_concern_it(kv: KVApi) -> None:
    async def walk() -> list[bytes]:
        found = []
        await fill(kv, 6)
        async for page in kv.pages(page_keys=2):
            found += [each.value for each in page.kvs]
            await kv.put(b"k0005", b"new")
            await kv.compact(kv.revision)
        return found

    assert run(walk()) == [b"old"] * 6


def test_changes_that_are_compacted_between_two_pages_end_a_walk_once_their_rows_are_gone(
    kv: KVApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def walk() -> list[bytes]:
        found = []
        await fill(kv, 6)
        async for page in kv.pages(page_keys=2):
            found += [each.value for each in page.kvs]
            await kv.put(b"k0005", b"new")
            await kv.put(b"k0005", b"newer")
            await kv.compact(kv.revision)
        return found

    assert run(walk()) == [b"old"] * 6
    monkeypatch.setattr(compaction, "GRACE_ROWS", 1)
    with pytest.raises(Compacted, match="while a range was read") as caught:
        run(walk())
    assert caught.value.args[1] == kv.revision


def test_a_walk_of_a_keyspace_that_has_no_history_yet() -> None:
    host = FakeHost(version=1)
    kv = KVApi(cast(Host, host))

    async def walk() -> None:
        await fill(kv, 6)
        walk = kv.walk(RangeOp(b"\0", FROM_KEY))
        assert len((await walk.page(2)).kvs) == 2
        assert len((await walk.page(2)).kvs) == 2
        await kv.put(b"k0005", b"new")
        await walk.page(2)

    with pytest.raises(Compacted):
        run(walk())


def test_the_limit_of_a_walk_is_that_of_all_pages(kv: KVApi) -> None:
    async def walk(limit: int, keys_max: int) -> list[tuple[int, int, bool]]:
        found = []
        walk = kv.walk(RangeOp(b"k", b"l", limit))
        while not walk.done():
            page = await walk.page(keys_max, consistency="local")
            found.append((len(page.kvs), page.count, page.more))
        return found

    run(fill(kv, 6))
    assert run(walk(0, 4)) == [(4, 6, True), (2, 2, False)]
    assert run(walk(5, 4)) == [(4, 6, True), (1, 2, True)]
    assert run(walk(4, 4)) == [(4, 6, True)]
    assert run(walk(6, 4)) == [(4, 6, True), (2, 2, False)]
    assert run(walk(9, 3)) == [(3, 6, True), (3, 3, False)]
    with pytest.raises(ValueError, match="limit"):
        kv.walk(RangeOp(b"k", b"l", -1))
    with pytest.raises(EmptyKey):
        kv.walk(RangeOp(b"", b"l"))
    with pytest.raises(FutureRevision):
        run(kv.walk(RangeOp(b"k", b"l", revision=99)).page(1))


def test_a_past_is_kept_as_long_as_there_are_pages(kv: KVApi) -> None:
    async def read(first: bytes, **how: Any) -> int:
        await kv.range(first, **how)
        return len(kv.pasts)

    run(fill(kv, 6))
    run(kv.put(b"k0000", b"new"))
    assert run(read(b"k", revision=7, limit=2)) == 1
    assert run(read(b"k0002", revision=7, limit=2)) == 1
    assert run(read(b"k0004", revision=7, limit=2)) == 0
    # Of one key, and of all at once, nothing will be asked again.
    assert run(read(b"k", revision=7)) == 0
    assert run(kv.get(b"k0001", revision=7)) is not None
    assert len(kv.pasts) == 0
    # Each revision is a past of its own; the one used last is the last to go.
    for revision in range(2, 2 + PASTS_MAX):
        run(read(b"k", revision=revision, limit=1))
    run(kv.range(b"k", revision=3, limit=1))
    assert run(read(b"k", revision=7, limit=1)) == PASTS_MAX
    run(kv.range(b"k", revision=3, limit=1))
    assert len(kv.pasts) == PASTS_MAX


def test_a_past_goes_with_its_revision(host: FakeHost, kv: KVApi) -> None:
    service = KVService(cast(Host, host), kv)
    run(fill(kv, 6))
    for revision in (4, 5):
        run(kv.range(b"k", revision=revision, limit=1))
    run(kv.compact(5))
    with pytest.raises(Compacted):
        run(kv.range(b"k", revision=4, limit=1))
    service._pasts.compacted()
    assert [each.value for each in service.metrics() if each.name == "pasts"] == [1]
    service.on_restored(host.machine.index)
    assert [each.value for each in service.metrics() if each.name == "pasts"] == [0]


# Against a plain copy of each revision -----------------------------------------------------------

names = st.sampled_from(NAMES)
changes = st.one_of(
    st.tuples(st.just("put"), names),
    st.tuples(st.just("delete"), names),
    st.tuples(st.just("drop"), st.tuples(names, names)),
    st.tuples(st.just("txn"), st.tuples(names, names, names)),
)
steps = st.one_of(
    changes,
    changes,
    st.tuples(st.just("compact"), st.integers(0, 3)),
    st.tuples(st.just("page"), st.integers(1, 4)),
    st.tuples(st.just("own page"), st.integers(1, 4)),
)


class Model:
    """What every revision was, and two readers of one of them."""

    def __init__(self, kv: KVApi, begin: bytes, end: bytes) -> None:
        self.kv = kv
        self.begin, self.end = begin, end
        self.states: dict[int, dict[bytes, KeyValue]] = {}
        self.lowest = -1

    async def note(self) -> None:
        found = await self.kv.range()
        self.states[self.kv.revision] = {each.key: each for each in found.kvs}

    def wanted(self, revision: int, begin: bytes) -> list[KeyValue]:
        state = self.states[revision]
        return [
            state[name]
            for name in sorted(state)
            if begin <= name and (self.end == FROM_KEY or name < self.end)
        ]

    def check(self, page: RangeResult, revision: int, begin: bytes, keys_max: int) -> bytes | None:
        """The page is right; where the next one begins, None after the last."""
        wanted = self.wanted(revision, begin)
        assert list(page.kvs) == wanted[:keys_max]
        assert (page.count, page.more) == (len(wanted), len(wanted) > keys_max)
        return page.kvs[-1].key + b"\0" if page.more else None

    async def change(self, kind: str, what: Any) -> None:
        kv = self.kv
        match kind:
            case "put":
                await kv.put(what, b"%d" % kv.revision)
            case "delete":
                await kv.delete(what)
            case "drop":
                await kv.delete_range(DeleteRangeOp(*sorted(what)))
            case _:
                one, two, three = what
                others = [DeleteRangeOp(each) for each in {two, three} - {one}]
                await kv.txn(success=[PutOp(one, b"%d" % kv.revision), *others])
        await self.note()


@settings(max_examples=150)
@given(
    st.lists(names, max_size=12),
    st.tuples(names, st.sampled_from([*NAMES, b"\0"])),
    st.lists(steps, max_size=40),
)
def test_pages_are_what_was_however_the_keyspace_goes_on(
    first: list[bytes], bounds: tuple[bytes, bytes], given_steps: list[tuple[str, Any]]
) -> None:
    run(_walk_in_steps(first, bounds, given_steps))


async def _walk_in_steps(
    first: list[bytes], bounds: tuple[bytes, bytes], given_steps: list[tuple[str, Any]]
) -> None:
    kv = KVApi(cast(Host, FakeHost()))
    model = Model(kv, *bounds)
    await model.note()
    for name in first:
        await model.change("put", name)
    revision = kv.revision
    walk = kv.walk(RangeOp(*bounds))
    at: bytes | None = model.check(await walk.page(1), revision, bounds[0], 1)
    own: bytes | None = bounds[0]
    seen = compacted = revision
    for kind, what in given_steps:
        if kind == "page":
            if at is None or seen + 1 < compacted:
                continue
            at = model.check(await walk.page(what), revision, at, what)
            assert (at is None) == walk.done()
            seen = kv.revision
        elif kind == "own page":
            if own is None or revision < compacted:
                continue
            operation = RangeOp(own, bounds[1], what, revision=revision)
            own = model.check(await kv.read(operation), revision, own, what)
        elif kind == "compact":
            if kv.revision - what > max(compacted, 1):
                compacted = kv.revision - what
                await kv.compact(compacted)
                kv.pasts.compacted()
        else:
            await model.change(kind, what)


# What many callers share ------------------------------------------------------------------------


async def most_in_a_turn(seen: list[bytes], work: list[Coroutine[Any, Any, Any]]) -> int:
    """How many entries one turn of the loop added to `seen` at most."""
    tasks = [asyncio.ensure_future(each) for each in work]
    before, most = len(seen), 0
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        most = max(most, len(seen) - before)
        before = len(seen)
    await asyncio.gather(*tasks)
    return most


@pytest.mark.parametrize("by_themselves", [False, True])
def test_however_many_read_the_past_a_turn_has_a_bounded_share(
    kv: KVApi, looked_at: list[bytes], by_themselves: bool
) -> None:
    """Of walks that wait for one another, and of clients that ask for pages by revision."""

    async def play() -> int:
        await fill(kv, 40)
        revision = kv.revision
        walks = [kv.walk(RangeOp(b"k", b"l")) for _ in range(50)]
        for walk in walks:
            await walk.page(10)
        for number in range(300):
            await kv.put(b"k%04d" % (number % 40), b"new")
        await asyncio.sleep(0)
        del looked_at[:]
        if by_themselves:
            past = [RangeOp(b"k", b"l", limit=n + 1, revision=revision) for n in range(50)]
            return await most_in_a_turn(looked_at, [kv.read(each) for each in past])
        return await most_in_a_turn(looked_at, [walk.page(10) for walk in walks])

    # A piece begins as long as there is room for one unit.
    assert run(play()) < WORK_MAX + 300
    # Some of the past are kept for others.
    assert len(looked_at) == 50 * 300 or by_themselves


def test_however_many_hash_or_sort_a_turn_has_a_bounded_share(
    kv: KVApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[bytes] = []
    whole = Past.scan

    def scan(past: Past, keys: Any, key: bytes, end: bytes, limit: int = 0) -> Any:
        for each in whole(past, keys, key, end, limit):
            read.append(each.key)
            yield each

    monkeypatch.setattr(Past, "scan", scan)

    async def play() -> list[int]:
        await fill(kv, 1500)
        works: list[list[Coroutine[Any, Any, Any]]] = [
            [kv.hash() for _ in range(20)],
            [kv.range(b"k", b"l", sort_by="value") for _ in range(20)],
            [kv.range(b"k", b"l") for _ in range(20)],
        ]
        return [await most_in_a_turn(read, work) for work in works]

    assert max(run(play())) < WORK_MAX + SLICE_KEYS


@pytest.mark.parametrize("keys_after", [0, 500])
def test_a_walk_ends_with_the_state_that_it_walks_over(keys_after: int) -> None:
    """As a replicant does at a newer epoch; what it copies then may be at any revision."""

    async def play() -> None:
        host = FakeHost()
        kv = KVApi(cast(Any, host))
        await fill(kv, 100)
        walk = kv.walk(RangeOp(b"k", b"l"))
        await walk.page(10)
        host.machine.reset()
        host.up(nonce=2, version=KV.version)
        await fill(kv, keys_after)
        with pytest.raises(ReadTimeout, match="discarded"):
            await walk.page(10)
        assert len((await kv.walk(RangeOp(b"k", b"l")).page(10)).kvs) == min(10, keys_after)

    run(play())


@pytest.mark.parametrize("paged", [False, True])
def test_a_read_in_slices_ends_with_the_state_that_it_reads(paged: bool) -> None:
    async def play() -> None:
        host = FakeHost()
        kv = KVApi(cast(Any, host))
        await fill(kv, 9000)
        # One of the past looks at the history in slices, one of the present at the keys.
        revision = 2 if paged else 0
        reading = asyncio.ensure_future(kv.range(b"k", limit=5 if paged else 0, revision=revision))
        await asyncio.sleep(0)
        assert not reading.done()
        host.machine.reset()
        host.up(nonce=2, version=KV.version)
        await fill(kv, 9500)
        with pytest.raises(ReadTimeout, match="discarded"):
            await reading

    run(play())
