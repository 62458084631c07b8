"""A client, a watch and the event loops that they live on."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import raftkv
from raftkv import blocking
from raftkv.errors import Stopped
from raftkv.kv.commands import Compacted
from raftkv.testing import LocalCluster
from tests.blocking.alone import config, open_door
from tests.client.doors import served
from tests.client.fake_door import in_loop

ROOT = Path(__file__).resolve().parent.parent.parent


async def first_change(store: Any) -> bytes:
    """What is put inside the block as its first action is what the watch gives first."""
    async with store.kv.watch(b"w") as watch:
        await store.kv.put(b"w", b"1")
        async with asyncio.timeout(20):
            return (await anext(watch)).events[0].kv.value


@in_loop
async def test_a7_entering_waits_until_the_watch_exists() -> None:
    async with served(3, replicants=1) as doors, raftkv.Client(doors.urls) as client:
        for store in (client, *doors.cluster.nodes):
            assert await first_change(store) == b"1"


@in_loop
async def test_a7_a_node_that_only_starts_lets_a_watch_begin_first(tmp_path: Path) -> None:
    async with raftkv.Node(config(tmp_path), plugins=()) as node:  # not ready yet
        async with node.kv.watch(b"w") as watch:
            # What others change from here on is given.
            begun = asyncio.ensure_future(watch.created())
            await asyncio.sleep(0)
            assert begun.done()
        assert await first_change(node) == b"1"


def test_a7_blocking_watches_wait_as_well(tmp_path: Path) -> None:
    with blocking.Node(config(tmp_path), plugins=()) as node:
        api = node.run(open_door)
        with blocking.Client(api.endpoint) as client:
            for store in (client, node):
                with store.kv.watch(b"w") as watch:
                    store.kv.put(b"w", b"1")
                    batch = watch.next(20)
                    assert batch is not None
                    assert batch.events[0].kv.value == b"1"
        node.run(lambda _: api.stop())


@in_loop
async def test_a7_a_watch_that_cannot_begin_says_so_when_it_is_iterated() -> None:
    async with served(1) as doors, raftkv.Client(doors.urls) as client:
        for _ in range(3):
            await client.kv.put(b"k", b"v")
        await client.kv.compact((await client.kv.put(b"k", b"v")).revision)
        for store in (client, doors.cluster.nodes[0]):
            async with store.kv.watch(b"k", start_revision=2) as watch:
                with pytest.raises(raftkv.errors.WatchCancelled) as ended:
                    await anext(watch)
                assert ended.value.reason == "compacted"
            with pytest.raises(Compacted):
                await store.kv.get(b"k", revision=2)


@in_loop
async def test_a7_a_cancelled_entry_leaves_no_watch_behind() -> None:
    async with LocalCluster(cores=1) as cluster:
        node = cluster.nodes[0]
        node.kv.hub._ready = False  # as on a node that has no session yet
        entering = asyncio.create_task(node.kv.watch(b"k").__aenter__())
        await asyncio.sleep(0)
        entering.cancel()
        await asyncio.wait([entering])
        assert entering.cancelled()
        assert node.kv.hub.count == 0


def in_another_loop(call: Any) -> list[BaseException | None]:
    """What the call ends with in a thread with a loop of its own; it must not hang."""
    ended: list[BaseException | None] = []

    def run() -> None:
        try:
            asyncio.run(asyncio.wait_for(call(), 20))
            ended.append(None)
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive(), "it hangs"
    return ended


@in_loop
async def test_a8_a_client_is_refused_on_another_loop() -> None:
    async with served(1) as doors, raftkv.Client(doors.urls) as client:
        await client.kv.put(b"k", b"v")
        calls: list[Any] = [
            lambda: client.kv.get(b"k"),
            lambda: client.kv.put(b"k", b"v"),
            lambda: client.leases.list(),
            lambda: client.status(),
            lambda: client.call("GET", "/v1/x"),
            lambda: client.stream("GET", "/v1/x"),
            lambda: client.close(),
            lambda: watched(client),
        ]
        for call in calls:
            (error,) = await asyncio.to_thread(in_another_loop, call)
            assert type(error).__mro__[1] is Stopped, error
            assert "event loop" in str(error)
        assert await client.kv.get(b"k") is not None


@in_loop
async def test_d7_closing_a_client_ends_its_watches_with_where_to_go_on() -> None:
    async with served(1) as cluster:
        client = raftkv.Client(cluster.urls)
        async with client.kv.watch(b"k") as watch:
            revision = await watch.created()
            waiting = asyncio.create_task(anext(watch))
            await asyncio.sleep(0)
            await client.close()
            async with asyncio.timeout(20):
                with pytest.raises(raftkv.errors.WatchCancelled) as ended:
                    await waiting
        assert (ended.value.reason, ended.value.resume_revision) == ("stopped", revision + 1)
        with pytest.raises(Stopped):
            client.kv.watch(b"k")


async def watched(client: raftkv.Client) -> None:
    async with client.kv.watch(b"k"):
        pass


@in_loop
async def test_a8_a_node_is_refused_on_another_loop() -> None:
    async with LocalCluster(cores=1) as cluster:
        node = cluster.nodes[0]
        for call in (
            lambda: node.kv.get(b"k"),
            lambda: node.kv.get(b"k", consistency="local"),
            lambda: node.kv.put(b"k", b"v"),
            lambda: node.leases.keep_alive(7),
            lambda: node.wait_ready(),
        ):
            (error,) = await asyncio.to_thread(in_another_loop, call)
            assert type(error) is Stopped, error
            assert "event loop" in str(error)


def test_a8_a_client_outlives_no_loop() -> None:
    client = raftkv.Client("http://127.0.0.1:9", timeout_s=1.0)

    async def once() -> None:
        await client.kv.get(b"k")

    with pytest.raises(raftkv.NotApplied):
        asyncio.run(once())
    with pytest.raises(Stopped, match="event loop"):
        asyncio.run(once())
    asyncio.run(client.close())  # the loop has gone, and its connections with it


PROGRAM = """
import asyncio, threading, raftkv
client = raftkv.Client("http://127.0.0.1:9", timeout_s=1)
ended = []
def run():
    try: asyncio.run(client.kv.put(b"k", b"v"))
    except raftkv.RaftkvError as error: ended.append(type(error).__name__)
threads = [threading.Thread(target=run) for _ in range(3)]
[each.start() for each in threads]; [each.join() for each in threads]
print(sorted(ended))
"""


def test_a8_three_loops_at_once_in_development_mode() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/plugins"},
        check=True,
    )
    assert done.stdout.strip() in ("['PeerUnreachable', 'Unusable', 'Unusable']",), done
