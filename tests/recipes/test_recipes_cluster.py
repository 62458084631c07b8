"""Leases and recipes on a real cluster: over several nodes, with dying holders and leaders."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from raftkv.errors import LockLost, NotApplied
from raftkv.kv import LeaseNotFound, PutOp
from raftkv.recipes import (
    Counter,
    DoubleBarrier,
    Election,
    Lock,
    LockingQueue,
    Queue,
    Session,
    Transaction,
    atomically,
    leader_of,
)
from raftkv.testing import LocalCluster


def test_leases_over_all_nodes_and_a_change_of_leader() -> None:
    async def main() -> None:
        async with LocalCluster(cores=3, replicants=1, fsync="off") as cluster:
            replicant = cluster.replicants[0]
            lease = (await replicant.leases.grant(2)).id
            await replicant.kv.put(b"here", b"1", lease=lease)
            for node in cluster.nodes:
                assert await node.leases.keep_alive(lease) == 2
                status = await node.leases.time_to_live(lease, keys=True)
                assert (status.granted_s, status.keys) == (2, (b"here",))
                assert status.ttl_s in (0, 1, 2)
                assert await node.leases.list() == (lease,)
            leader = cluster.leader()
            assert leader is not None
            # All at once: each node sends one call for all of its users.
            await asyncio.gather(*(replicant.leases.keep_alive(lease) for _ in range(100)))
            await cluster.kill(leader.name)
            for _ in range(6):
                assert await replicant.leases.keep_alive(lease, timeout_s=20) == 2
                await asyncio.sleep(0.5)
            assert await replicant.kv.get(b"here") is not None
            async with asyncio.timeout(10):
                while await replicant.kv.get(b"here") is not None:
                    await asyncio.sleep(0.05)
            for node in cluster.nodes:
                with pytest.raises(LeaseNotFound):
                    await node.leases.keep_alive(lease)

    asyncio.run(main())


def test_a_lock_over_three_nodes_and_the_death_of_its_holder() -> None:
    async def main() -> None:
        async with LocalCluster(cores=3, fsync="off") as cluster:
            tokens: list[int] = []
            inside = 0

            async def work(session: Session) -> None:
                nonlocal inside
                for _ in range(3):
                    async with Lock(session, b"l") as token:
                        inside += 1
                        assert inside == 1
                        tokens.append(token)
                        await asyncio.sleep(0)
                        inside -= 1

            async with contextlib.AsyncExitStack() as stack:
                sessions = [
                    await stack.enter_async_context(Session(node)) for node in cluster.nodes
                ]
                await asyncio.gather(*(work(sessions[number % 3]) for number in range(12)))
            assert len(tokens) == 36
            assert tokens == sorted(set(tokens))

            victim = cluster.leader()
            assert victim is not None
            other = next(node for node in cluster.nodes if node is not victim)
            dying = Session(victim, ttl_s=2)
            await dying.open()
            stale = Lock(dying, b"l")
            old = await stale.acquire()
            async with Session(other) as session:
                waiting = asyncio.ensure_future(Lock(session, b"l").acquire())
                async with asyncio.timeout(20):
                    while (await other.kv.range(prefix=b"l", count_only=True)).count < 2:
                        await asyncio.sleep(0.01)
                await cluster.kill(victim.name)
                async with asyncio.timeout(20):
                    assert await waiting > old
                assert not (await other.kv.txn([stale.guard()], [PutOp(b"d", b"")])).succeeded
                with pytest.raises((LockLost, NotApplied)):
                    await stale.check()
                await dying.close(revoke=False)

    asyncio.run(main())


def test_the_other_recipes_over_three_nodes() -> None:
    async def main() -> None:
        async with LocalCluster(cores=3, fsync="off") as cluster:
            one, two, three = cluster.nodes

            async def count(number: int) -> None:
                await Counter(cluster.nodes[number % 3], b"c").add(1)

            async def add(tx: Transaction) -> None:
                tx.put(b"sum", b"%d" % (int(await tx.get(b"sum") or b"0") + 1))

            await asyncio.gather(
                *(count(number) for number in range(12)),
                *(atomically(cluster.nodes[number % 3], add) for number in range(12)),
            )
            assert (await Counter(two, b"c").get()).value == 12
            total = await three.kv.get(b"sum")
            assert total is not None
            assert total.value == b"12"

            consumer = asyncio.ensure_future(Queue(two, b"q").get())
            token = await Queue(one, b"q").put(b"job")
            item = await consumer
            assert (item.value, item.token) == (b"job", token)

            async with Session(one) as first, Session(two) as second:
                leading = Election(first, b"e")
                await leading.campaign(b"one")
                next_one = asyncio.ensure_future(Election(second, b"e").campaign(b"two"))
                leader = await leader_of(three, b"e")
                assert leader is not None
                assert leader.value == b"one"
                await leading.resign()
                assert await next_one > leader.token

                jobs = LockingQueue(first, b"jobs")
                await jobs.put(b"a")
                entry = await LockingQueue(second, b"jobs").take()
                assert await jobs.take_nowait() is None
                await entry.consume()
                assert await jobs.size() == 0

                barriers = [DoubleBarrier(each, b"d", 2) for each in (first, second)]
                entered = await asyncio.gather(*(barrier.enter() for barrier in barriers))
                assert len(set(entered)) == 1
                await asyncio.gather(*(barrier.leave() for barrier in barriers))

    asyncio.run(main())
