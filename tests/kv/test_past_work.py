"""Reads of the past and large ranges: in a turn each looks at a bounded part of the changes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from raftkv.errors import ReadTimeout
from raftkv.kv import KV, KVApi, PutOp, RangeOp
from raftkv.kv.history import Past, Tables, revision_of
from raftkv.kv.large import LONG_AT_ONCE, LONG_KEYS, SLICE_KEYS
from raftkv.kv.walk import PAST_EVENTS
from raftkv.kv.work_budget import WORK_MAX, WorkBudget
from raftkv.plugin import Host, View
from tests.kv.fake_host import FakeHost

Work = Callable[[KVApi, int], Coroutine[Any, Any, object]]


async def filled(keys: int) -> tuple[FakeHost, KVApi]:
    host = FakeHost()
    kv = KVApi(cast(Host, host))
    for begin in range(0, keys, 100):
        names = range(begin, min(begin + 100, keys))
        await kv.txn(success=[PutOp(b"k%06d" % number, b"v") for number in names])
    return host, kv


# Each takes the revision before all keys were deleted in one.
DELETED: dict[str, Work] = {
    "get": lambda kv, revision: kv.get(b"absent", revision=revision),
    "count": lambda kv, revision: kv.range(prefix=b"k", count_only=True, revision=revision),
    "limited": lambda kv, revision: kv.range(prefix=b"k", limit=5, revision=revision),
    "sorted": lambda kv, revision: kv.range(prefix=b"k", sort_by="value", revision=revision),
    "page": lambda kv, revision: kv.walk(RangeOp(b"k", b"l", 10, revision=revision)).page(100),
    "transaction": lambda kv, revision: kv.txn(success=[RangeOp(b"absent", revision=revision)]),
}


@pytest.mark.parametrize("work", DELETED.values(), ids=DELETED.keys())
def test_one_change_of_many_keys_is_looked_at_in_several_turns(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, looked = 0, Counter[int]()
    catch_up = Past.catch_up

    def counted(past: Past, tables: Tables, events_max: int, upto: int | None = None) -> int:
        events = catch_up(past, tables, events_max, upto)
        looked[now] += events
        return events

    monkeypatch.setattr(Past, "catch_up", counted)

    async def play() -> None:
        nonlocal now
        _, kv = await filled(9_000)
        before = kv.revision
        await kv.delete(prefix=b"k")
        tasks = [asyncio.create_task(work(kv, before)) for _ in range(8)]
        while not all(task.done() for task in tasks):
            now += 1
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        # One piece of PAST_EVENTS in each turn of the loop, of which two may count as one here,
        # beside those that look at few.
        assert max(looked.values()) <= 2 * PAST_EVENTS + WORK_MAX

    asyncio.run(play())


def test_rows_that_are_gone_are_read_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    now, spent = 0, Counter[int]()
    spend = WorkBudget.spend

    def counted(budget: WorkBudget, units: int) -> None:
        spent[now] += units
        spend(budget, units)

    async def play() -> None:
        nonlocal now
        _, kv = await filled(3_000)
        before = kv.revision
        await kv.delete(prefix=b"k")
        walks = [kv.walk(RangeOp(b"k", b"l", revision=before)) for _ in range(20)]
        for walk in walks:
            await walk.page(1_000)
        monkeypatch.setattr(WorkBudget, "spend", counted)
        tasks = [asyncio.create_task(walk.page(1_000)) for walk in walks]
        while not all(task.done() for task in tasks):
            now += 1
            await asyncio.sleep(0)
        assert {len((await task).kvs) for task in tasks} == {1_000}
        # Two turns of the loop may count as one here.
        assert max(spent.values()) <= 2 * WORK_MAX

    asyncio.run(play())


def test_a_get_follows_the_changes_of_its_key_in_several_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play() -> None:
        spent: list[int] = []
        spend = WorkBudget.spend

        def noted(budget: WorkBudget, units: int) -> None:
            spent.append(units)
            spend(budget, units)

        _, kv = await filled(1)
        before = kv.revision
        for number in range(3 * PAST_EVENTS):
            await kv.put(b"k000000", b"%d" % number)
        monkeypatch.setattr(WorkBudget, "spend", noted)
        task = asyncio.create_task(kv.get(b"k000000", revision=before))
        turns = 0
        while not task.done():
            turns += 1
            await asyncio.sleep(0)
        found = await task
        assert found is not None
        assert found.value == b"v"
        assert sum(spent) == 3 * PAST_EVENTS
        assert turns > 3

    asyncio.run(play())


def test_a_key_that_is_deleted_while_its_past_is_read_counts() -> None:
    async def play() -> None:
        _, kv = await filled(1)
        before = kv.revision
        for number in range(PAST_EVENTS):
            await kv.put(b"k000000", b"%d" % number)
        task = asyncio.create_task(kv.read(RangeOp(b"k000000", revision=before)))
        await asyncio.sleep(0)
        await kv.delete(b"k000000")
        found = await task
        assert (found.count, [kv.value for kv in found.kvs]) == (1, [b"v"])

    asyncio.run(play())


def test_a_past_that_stops_within_a_change_is_that_which_looks_at_all() -> None:
    def shown(past: Past, view: View) -> tuple[int, list[bytes]]:
        keys = view.table("keys")
        return past.count(keys, b"k", b"l"), [kv.key for kv in past.scan(keys, b"k", b"l")]

    async def play() -> None:
        host, kv = await filled(30)
        before = kv.revision
        await kv.delete(prefix=b"k00001")
        await kv.txn(success=[PutOp(b"k%06d" % number, b"w") for number in range(5, 15)])
        await kv.delete(b"k000002")
        view = host.view()
        whole = Past(b"k", b"l", before)
        assert whole.catch_up(view, 1_000) == 10 + 10 + 1
        for events_max in (1, 2, 3, 7, 10, 11, 20):
            past, looked = Past(b"k", b"l", before), 0
            while past.is_behind(view):
                events = past.catch_up(view, events_max)
                assert 0 < events <= events_max
                looked += events
            assert looked == 21
            assert past.revisions_behind(revision_of(view)) == 0
            assert shown(past, view) == shown(whole, view)
        assert shown(whole, view)[0] == 30

    asyncio.run(play())


# Of another history than that which is read after the wait.
PAST: dict[str, Work] = {
    "get": lambda kv, revision: kv.get(b"absent", revision=revision),
    "count": lambda kv, revision: kv.range(prefix=b"k", count_only=True, revision=revision),
    "limited": lambda kv, revision: kv.range(prefix=b"k", limit=5, revision=revision),
    "transaction": lambda kv, revision: kv.txn(success=[RangeOp(b"k", b"l", revision=revision)]),
    "large": lambda kv, revision: kv.range(prefix=b"k", revision=revision),
    "hash": lambda kv, revision: kv.hash(revision),
}


@pytest.mark.parametrize("turns", [1, 2, 3, 4])
@pytest.mark.parametrize("work", PAST.values(), ids=PAST.keys())
def test_the_past_of_a_discarded_state_is_not_read(work: Work, turns: int) -> None:
    async def play() -> None:
        host, kv = await filled(1_500)
        before = kv.revision
        for begin in range(0, 1_500, 100):
            await kv.delete(b"k%06d" % begin, b"k%06d" % (begin + 100))
        for number in range(3_000):
            await kv.put(b"other", b"%d" % number)
        hogs = [asyncio.create_task(_hog(kv.budget)) for _ in range(5)]
        await asyncio.sleep(0)
        task = asyncio.create_task(work(kv, before))
        for _ in range(turns):
            await asyncio.sleep(0)
        assert not task.done()
        host.machine.reset()
        host.up(nonce=2, version=KV.version)
        kv.pasts.clear()
        for number in range(2_000):
            await kv.put(b"k%06d" % (number % 7), b"another history")
        with pytest.raises(ReadTimeout, match="discarded"):
            await task
        for hog in hogs:
            hog.cancel()
        assert len(kv.pasts) == 0

    asyncio.run(play())


async def _hog(budget: WorkBudget) -> None:
    while True:
        await budget.turn()


def test_large_ranges_end_beside_writes() -> None:
    """Together they look at more changes in a round of turns than one can look at in a turn."""

    async def play() -> None:
        _, kv = await filled(1_500)
        tasks = [asyncio.create_task(kv.range(prefix=b"k")) for _ in range(100)]
        number = 0
        for _ in range(1_000):
            await asyncio.sleep(0)
            if all(task.done() for task in tasks):
                break
            for _ in range(30):
                number += 1
                await kv.put(b"other%03d" % (number % 500), b"x")
        assert all(task.done() for task in tasks)
        assert {(await task).count for task in tasks} == {1_500}

    asyncio.run(play())


def test_a_range_waits_behind_none_that_take_seconds() -> None:
    async def play() -> None:
        _, kv = await filled(1_500)
        # Places are taken by the rows at the time of asking, so the long ranges need not be read.
        places = [kv._places.of(LONG_KEYS + 1) for _ in range(LONG_AT_ONCE)]
        for place in places:
            await place.__aenter__()
        assert (await kv.range(prefix=b"k")).count == 1_500
        waits = asyncio.create_task(_taken(kv, LONG_KEYS + 1))
        await asyncio.sleep(0)
        assert not waits.done()
        assert (await kv.range(prefix=b"k00000")).count == 10
        await places[0].__aexit__(None, None, None)
        await waits

    asyncio.run(play())


async def _taken(kv: KVApi, rows: int) -> None:
    async with kv._places.of(rows):
        pass


def test_rows_that_are_gone_by_now_count() -> None:
    async def play() -> None:
        _, kv = await filled(5_000)
        before = kv.revision
        await kv.delete(prefix=b"k")
        operation = RangeOp(b"k", b"l", revision=before)
        assert kv.rows(operation) > SLICE_KEYS
        assert kv.rows_max(operation) >= 5_000
        assert (kv.rows(RangeOp(b"k", b"l")), kv.rows_max(RangeOp(b"k", b"l"))) == (0, 0)

    asyncio.run(play())


def test_those_that_come_while_others_are_woken_wait_for_the_next_turn() -> None:
    async def play() -> None:
        budget, done = WorkBudget(), list[str]()

        async def work(name: str) -> None:
            await budget.room()
            done.append(name)
            budget.spend(WORK_MAX)

        first = [asyncio.create_task(work(name)) for name in "ab"]
        await asyncio.sleep(0)  # a has its turn, b waits
        assert done == ["a"]
        asyncio.get_running_loop().call_soon(lambda: first.append(asyncio.create_task(work("c"))))
        turns = 0
        while len(done) < 3:
            turns += 1
            await asyncio.sleep(0)
            assert len(done) <= 1 + turns
        assert done == ["a", "b", "c"]

    asyncio.run(play())


def test_what_a_page_has_passed_is_dropped_in_several_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A page that gives one key may have passed all those that were created since."""
    now, dropped = 0, Counter[int]()
    free = Past.free

    def counted(past: Past, keys_max: int) -> int:
        keys = free(past, keys_max)
        dropped[now] += keys
        return keys

    monkeypatch.setattr(Past, "free", counted)

    async def play() -> None:
        nonlocal now
        _, kv = await filled(0)
        await kv.txn(success=[PutOp(b"kz%d" % number, b"v") for number in range(9)])
        before = kv.revision
        for begin in range(0, 3 * PAST_EVENTS, 100):
            names = range(begin, begin + 100)
            await kv.txn(success=[PutOp(b"k%06d" % number, b"v") for number in names])
        walk = kv.walk(RangeOp(b"k", b"l", revision=before))
        for number in range(9):
            task = asyncio.create_task(walk.page(1))
            while not task.done():
                now += 1
                await asyncio.sleep(0)
            page = await task
            assert ([kv.key for kv in page.kvs], page.count) == ([b"kz%d" % number], 9 - number)
        assert sum(dropped.values()) == 3 * PAST_EVENTS
        assert max(dropped.values()) <= PAST_EVENTS

    asyncio.run(play())


def test_a_past_drops_all_that_it_holds_of_the_keys_that_were_passed() -> None:
    async def play() -> None:
        host, kv = await filled(30)
        before = kv.revision
        await kv.delete(b"k000000", b"k000020")
        await kv.txn(success=[PutOp(b"k%06dx" % number, b"v") for number in range(30)])
        view = host.view()
        keys = view.table("keys")
        past = Past(b"k", b"l", before)
        past.catch_up(view, 1_000)
        past.forget_before(b"k000015")
        assert [past.free(7) for _ in range(6)] == [7, 7, 7, 7, 2, 0]
        held = past._was, past._gone, past._new
        assert [len(each) for each in held] == [5 + 15, 5, 15]
        assert {min(each) for each in held} == {b"k000015", b"k000015x"}
        assert past.count(keys, b"k000015", b"l") == 15
        assert len(list(past.scan(keys, b"k000015", b"l"))) == 15
        past.forget_before(b"l")
        assert [past.free(1_000), past.free(1_000)] == [20, 0]
        assert [len(each) for each in held] == [0, 0, 0]

    asyncio.run(play())
