"""Reads of few rows do not wait behind those of many, and all rows that are read count."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from raftkv.errors import ReadTimeout
from raftkv.kv import KV, Compare, Grant, KVApi, PutOp, RangeOp
from raftkv.kv.read_only import READS_AT_ONCE
from raftkv.plugin import Host
from tests.kv.fake_host import FakeHost
from tests.kv.small_work import turns_beside_large

Work = Callable[[KVApi], Coroutine[Any, Any, object]]


async def filled(keys: int, host: FakeHost | None = None) -> KVApi:
    kv = KVApi(cast(Host, FakeHost() if host is None else host))
    for begin in range(0, keys, 100):
        names = range(begin, min(begin + 100, keys))
        await kv.txn(success=[PutOp(b"k%05d" % number, b"v") for number in names])
    await kv.put(b"z", b"last")
    return kv


async def all_pages(kv: KVApi) -> None:
    async for _ in kv.pages(prefix=b"k000", page_keys=30):
        pass


SMALL: dict[str, Work] = {
    "gets of a transaction": lambda kv: kv.txn(
        [Compare(b"k00001", "version", ">", 0)],
        [RangeOp(b"k%05d" % number) for number in range(20)],
    ),
    "two ranges of a transaction": lambda kv: kv.txn(
        success=[RangeOp(b"k0", b"k003"), RangeOp(b"k0", b"k003")]
    ),
    "range": lambda kv: kv.range(prefix=b"k0000"),
    "small pages": all_pages,
    "page": lambda kv: kv.walk(RangeOp(b"k0000", b"k0001")).page(1000),
    "limited page": lambda kv: kv.walk(RangeOp(b"k", b"l", 10)).page(1000),
    "page of the past": lambda kv: kv.walk(RangeOp(b"k0", b"k00005", revision=16)).page(1000),
    "leases": lambda kv: kv.leases.list(),
    "absent keys of a transaction": lambda kv: kv.txn(
        success=[RangeOp(b"x%05d" % number) for number in range(100)]
    ),
}


@pytest.mark.parametrize("work", SMALL.values(), ids=SMALL.keys())
def test_a_small_read_waits_behind_no_large_ones(work: Work) -> None:
    async def play() -> int:
        kv = await filled(1500)
        return await turns_beside_large(kv.budget, work(kv))

    assert asyncio.run(play()) < 15


@pytest.mark.parametrize("fields", [{}, {"sort_by": "mod", "limit": 1}, {"revision": 11}])
def test_ranges_of_many_callers_share_the_turns(fields: dict[str, Any]) -> None:
    """Those too that are not large enough to be read in pages."""

    async def play() -> int:
        kv, now, done = await filled(900), 0, list[int]()

        async def read() -> None:
            await kv.range(prefix=b"k", **fields)
            done.append(now)

        tasks = [asyncio.create_task(read()) for _ in range(50)]
        while len(done) < len(tasks):
            now += 1
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        return max(Counter(done).values())

    # A piece begins as long as there is room for one unit.
    assert asyncio.run(play()) <= 3


def test_a_range_that_waits_for_its_turn_begins_then() -> None:
    """What is changed meanwhile need not be looked at, and may be compacted."""

    async def play() -> None:
        kv = await filled(200)
        reading = asyncio.create_task(kv.walk(RangeOp(b"k", b"l")).page(1000))
        await kv.budget.turn()
        await asyncio.sleep(0)
        assert not reading.done()
        changed = await kv.put(b"k00000", b"later")
        page = await reading
        assert (page.revision, page.kvs[0].value) == (changed.revision, b"later")

    asyncio.run(play())


def test_the_list_of_leases_is_of_one_moment() -> None:
    """A lease that is in it was not granted behind one that is missing."""

    async def play() -> None:
        host = FakeHost()
        kv = KVApi(cast(Host, host))
        for number in range(1001, 11_001):
            host.apply(Grant(60, number))
        reading = asyncio.create_task(kv.leases.list())
        for number in range(1, 100):
            await asyncio.sleep(0)
            host.apply(Grant(60, number))
            host.apply(Grant(60, 100_000 + number))
        found = set(await reading)
        later = {each - 100_000 for each in found if each > 100_000}
        assert later == {each for each in found if each <= 100}

    asyncio.run(play())


WAITING: dict[str, Work] = {
    "range": lambda kv: kv.range(prefix=b"k"),
    "page": lambda kv: kv.walk(RangeOp(b"k", b"l")).page(1000),
    "large range": lambda kv: kv.range(prefix=b"k", sort_by="mod"),
    "transaction": lambda kv: kv.txn(success=[RangeOp(b"k", b"l")]),
    "leases": lambda kv: kv.leases.list(),
}


@pytest.mark.parametrize("keys", [300, 1500])
@pytest.mark.parametrize("work", WAITING.values(), ids=WAITING.keys())
def test_a_state_that_is_discarded_while_a_read_waits_is_not_read(work: Work, keys: int) -> None:
    """The barrier was for another one: a replicant copies a new state at a newer epoch."""

    async def play() -> None:
        host = FakeHost()
        kv = await filled(keys, host)
        # All that a transaction of many rows waits for.
        never = asyncio.get_running_loop().time() + 3600
        places = [kv._large_reads.of(never) for _ in range(READS_AT_ONCE)]
        for place in places:
            await place.__aenter__()
        task = asyncio.create_task(work(kv))
        await kv.budget.turn()
        await asyncio.sleep(0)
        assert not task.done()
        host.machine.reset()
        host.up(nonce=2, version=KV.version)
        await places[0].__aexit__(None, None, None)
        with pytest.raises(ReadTimeout, match="discarded"):
            await task

    asyncio.run(play())
