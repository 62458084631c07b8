"""Reads of the past beside each other and beside other work: what is counted, and who waits."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from msgspec.structs import replace

from raftkv.kv import Compare, KVApi, PutOp, RangeOp
from raftkv.kv.commands import Revision
from raftkv.kv.history import Past, Tables, events_behind
from raftkv.kv.large import SHORT_AT_ONCE
from raftkv.kv.read_only import UNITS_MAX
from raftkv.kv.walk import PAST_EVENTS
from raftkv.kv.work_budget import WORK_MAX, WorkBudget
from raftkv.plugin import Host
from tests.kv.fake_host import FakeHost


async def put_keys(kv: KVApi, prefix: bytes, count: int) -> None:
    for begin in range(0, count, 100):
        names = range(begin, min(begin + 100, count))
        await kv.txn(success=[PutOp(prefix + b"%06d" % number, b"v") for number in names])


async def filled(keys: int) -> KVApi:
    kv = KVApi(cast(Host, FakeHost()))
    await put_keys(kv, b"k", keys)
    return kv


class Spent:
    """The units that a budget spends in each turn of the loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.number = 0
        self.by_turn = Counter[int]()
        spend = WorkBudget.spend

        def counted(budget: WorkBudget, units: int) -> None:
            self.by_turn[self.number] += units
            spend(budget, units)

        monkeypatch.setattr(WorkBudget, "spend", counted)

    async def until(self, tasks: list[asyncio.Task[Any]], turns_max: int = 100_000) -> None:
        while not all(task.done() for task in tasks):
            self.number += 1
            assert self.number < turns_max, "others have every turn"
            await asyncio.sleep(0)


Read = Callable[[KVApi, int], Awaitable[object]]


async def _one_key_changed(kv: KVApi) -> Read:
    for number in range(2 * PAST_EVENTS):
        await kv.put(b"k000000", b"%d" % number)
    return lambda kv, revision: kv.get(b"k000000", revision=revision)


async def _all_deleted(kv: KVApi) -> Read:
    await kv.delete(prefix=b"n")
    return lambda kv, revision: kv.range(prefix=b"k", count_only=True, revision=revision)


@pytest.mark.parametrize("change", [_one_key_changed, _all_deleted])
def test_other_large_work_has_turns_beside_reads_that_keep_up(
    change: Callable[[KVApi], Awaitable[Read]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        kv = await filled(2_000)
        await put_keys(kv, b"n", 3 * PAST_EVENTS)
        before = kv.revision
        read = await change(kv)

        async def client() -> None:
            while True:
                await read(kv, before)

        clients = [asyncio.create_task(client()) for _ in range(3)]
        for _ in range(20):
            await asyncio.sleep(0)
        others: list[asyncio.Task[Any]] = [
            asyncio.create_task(kv.budget.turn()),
            asyncio.create_task(kv.range(prefix=b"k")),
        ]
        await Spent(monkeypatch).until(others, 100)
        assert not any(task.done() for task in clients)
        for task in clients:
            task.cancel()

    asyncio.run(play())


class _History:
    """Rows of one change each, and how often one is looked at."""

    def __init__(self, newest: int) -> None:
        self.newest = newest
        self.looks = 0

    def __contains__(self, number: int) -> bool:
        self.looks += 1
        return number <= self.newest

    def __getitem__(self, number: int) -> Revision:
        self.looks += 1
        return cast(Revision, cast(object, _Row()))

    def table(self, name: str) -> Any:
        return self if name == "history" else {"revision": self.newest}


class _Row:
    more = ()


def test_the_changes_behind_a_revision_are_not_counted_one_by_one() -> None:
    tables = _History(50_000)
    assert events_behind(cast(Tables, tables), 100, 1_001) >= 1_001
    assert tables.looks < 5
    assert events_behind(cast(Tables, tables), 49_990, 1_001) == 10
    assert events_behind(cast(Tables, _History(10)), 10, 5) == 0


def test_a_read_of_few_keys_counts_no_more_changes_than_these() -> None:
    async def play() -> None:
        kv = await filled(1_000)
        before = kv.revision
        await put_keys(kv, b"other", 3_000)
        assert kv.rows(RangeOp(b"k", b"l", 5, revision=before)) == 5

    asyncio.run(play())


@pytest.mark.parametrize(
    "read",
    [
        lambda kv, revision: kv.range(prefix=b"k", limit=1, revision=revision),
        lambda kv, revision: kv.walk(RangeOp(b"k", b"l", revision=revision)).page(1),
        lambda kv, revision: kv.txn(
            success=[RangeOp(b"k", b"l", 1, revision=revision)], timeout_s=120
        ),
    ],
    ids=["limited", "page", "transaction"],
)
def test_keys_that_were_created_since_are_passed_in_several_turns(
    read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        kv = await filled(0)
        await kv.txn(success=[PutOp(b"kz1", b"v"), PutOp(b"kz2", b"v")])
        before = kv.revision
        await put_keys(kv, b"k", 4 * PAST_EVENTS)
        await kv.range(prefix=b"k", limit=1, revision=before)
        assert len(kv.pasts) == 1  # nothing has changed since for those that read the same
        spent = Spent(monkeypatch)
        tasks = [asyncio.ensure_future(read(kv, before)) for _ in range(10)]
        await spent.until(tasks)
        for task in tasks:
            found: Any = task.result()
            found = found.results[0] if hasattr(found, "results") else found
            assert [kv.key for kv in found.kvs] == [b"kz1"]
            assert (found.count, found.more) == (2, True)
        # Each passes all of them, so all count; two turns of the loop may count as one here.
        assert sum(spent.by_turn.values()) >= 10 * 4 * PAST_EVENTS
        assert max(spent.by_turn.values()) <= 3 * WORK_MAX

    asyncio.run(play())


def test_a_limited_read_of_the_past_is_the_beginning_of_the_whole() -> None:
    """Also while keys are created and deleted between its slices."""

    async def play() -> None:
        kv = await filled(3 * PAST_EVENTS)
        before = kv.revision
        whole = [kv.key for kv in (await kv.range(prefix=b"k", revision=before)).kvs]
        await kv.delete(b"k000000", b"k001000")
        await put_keys(kv, b"k00", 3 * PAST_EVENTS)
        tasks = [
            asyncio.create_task(kv.range(prefix=b"k", limit=limit, revision=before, keys_only=True))
            for limit in (1, 999, 1_000)
        ]
        number = 0
        while not all(task.done() for task in tasks):
            number += 1
            await kv.put(b"k%06dx" % (number % 2_000), b"x")
            await kv.delete(b"k%06d" % (2_000 + number % 3_000))
            await asyncio.sleep(0)
        for task in tasks:
            found = await task
            assert [kv.key for kv in found.kvs] == whole[: len(found.kvs)]
            assert {kv.value for kv in found.kvs} == {b""}
            assert (found.count, found.more) == (len(whole), True)
            assert found.revision > before
        assert [len((await task).kvs) for task in tasks] == [1, 999, 1_000]

    asyncio.run(play())


def test_a_walk_over_one_key_ends_with_it() -> None:
    async def play() -> None:
        kv = await filled(0)
        await kv.txn(success=[PutOp(b"k", b"v"), PutOp(b"k\0", b"w")])
        before = kv.revision
        assert [each.key for each in (await kv.walk(RangeOp(b"k")).page(10)).kvs] == [b"k"]
        await kv.delete(prefix=b"k")
        walk = kv.walk(RangeOp(b"k", revision=before))
        assert [each.key for each in (await walk.page(10)).kvs] == [b"k"]
        assert walk.done()

    asyncio.run(play())


def test_a_walk_announces_no_less_than_it_looks_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """More keys were created since its last page, and deleted, than the range has had."""

    async def play() -> None:
        kv = await filled(2_000)
        walks = [kv.walk(RangeOp(b"k", b"l")) for _ in range(50)]
        for walk in walks:
            await walk.page(10)
        await put_keys(kv, b"k1", 3_000)
        for walk in walks:
            await walk.page(10)
        await kv.delete(prefix=b"k")
        spent = Spent(monkeypatch)
        kv.budget.spend(WORK_MAX)
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(walk.page(1_000)) for walk in walks]
        await asyncio.sleep(0)
        tasks += [asyncio.create_task(kv.budget.turn()) for _ in range(100)]
        await spent.until(tasks)
        assert {len((await task).kvs) for task in tasks[:50]} == {1_000}
        assert max(spent.by_turn.values()) <= 2 * WORK_MAX
        # Work of no announced size, or of a wrong one, makes no room.
        await asyncio.gather(*[kv.budget.room(-3_000) for _ in range(3)])
        assert kv.budget._promised >= 0

    asyncio.run(play())


def test_a_range_of_many_keys_that_are_gone_has_a_place_among_the_long_ones() -> None:
    async def play() -> None:
        kv = await filled(1_500)
        await put_keys(kv, b"n", 21_000)
        before = kv.revision
        for number in range(21):
            await kv.delete(prefix=b"n0%02d" % number)
        past = [
            asyncio.create_task(kv.range(prefix=b"n", revision=before))
            for _ in range(SHORT_AT_ONCE)
        ]
        for _ in range(5):
            await asyncio.sleep(0)
        await kv.range(prefix=b"k")
        assert not any(task.done() for task in past)
        assert {(await task).count for task in past} == {21_000}

    asyncio.run(play())


def test_a_transaction_looks_at_one_large_change_in_several_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play() -> None:
        kv = await filled(9_000)
        before = kv.revision
        await kv.delete(prefix=b"k")
        spent = Spent(monkeypatch)
        read = kv.txn(success=[RangeOp(b"absent", revision=before)])
        await spent.until([asyncio.ensure_future(read)])
        # What it counts, and what the past of the range looks at.
        assert sum(spent.by_turn.values()) >= 2 * 9_000
        assert max(spent.by_turn.values()) <= 2 * UNITS_MAX

    asyncio.run(play())


@pytest.mark.parametrize("writes", [0, 3])
@pytest.mark.parametrize(
    ("operation", "operations", "changes"),
    [(RangeOp(b"k", b"l", 1), 20, 900), (RangeOp(b"absent"), 40, 900), (RangeOp(b"kz"), 9, 1_900)],
    ids=["limited", "absent", "key"],
)
def test_a_transaction_of_many_ranges_of_the_past_takes_its_turns(
    operation: RangeOp, operations: int, changes: int, writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each looks at few changes, together they look at many; also beside a writer that goes on."""
    looks = Looks(monkeypatch)

    async def play() -> None:
        kv = await filled(0)
        await kv.txn(success=[PutOp(b"kz", b"v")])
        operations_then = [replace(operation, revision=kv.revision)] * operations
        await put_keys(kv, b"k", changes)
        spent = Spent(monkeypatch)
        looks.spent = spent
        task = asyncio.create_task(kv.txn(success=operations_then, timeout_s=120))
        while not task.done():
            spent.number += 1
            for number in range(writes):
                await kv.put(b"k%06dx" % number, b"v")
            await asyncio.sleep(0)
        results = cast(Any, await task).results
        expected = [] if operation.key == b"absent" else [b"kz"]
        assert [[kv.key for kv in found.kvs] for found in results] == [expected] * operations
        # Two turns of the loop may count as one here.
        assert max(looks.by_turn.values()) <= 2 * UNITS_MAX
        # All of it counts.
        assert sum(looks.by_turn.values()) >= operations * changes
        assert sum(spent.by_turn.values()) >= sum(looks.by_turn.values())

    asyncio.run(play())


class Looks:
    """The rows and changes that pasts look at in each turn of the loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spent: Spent | None = None
        self.by_turn = Counter[int]()
        catch_up, part = Past.catch_up, Past.slice

        def caught_up(past: Past, *how: Any) -> int:
            return self._counted(catch_up(past, *how))

        def sliced(past: Past, *how: Any) -> Any:
            found = part(past, *how)
            self._counted(found[1])
            return found

        monkeypatch.setattr(Past, "catch_up", caught_up)
        monkeypatch.setattr(Past, "slice", sliced)

    def _counted(self, units: int) -> int:
        if self.spent is not None:
            self.by_turn[self.spent.number] += units
        return units


def test_a_transaction_of_few_rows_and_changes_is_read_in_one_turn() -> None:
    async def play() -> None:
        kv = await filled(100)
        before = kv.revision
        await put_keys(kv, b"k1", 100)
        operations = [RangeOp(b"k", b"l", revision=before), RangeOp(b"k", b"l")]
        task = asyncio.create_task(kv.txn([Compare(b"k", "version", ">", 0, b"l")], operations))
        await asyncio.sleep(0)
        assert task.done()
        assert [found.count for found in cast(Any, await task).results] == [100, 200]

    asyncio.run(play())
