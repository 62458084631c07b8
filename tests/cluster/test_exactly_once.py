"""Exactly once under a retry storm: every node sends again and again, and leaders die meanwhile.

The cluster's nodes are programs that embed raftkv (counter_node.py). A command without an answer is
sent again after 20 ms, and the leader is held (SIGSTOP) until that has happened often: when it goes
on, it finds every command several times, and questions about those that were given up. Then the
leader of that moment is killed, which loses answers and offices too.
"""

from __future__ import annotations

import asyncio
import collections
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raftkv.cli.devcluster import DevCluster
from tests.cluster.clients import DEADLINE_S, RETRY_S, Denied, HttpClient, Unknown, clients

pytestmark = pytest.mark.cluster

NODE = Path(__file__).with_name("counter_node.py")
RESEND_MS = 20
LEADERS_KILLED = 3
# Commands sent again, by one node, while the leader is held.
STORM = 24
# Acknowledged by every node after a leader was held, and after one died, before the next one dies.
PROGRESS = 100


@pytest.fixture
def counting(tmp_path: Path) -> Iterator[DevCluster]:
    dev = DevCluster(tmp_path / "dev", command=[sys.executable, str(NODE)])
    dev.create(cores=3, replicants=2, plugins=[])
    for name in dev.names:
        with open(dev.config_path(name), "a", encoding="utf-8") as file:
            file.write(f"\n[raft]\nresend_ms = {RESEND_MS}\n")
    dev.up(timeout_s=DEADLINE_S)
    yield dev
    dev.down()


class Book:
    """What all lives of one node have noted: tag -> the last word about it."""

    def __init__(self, dev: DevCluster, name: str) -> None:
        self.verdicts: dict[str, str] = {}
        self.totals: list[int] = []
        self.unknown = 0
        text = Path(dev.config_path(name)).with_name("book").read_text(encoding="ascii")
        for line in text.splitlines():
            word, tag, *rest = line.split()
            self.verdicts[tag] = word
            self.totals += map(int, rest)
            self.unknown += word == "unknown"

    def tags(self, *words: str) -> set[str]:
        return {tag for tag, word in self.verdicts.items() if word in words}


async def until(condition: Any) -> None:
    """Poll an asynchronous condition; answers that fail count as no."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                if await condition():
                    return
            except (Denied, Unknown):
                pass  # a node that was just killed, or is not ready yet
            await asyncio.sleep(RETRY_S)


async def storm(dev: DevCluster, made: dict[str, HttpClient]) -> None:
    """Hold the leader until all others have sent again and given up; then kill who leads."""
    held = await asyncio.to_thread(dev.leader)
    others = [name for name in dev.names if name != held]
    resends = {name: (await made[name].status())["resends"] for name in others}
    unknown = {name: Book(dev, name).unknown for name in others}
    dev.kill_node(held, signal.SIGSTOP)

    async def stormy() -> bool:
        for name in others:
            sent_again = (await made[name].status())["resends"] - resends[name]
            if sent_again < STORM or Book(dev, name).unknown == unknown[name]:
                return False
        return True

    await until(stormy)
    dev.kill_node(held, signal.SIGCONT)
    await acknowledged(dev, dev.names)
    # Whoever it is by now: the one that was held, or the one that followed it.
    leader = await asyncio.to_thread(dev.leader)
    await asyncio.to_thread(dev.kill_node, leader)
    await acknowledged(dev, [name for name in dev.names if name != leader])
    await asyncio.to_thread(dev.start_node, leader)
    await asyncio.to_thread(dev.wait_writable, [leader], timeout_s=DEADLINE_S)


async def acknowledged(dev: DevCluster, names: list[str]) -> None:
    """Return once each of the nodes has been acknowledged PROGRESS increments more than now."""
    before = {name: len(Book(dev, name).totals) for name in names}

    async def progressed() -> bool:
        return all(len(Book(dev, name).totals) - before[name] >= PROGRESS for name in names)

    await until(progressed)


async def tally(client: HttpClient) -> dict[str, Any]:
    status, raw = await client.request("GET", "/v1/counter/tally")
    assert status == 200, raw
    answer: dict[str, Any] = json.loads(raw)
    return answer


def check(books: list[Book], total: int, tags: dict[str, int]) -> None:
    twice = {tag: count for tag, count in tags.items() if count != 1}
    assert not twice, "applied more than once"
    assert total == len(tags)
    words = collections.Counter(word for book in books for word in book.verdicts.values())
    assert set(words) <= {"begin", "ok", "denied", "unknown", "applied", "absent"}, words
    applied = set(tags)
    for book in books:
        assert book.tags("ok", "applied") <= applied, "acknowledged increments are lost"
        assert not book.tags("denied", "absent") & applied, "denied increments were applied"
        # Their node was killed before it heard of them.
        applied -= book.tags("ok", "applied", "begin", "unknown")
    assert not applied, "nobody asked for these"
    totals = [number for book in books for number in book.totals]
    assert len(set(totals)) == len(totals), "two increments got the same answer"


def test_increments_are_applied_exactly_once_while_leaders_die(counting: DevCluster) -> None:
    async def whole() -> None:
        async with clients(counting) as made:
            for _ in range(LEADERS_KILLED):
                await storm(counting, made)
            resends = 0
            for client in made.values():
                resends += (await client.status())["resends"]
                status, raw = await client.request("POST", "/v1/counter/stop")
                assert status == 200, raw
            assert resends > 0
            tallies = [await tally(client) for client in made.values()]
        assert all(found == tallies[0] for found in tallies), "the nodes do not agree"
        books = [Book(counting, name) for name in counting.names]
        assert sum(book.unknown for book in books) > 0, "no outcome was unknown: no storm"
        check(books, tallies[0]["total"], tallies[0]["tags"])

    asyncio.run(whole())
