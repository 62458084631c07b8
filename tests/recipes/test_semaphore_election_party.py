"""What is held by several, by one whom all can see, and by everybody who is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

import pytest

from raftkv.errors import LockLost
from raftkv.kv import PutOp
from raftkv.recipes import Election, Leader, Party, Semaphore, Session, leader_of, members_of
from tests.recipes.helpers import MemoryStore, crash, keys, now, run, settled, started, take_away

T = TypeVar("T")


async def following(source: AsyncIterator[T], shown: list[T]) -> None:
    async for each in source:
        shown.append(each)


# Semaphore ----------------------------------------------------------------------------------------


def test_a_semaphore_is_held_by_so_many_at_a_time() -> None:
    async def test(store: MemoryStore) -> None:
        inside = most = 0
        tokens: set[int] = set()

        async def work(session: Session) -> None:
            nonlocal inside, most
            for _ in range(3):
                async with Semaphore(session, b"s", 3) as token:
                    tokens.add(token)
                    inside += 1
                    most = max(most, inside)
                    await asyncio.sleep(0.01)
                    inside -= 1

        async with Session(store) as one, Session(store) as two:
            await asyncio.gather(*(work(one if i % 2 else two) for i in range(12)))
        assert most == 3
        assert len(tokens) == 36
        assert keys(store, b"s/") == []

    run(test)


def test_a_semaphore_is_given_in_order_and_the_cancelled_and_dead_make_room() -> None:
    async def test(store: MemoryStore) -> None:
        async with Session(store, ttl_s=5) as dying, Session(store) as session:
            dead = Semaphore(dying, b"s", 2)
            await dead.acquire()
            held = Semaphore(session, b"s", 2)
            await held.acquire()
            tasks = await started(Semaphore(session, b"s", 2).acquire() for _ in range(4))
            tasks[0].cancel()
            await settled()
            assert [task.done() for task in tasks] == [True, False, False, False]
            await held.release()
            await settled()
            assert [task.done() for task in tasks] == [True, True, False, False]
            crash(dying)
            await asyncio.sleep(6)
            assert [task.done() for task in tasks] == [True, True, True, False]
            tasks[3].cancel()
            with pytest.raises(LockLost):
                await dead.check()

    run(test)


def test_a_semaphore_tells_of_another_limit_and_of_no_room() -> None:
    async def test(store: MemoryStore) -> None:
        async with Session(store) as session:
            one = Semaphore(session, b"s", 1)
            assert await one.try_acquire()
            assert await Semaphore(session, b"s", 1).try_acquire() is None
            with pytest.raises(ValueError, match="limit 2 here and with 1"):
                await Semaphore(session, b"s", 2).acquire()
            assert len(keys(store, b"s/")) == 1
            assert (await store.kv.txn([one.guard()], [PutOp(b"x", b"")])).succeeded
            with pytest.raises(ValueError, match="1 or more"):
                Semaphore(session, b"s", 0)

    run(test)


# Election -----------------------------------------------------------------------------------------


def test_one_leads_and_all_can_see_who() -> None:
    async def test(store: MemoryStore) -> None:
        async with Session(store) as one, Session(store, ttl_s=6) as two:
            first, second = Election(one, b"e"), Election(two, b"e")
            assert await first.leader() is None
            shown: list[Leader | None] = []
            observer = asyncio.ensure_future(following(second.observe(), shown))
            token = await first.campaign(b"one")
            rival = asyncio.ensure_future(second.campaign(b"two"))
            await settled()
            assert first.is_leader
            assert not rival.done()
            await first.proclaim(b"one, ready")
            leader = await leader_of(store, b"e")
            assert leader is not None
            assert (leader.value, leader.token) == (b"one, ready", token)
            await settled()
            assert await first.campaign(b"one again") == token
            await settled()
            await first.resign()
            assert await rival > token
            assert second.is_leader
            await settled()
            take_away(store, two)
            await settled()
            values = [None if each is None else each.value for each in shown]
            assert values == [None, b"one", b"one, ready", b"one again", b"two", None]
            with pytest.raises(LockLost):
                await second.proclaim(b"still")
            with pytest.raises(LockLost):
                await second.resign()
            with pytest.raises(RuntimeError, match="does not lead"):
                await second.resign()
            observer.cancel()

    run(test)


def test_the_office_passes_on_when_the_leader_dies_and_fences_it() -> None:
    async def test(store: MemoryStore) -> None:
        async with Session(store, ttl_s=5) as dying, Session(store) as living:
            old, new = Election(dying, b"e"), Election(living, b"e")
            await old.campaign(b"old")
            assert (await store.kv.txn([old.guard()], [PutOp(b"d", b"1")])).succeeded
            campaign = asyncio.ensure_future(new.campaign(b"new"))
            await settled()
            crash(dying)
            died_at = now()
            assert await campaign > old.token
            assert now() - died_at <= 5.6
            assert not (await store.kv.txn([old.guard()], [PutOp(b"d", b"2")])).succeeded
            assert (await store.kv.txn([new.guard()], [PutOp(b"d", b"3")])).succeeded
            assert not old.is_leader

    run(test)


def test_a_cancelled_candidate_is_none_any_more() -> None:
    async def test(store: MemoryStore) -> None:
        async with Session(store) as session:
            first, second = Election(session, b"e"), Election(session, b"e")
            await first.campaign(b"1")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await second.campaign(b"2")
            await first.resign()
            assert await leader_of(store, b"e") is None

    run(test)


# Party --------------------------------------------------------------------------------------------


def test_a_party_knows_who_is_there() -> None:
    async def test(store: MemoryStore) -> None:
        async with Session(store, ttl_s=5) as dying, Session(store) as session:
            shown: list[tuple[bytes, ...]] = []

            async def follow() -> None:
                async for members in Party(session, b"p").observe():
                    shown.append(tuple(member.value for member in members))

            observer = asyncio.ensure_future(follow())
            await settled()
            one = Party(session, b"p", b"one")
            token = await one.join()
            assert one.token == token
            await Party(dying, b"p", b"two").join()
            with pytest.raises(RuntimeError, match="joined already"):
                await one.join()
            async with Party(session, b"p", b"three"):
                found = await one.members()
                assert [member.value for member in found] == [b"one", b"two", b"three"]
                assert found[0].token == token
            crash(dying)
            await asyncio.sleep(6)
            await one.leave()
            with pytest.raises(RuntimeError, match="not joined"):
                await one.leave()
            await settled()
            assert shown[0] == ()
            assert shown[-1] == ()
            assert (b"one", b"two", b"three") in shown
            assert shown[-2] == (b"one",)
            assert await members_of(store, b"p") == ()
            observer.cancel()

    run(test)


def test_a_member_that_was_thrown_out_is_told() -> None:
    async def test(store: MemoryStore) -> None:
        async with Session(store) as session:
            with pytest.raises(LockLost):
                async with Party(session, b"p"):
                    await store.kv.delete(prefix=b"p/")
            with pytest.raises(ValueError, match="body"):
                async with Party(session, b"p"):
                    raise ValueError("body")
            assert keys(store, b"p/") == []

    run(test)
