"""Every acknowledged write survives kill -9: of any one node, of the leader, of all at once."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from raftkv.cli.devcluster import DevCluster
from tests.cluster.clients import DEADLINE_S, Load, clients

pytestmark = pytest.mark.cluster

CLIENTS = 48
# Enough that every client has written while a node was missing.
PROGRESS = 150


def kill_all(dev: DevCluster) -> None:
    """SIGKILL to all nodes within a millisecond, then wait until they have gone."""
    pids = [dev.pid(name) for name in dev.names]
    for pid in pids:
        assert pid is not None, "a node was not running"
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + DEADLINE_S
    while any(dev.pid(name) for name in dev.names):
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def kill_under_load(dev: DevCluster, load: Load, name: str) -> None:
    """Kill a node, wait until the others write on, start it again and wait until it writes."""
    await asyncio.to_thread(dev.kill_node, name)
    await load.acknowledges(PROGRESS)
    await asyncio.to_thread(dev.start_node, name)
    await asyncio.to_thread(dev.wait_writable, [name], timeout_s=DEADLINE_S)


async def check(dev: DevCluster, load: Load) -> None:
    async with clients(dev) as readers:
        await load.check(list(readers.values()))


def test_the_kill_of_any_one_node(six: DevCluster) -> None:
    async def whole() -> None:
        async with Load(six, b"one/", CLIENTS) as load:
            await load.acknowledges(PROGRESS)
            for name in six.names:
                await kill_under_load(six, load, name)
        await check(six, load)

    asyncio.run(whole())


def test_the_kill_of_one_leader_after_another(six: DevCluster) -> None:
    async def whole() -> None:
        async with Load(six, b"leader/", CLIENTS) as load:
            for _ in range(3):
                await load.acknowledges(PROGRESS)
                await kill_under_load(six, load, await asyncio.to_thread(six.leader))
        await check(six, load)

    asyncio.run(whole())


def test_the_kill_of_all_six_at_once(six: DevCluster) -> None:
    async def whole() -> None:
        async with Load(six, b"all/", CLIENTS) as load:
            for _ in range(2):
                await load.acknowledges(10 * PROGRESS)
                await asyncio.to_thread(kill_all, six)
                await asyncio.to_thread(six.up, timeout_s=DEADLINE_S)
            await load.acknowledges(PROGRESS)
        assert load.unknown, "the kill has met no request on its way"
        # Once more in the moment after the last answer, when no later write can have helped the
        # last ones to the disk.
        kill_all(six)
        six.up(timeout_s=DEADLINE_S)
        await check(six, load)

    asyncio.run(whole())
