"""A leader that was held (SIGSTOP) and wakes up never answers a read from the past.

It wakes up believing that it leads: with requests in its sockets that came while it slept, with its
followers' answers from before in others, and, where leases are on, with a lease that looks fresh to
whoever does not look at the clock. Meanwhile another leader has acknowledged a newer value.
"""

from __future__ import annotations

import asyncio
import base64
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from bench.chaos.cluster import ChaosCluster, Layout
from bench.chaos.door import DoorClient
from raftkv.config import RaftTimes
from raftkv.errors import RaftkvError
from raftkv.kv.commands import RangeOp

pytestmark = pytest.mark.cluster

KEY = b"held"
UP_S = 60.0
ROUNDS = 2
# Requests that wait in the sockets of the leader that is held.
QUEUED = 16
# Asked one after the other, as fast as answers come, from the moment it goes on.
ASKED = 50

Read = Callable[[DoorClient], Coroutine[Any, Any, bytes | None]]


async def linearizable(client: DoorClient) -> bytes | None:
    found = await client.read(RangeOp(KEY))
    return found.kvs[0].value if found.kvs else None


async def by_lease(client: DoorClient) -> bytes | None:
    value = (await client.page(f"/v1/chaos/lease/{KEY.decode()}"))["value"]
    return None if value is None else base64.b64decode(value)


async def put(client: DoorClient, value: bytes) -> None:
    """Put until it is acknowledged."""
    async with asyncio.timeout(UP_S):
        while True:
            try:
                await client.put(KEY, value, timeout_s=5.0)
                return
            except RaftkvError:
                await asyncio.sleep(0.02)


async def answers(client: DoorClient, read: Read, count: int) -> list[bytes | None]:
    """What so many reads were answered; refusals and time-outs are no wrong answers."""
    found = []
    for _ in range(count):
        try:
            found.append(await read(client))
        except RaftkvError:
            continue
    return found


async def one_round(cluster: ChaosCluster, read: Read, number: int) -> tuple[int, int]:
    """Hold the leader, write past it, wake it. Returns answers that had waited, and later ones."""
    leader = await cluster.leader()
    other = next(name for name in cluster.names if name != leader)
    waiting = [DoorClient(cluster.endpoint(leader)) for _ in range(QUEUED)]
    writer, asker = DoorClient(cluster.endpoint(other)), DoorClient(cluster.endpoint(leader))
    old, new = b"old %d" % number, b"new %d" % number
    await put(writer, old)
    # Open connections, so that the requests below reach the leader's sockets while it sleeps.
    assert await asyncio.gather(*(read(client) for client in waiting)) == [old] * QUEUED
    cluster.send_signal(leader, signal.SIGSTOP)
    while not cluster.is_stopped(leader):
        await asyncio.sleep(0.001)
    await put(writer, new)
    reads = [asyncio.create_task(answers(client, read, 1)) for client in waiting]
    # A turn of the loop, in which the requests are written to their sockets.
    await asyncio.sleep(0.05)
    assert not any(task.done() for task in reads), "the leader was not held"
    cluster.send_signal(leader, signal.SIGCONT)
    later = await answers(asker, read, ASKED)
    queued = [value for found in await asyncio.gather(*reads) for value in found]
    for client in [*waiting, writer, asker]:
        client.close()
    assert set(queued) <= {new}, "a request that had waited was answered from the past"
    assert set(later) <= {new}, "the leader that woke up answered from the past"
    return len(queued), len(later)


@pytest.mark.parametrize(
    ("read", "lease_ms"), [(linearizable, 0), (by_lease, 500)], ids=["linearizable", "lease"]
)
def test_a_held_leader_that_wakes_up_serves_no_stale_read(
    read: Read, lease_ms: int, tmp_path: Path
) -> None:
    async def whole() -> None:
        raft = RaftTimes(lease_ms=lease_ms)
        layout = Layout(3)
        async with ChaosCluster(tmp_path, layout, raft=raft, proxied=False, books=False) as cluster:
            await cluster.start(cluster.names)
            await cluster.writable(cluster.names, UP_S)
            queued = later = 0
            for number in range(ROUNDS):
                counts = await one_round(cluster, read, number)
                queued, later = queued + counts[0], later + counts[1]
                await cluster.writable(cluster.names, UP_S)
            # Else nothing was tested: it found the new leader and answered through it.
            assert queued > 0
            assert later > 0
            assert not cluster.unexpected

    asyncio.run(whole())
