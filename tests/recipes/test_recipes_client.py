"""The same recipes over the network: sessions of clients, whose doors and nodes may die."""

from __future__ import annotations

import asyncio

from raftkv import Client
from raftkv.kv import PutOp
from raftkv.recipes import (
    Counter,
    DoubleBarrier,
    Election,
    Lock,
    LockingQueue,
    Queue,
    Session,
    Settling,
    Transaction,
    WriteLock,
    atomically,
    leader_of,
)
from tests.client.doors import served


def test_recipes_work_through_the_doors_of_a_cluster() -> None:
    async def main() -> None:
        async with served(3) as doors, Client(doors.urls) as one, Client(doors.urls[::-1]) as two:
            assert isinstance(one, Settling)
            tokens: list[int] = []

            async def work(session: Session) -> None:
                for _ in range(2):
                    async with Lock(session, b"l") as token:
                        tokens.append(token)

            async def add(tx: Transaction) -> None:
                tx.put(b"sum", b"%d" % (int(await tx.get(b"sum") or b"0") + 1))

            async with Session(one) as first, Session(two) as second:
                await asyncio.gather(*(work(first if n % 2 else second) for n in range(10)))
                assert len(tokens) == 20
                assert tokens == sorted(set(tokens))

                await asyncio.gather(
                    *(Counter(one if n % 2 else two, b"c").add() for n in range(6))
                )
                assert (await Counter(two, b"c").get()).value == 6
                await asyncio.gather(*(atomically(one if n % 2 else two, add) for n in range(6)))
                assert (await atomically(one, add)).token > tokens[-1]

                consumer = asyncio.ensure_future(Queue(two, b"q").get())
                token = await Queue(one, b"q").put(b"job")
                assert (await consumer).token == token
                await LockingQueue(first, b"jobs").put(b"a")
                entry = await LockingQueue(second, b"jobs").take()
                assert (await one.kv.txn([entry.guard()], [PutOp(b"x", b"")])).succeeded
                await entry.consume()

                assert await Election(first, b"e").campaign(b"one")
                leader = await leader_of(two, b"e")
                assert leader is not None
                assert leader.value == b"one"
                barriers = [DoubleBarrier(each, b"d", 2) for each in (first, second)]
                await asyncio.gather(*(barrier.enter() for barrier in barriers))
                await asyncio.gather(*(barrier.leave() for barrier in barriers))

    asyncio.run(main())


def test_a_lock_is_held_while_the_node_behind_its_client_dies() -> None:
    async def main() -> None:
        async with served(3) as doors, Client(doors.urls) as one, Client(doors.urls[1:]) as two:
            async with Session(one, ttl_s=5) as session, Session(two, ttl_s=5) as other:
                lock = WriteLock(session, b"l")
                token = await lock.acquire()
                waiting = asyncio.ensure_future(WriteLock(other, b"l").acquire())
                async with asyncio.timeout(20):
                    while (await two.kv.range(prefix=b"l", count_only=True)).count < 2:
                        await asyncio.sleep(0.01)
                await doors.kill(doors.cluster.nodes[0].name)
                await lock.check()
                assert lock.is_held
                assert not waiting.done()
                await lock.release()
                async with asyncio.timeout(20):
                    assert await waiting > token

    asyncio.run(main())
