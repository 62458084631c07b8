"""However many requests have long work to do, a turn of the loop holds one piece of it."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine, MutableMapping
from typing import Any

import pytest

from raftkv.kv import PutOp
from raftkv.kv.work_budget import WORK_MAX, WorkBudget
from raftkv.server.app import App
from raftkv.server.gateway import Gateway
from raftkv.server.incoming import SMALL_BYTES, Incoming, Received
from raftkv.server.streams import _Requests
from raftkv.server.work_units import PAGE_UNITS
from tests.kv.small_work import turns_beside_large
from tests.server.conftest import b64
from tests.server.solo import SoloNode


async def turns_taken(works: int, units: int, known: int = WORK_MAX) -> list[int]:
    """In which turn of the loop each of `works` pieces was done."""
    turns, now, done = WorkBudget(), 0, []

    async def work() -> None:
        await turns.room(known)
        done.append(now)
        turns.spend(units)

    tasks = [asyncio.create_task(work()) for _ in range(works)]
    while len(done) < works:
        now += 1
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    return done


def test_long_pieces_are_done_one_in_each_turn() -> None:
    done = asyncio.run(turns_taken(50, WORK_MAX))
    assert len(set(done)) == 50
    assert done == sorted(done)


def test_short_pieces_share_a_turn() -> None:
    assert len(set(asyncio.run(turns_taken(50, WORK_MAX // 100)))) == 1


def test_half_a_turn_is_done_twice_before_others_wait() -> None:
    done = asyncio.run(turns_taken(10, WORK_MAX // 2))
    assert done[0] == done[1] < done[2]
    assert len(set(done[1:])) == 9


def test_who_knows_its_work_shares_a_turn_behind_others() -> None:
    units = WORK_MAX // 20
    done = Counter(asyncio.run(turns_taken(500, units, known=units)))
    # 20 at once, and then 20 in each turn.
    assert list(done.values()) == [20] * 25


def test_a_small_piece_waits_behind_no_large_ones() -> None:
    async def play() -> list[str]:
        turns, done = WorkBudget(), list[str]()

        async def work(name: str, units: int) -> None:
            await turns.room(units)
            done.append(name)
            turns.spend(units)

        tasks = [asyncio.create_task(work("large", WORK_MAX)) for _ in range(50)]
        tasks.append(asyncio.create_task(work("small", PAGE_UNITS)))
        await asyncio.gather(*tasks)
        return done

    assert "small" in asyncio.run(play())[:3]


def test_pages_are_made_a_few_in_each_turn() -> None:
    """500 clients that ask for `/metrics` at once leave room for others between them."""

    async def play() -> list[int]:
        app, now, done = App(SoloNode()), 0, list[int]()  # type: ignore[arg-type]

        async def ask() -> None:
            scope = {"type": "http", "method": "GET", "path": "/metrics", "raw_path": b"/metrics",
                     "query_string": b"", "headers": [(b"host", b"[::1]")]}  # fmt: skip

            async def send(message: MutableMapping[str, Any]) -> None:
                if message["type"] == "http.response.start":
                    assert message["status"] == 200
                    done.append(now)

            async def receive() -> MutableMapping[str, Any]:
                return {"type": "http.request", "body": b"", "more_body": False}

            await app(scope, receive, send)

        tasks = [asyncio.create_task(ask()) for _ in range(500)]
        while len(done) < len(tasks):
            now += 1
            await asyncio.sleep(0)
        return done

    assert max(Counter(asyncio.run(play())).values()) <= WORK_MAX // PAGE_UNITS


def range_of(**fields: Any) -> bytes:
    return json.dumps({"key": b64(b"k"), "range_end": b64(b"l"), **fields}).encode()


async def filled(keys: int) -> SoloNode:
    node = SoloNode()
    for begin in range(0, keys, 100):
        names = range(begin, min(begin + 100, keys))
        await node.kv.txn(success=[PutOp(b"k%05d" % number, b"v") for number in names])
    return node


@pytest.mark.parametrize(
    "body",
    [
        range_of(limit=3),
        range_of(count_only=True),
        range_of(range_end=b64(b"k0001")),
        range_of(range_end=b64(b"k0001"), sort_target="MOD", sort_order="DESCEND"),
    ],
)
def test_a_small_range_waits_behind_no_large_ones(body: bytes) -> None:
    async def play() -> int:
        node = await filled(200)
        return await turns_beside_large(node.kv.budget, Gateway(node).range(body))

    assert asyncio.run(play()) < 5


def test_rows_that_are_sorted_count() -> None:
    """Also if few of them are answered, and if there are not enough to be read in pages."""
    body = range_of(sort_target="MOD", sort_order="DESCEND", limit=1)

    async def play() -> list[int]:
        node, now, done = await filled(1000), 0, list[int]()
        gateway = Gateway(node)

        async def ask() -> None:
            await gateway.range(body)
            done.append(now)

        tasks = [asyncio.create_task(ask()) for _ in range(50)]
        while len(done) < len(tasks):
            now += 1
            await asyncio.sleep(0)
        return done

    assert max(Counter(asyncio.run(play())).values()) <= 3


def parts_of(*bodies: bytes) -> Callable[[], Coroutine[Any, Any, MutableMapping[str, Any]]]:
    """The `receive` of a request whose body comes in these parts."""
    left = list(bodies)

    async def receive() -> MutableMapping[str, Any]:
        if not left:
            await asyncio.Event().wait()  # the client is still there
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    return receive


def test_a_keep_alive_waits_behind_no_large_reads() -> None:
    """Else leases expire whose clients have asked in time."""

    async def play() -> int:
        budget, received = WorkBudget(), Received(Incoming(1 << 20))
        requests = _Requests(parts_of(b'{"ID":"1"}', b'{"ID":"1"}', b""), received, budget)

        async def all_of_them() -> None:
            receiving = asyncio.create_task(requests.run())
            assert [each async for each in requests.all()] == [b'{"ID":"1"}'] * 2
            receiving.cancel()

        return await turns_beside_large(budget, all_of_them())

    assert asyncio.run(play()) < 10


def test_a_part_of_a_body_waits_behind_no_large_reads() -> None:
    """Else its client is cut off for having sent too slowly."""

    async def play() -> int:
        app, parts = App(SoloNode()), [b"x" * SMALL_BYTES] * 5  # type: ignore[arg-type]

        async def send(message: MutableMapping[str, Any]) -> None:
            raise AssertionError(message)

        async def receive() -> None:
            scope: dict[str, Any] = {"headers": []}
            with Received(app.incoming) as received:
                body = await app._body(scope, 1 << 20, parts_of(*parts), send, received)
            assert body == b"".join(parts)

        return await turns_beside_large(app.budget, receive())

    assert asyncio.run(play()) < 15


def test_who_is_cancelled_while_it_waits_hinders_nobody() -> None:
    async def play() -> None:
        turns = WorkBudget()
        await turns.turn()
        tasks = [asyncio.create_task(turns.turn()) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert [task.cancelled() for task in tasks] == [False, True, False]
        await turns.turn()

    asyncio.run(play())
