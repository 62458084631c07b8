"""Reads of past revisions: their work is fixed when they come, and so many of them wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from raftkv.errors import Overloaded, ReadTimeout
from raftkv.kv import Compacted, KVApi, PutOp, past_reads
from raftkv.kv.history import Past, Tables
from raftkv.kv.past_reads import FEW_EVENTS as FEW
from raftkv.kv.past_reads import PAST_AT_ONCE
from raftkv.kv.service import KVService
from raftkv.kv.walk import NEAR_REVISIONS, PAST_EVENTS
from raftkv.kv.work_budget import WORK_MAX
from raftkv.plugin import Host
from tests.clocks import LONG_S
from tests.kv.fake_host import FakeHost


async def filled(keys: int) -> KVApi:
    kv = KVApi(cast(Host, FakeHost()))
    for begin in range(0, keys, 100):
        names = range(begin, min(begin + 100, keys))
        await kv.txn(success=[PutOp(b"k%06d" % number, b"v") for number in names])
    return kv


READS: dict[str, Callable[[KVApi, int, int], Coroutine[Any, Any, object]]] = {
    "absent": lambda kv, number, revision: kv.get(b"k%06d" % number, revision=revision),
    "changed": lambda kv, number, revision: kv.get(b"often", revision=revision),
    "count": lambda kv, number, revision: kv.range(
        prefix=b"k%04d" % number, count_only=True, revision=revision
    ),
    "limited": lambda kv, number, revision: kv.range(prefix=b"often", limit=1, revision=revision),
}


@pytest.mark.parametrize("large", [0, 4])
@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_reads_of_the_past_end_beside_each_other_and_a_writer(
    read: Callable[[KVApi, int, int], Coroutine[Any, Any, object]],
    large: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While one waits for all others, more is changed than one can look at in a turn."""
    readers, back, writes = 100, 500, 30
    looked = 0
    catch_up = Past.catch_up

    def counted(past: Past, tables: Tables, events_max: int, upto: int | None = None) -> int:
        nonlocal looked
        events = catch_up(past, tables, events_max, upto)
        looked += events if past.revision == revision else 0
        return events

    monkeypatch.setattr(Past, "catch_up", counted)
    revision = -1

    async def play() -> None:
        nonlocal revision
        kv = await filled(1_500)
        await kv.put(b"often", b"v")
        revision = kv.revision
        await kv.delete(b"k000000", b"k000200")
        for number in range(back):
            await kv.put(b"often", b"%d" % number)
        others = [asyncio.create_task(_ranges(kv)) for _ in range(large)]
        tasks = [asyncio.create_task(read(kv, each, revision)) for each in range(readers)]
        turns = 0
        while not all(task.done() for task in tasks):
            turns += 1
            assert turns < 4 * readers, "they look at what is changed while they wait"
            for number in range(writes):
                await kv.put(b"often", b"%d" % number)
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        # Each at what had been changed a few turns after it came; 200 keys were deleted at once.
        assert looked <= readers * (200 + back + 5 * writes)
        for other in others:
            other.cancel()

    asyncio.run(play())


async def _ranges(kv: KVApi) -> None:
    while True:
        await kv.range(prefix=b"k")


async def _held(kv: KVApi, events: int) -> list[Any]:
    """All places for reads of so many changes, held."""
    until = asyncio.get_running_loop().time() + LONG_S
    places = [kv.pasts.places.of(events, until) for _ in range(PAST_AT_ONCE)]
    for place in places:
        await place.__aenter__()
    return places


async def _much_changed() -> tuple[KVApi, int]:
    kv = await filled(100)
    before = kv.revision
    for number in range(PAST_EVENTS // 4):
        await kv.put(b"other", b"%d" % number)
    return kv, before


def test_so_many_reads_of_the_past_wait_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past_reads, "PAST_WAITING_MAX", 3)

    async def play() -> None:
        kv, before = await _much_changed()
        service = KVService(cast(Host, FakeHost()), kv)
        part = KVApi(kv._host, kv)  # of the same node
        places = await _held(kv, FEW)
        tasks = [
            asyncio.create_task(each.get(b"absent", revision=before)) for each in (kv, part, kv)
        ]
        for _ in range(3):
            await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="3 reads of past revisions wait"):
            await part.get(b"absent", revision=before)
        [waiting] = [each for each in service.metrics() if each.name == "past_reads_waiting"]
        assert waiting.value == 3
        # Those with few changes, and reads of the present, wait for no place.
        assert await kv.get(b"absent", revision=kv.revision - 5) is None
        assert (await kv.range(prefix=b"k")).count == 100
        tasks[1].cancel()
        for place in places:
            await place.__aexit__(None, None, None)
        assert await asyncio.gather(*tasks[::2]) == [None, None]
        assert kv.pasts.places.waiting == 0
        assert await kv.get(b"absent", revision=before) is None

    asyncio.run(play())


def test_reads_that_wait_refuse_none_that_needs_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past_reads, "PAST_WAITING_MAX", 1)

    async def play() -> None:
        kv, before = await _much_changed()
        places = await _held(kv, NEAR_REVISIONS + 1)
        until = asyncio.get_running_loop().time() + LONG_S
        long_one = kv.pasts.places.of(NEAR_REVISIONS + 1, until)
        waits = asyncio.create_task(long_one.__aenter__())
        await asyncio.sleep(0)
        assert kv.pasts.places.waiting == 1
        assert await kv.get(b"absent", revision=before) is None
        for place in places:
            await place.__aexit__(None, None, None)
        await waits
        await long_one.__aexit__(None, None, None)

    asyncio.run(play())


@pytest.mark.parametrize(("timeout_s", "passes"), [(8.0, 4.5), (None, 5.5)])
def test_a_read_of_the_past_waits_no_longer_than_its_time(
    timeout_s: float | None, passes: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        kv, before = await _much_changed()
        now, loop = 100.0, asyncio.get_running_loop()
        monkeypatch.setattr(loop, "time", lambda: now)
        places = await _held(kv, FEW)
        reads = [kv.get(b"absent", revision=before, timeout_s=timeout_s) for _ in range(2)]
        tasks = [asyncio.create_task(reads[0])]
        for _ in range(3):
            await asyncio.sleep(0)
        now += passes
        tasks.append(asyncio.create_task(reads[1]))
        for _ in range(3):
            await asyncio.sleep(0)
        with pytest.raises(ReadTimeout, match="in time"):
            await tasks[0]
        assert kv.pasts.places.waiting == 1
        for place in places:
            await place.__aexit__(None, None, None)
        assert await tasks[1] is None

    asyncio.run(play())


def test_a_read_of_the_past_looks_at_no_more_when_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play() -> None:
        kv, before = await _much_changed()
        for number in range(2 * PAST_EVENTS):
            await kv.put(b"other", b"%d" % number)
        now, loop = 100.0, asyncio.get_running_loop()
        monkeypatch.setattr(loop, "time", lambda: now)
        task = asyncio.create_task(kv.get(b"absent", revision=before, timeout_s=8.0))
        for _ in range(3):
            await asyncio.sleep(0)
        assert not task.done()
        now += 9.0
        with pytest.raises(ReadTimeout, match="in time"):
            await task

    asyncio.run(play())


def test_a_read_of_the_past_learns_that_its_revision_was_compacted_while_it_waited() -> None:
    async def play() -> None:
        kv, before = await _much_changed()
        places = await _held(kv, FEW)
        task = asyncio.create_task(kv.get(b"absent", revision=before))
        for _ in range(3):
            await asyncio.sleep(0)
        cast(FakeHost, kv._host).set("history_revisions", 10)
        for number in range(1_000):
            await kv.put(b"other", b"%d" % number)
        for place in places:
            await place.__aexit__(None, None, None)
        with pytest.raises(Compacted):
            await task

    asyncio.run(play())


def test_reads_of_the_past_need_a_place_when_what_was_kept_for_them_is_gone() -> None:
    """It is let go while they wait for a turn in which to look at the few changes since."""

    async def play() -> None:
        kv, before = await _much_changed()
        for number in range(2 * PAST_EVENTS):
            await kv.put(b"other", b"%d" % number)
        assert (await kv.range(prefix=b"k", limit=10, revision=before)).more
        assert len(kv.pasts) == 1
        asyncio.get_running_loop().call_soon(kv.budget.spend, WORK_MAX)
        tasks = [
            asyncio.create_task(kv.range(prefix=b"k", count_only=True, revision=before))
            for _ in range(2 * PAST_AT_ONCE)
        ]
        await asyncio.sleep(0)
        kv.pasts.clear()
        under_way = 0
        while not all(task.done() for task in tasks):
            under_way = max(under_way, len(kv.pasts._used))
            await asyncio.sleep(0)
        assert under_way == PAST_AT_ONCE
        assert {(await task).count for task in tasks} == {100}

    asyncio.run(play())
