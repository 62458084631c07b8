"""A watch that goes on by itself: over a fake door, and across real nodes that end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from raftkv import Client
from raftkv.client import watch as watching
from raftkv.errors import Refused, Stopped, WatchCancelled
from raftkv.kv.commands import Event, KeyValue
from raftkv.kv.watch import WatchBatch
from tests.client.doors import served
from tests.client.fake_door import Asked, FakeDoor, Lines, Say, b64, error, in_loop, until


def header(revision: int) -> dict[str, str]:
    return {"cluster_id": "1", "member_id": "2", "revision": str(revision)}


def created(revision: int) -> dict[str, Any]:
    return {"result": {"header": header(revision), "created": True}}


def change(revision: int, key: bytes = b"k", value: bytes = b"v") -> dict[str, Any]:
    kv = {
        "key": b64(key),
        "value": b64(value),
        "create_revision": "2",
        "mod_revision": str(revision),
        "version": str(revision - 1),
    }
    return {"kv": kv}


def told(revision: int, *changes: dict[str, Any]) -> dict[str, Any]:
    return {"result": {"header": header(revision), "events": list(changes)}}


def put(revision: int) -> Event:
    return Event(KeyValue(b"k", b"v", 2, revision, revision - 1))


def start_of(asked: Asked) -> int:
    return int(asked.body["create_request"].get("start_revision", 0))


@in_loop
async def test_a_watch_gives_batches_with_whole_revisions_and_deletions() -> None:
    deleted = {"type": "DELETE", "kv": {"key": b64(b"k"), "mod_revision": "8"}}
    deleted["prev_kv"] = change(7)["kv"]
    lines = Lines(created(6), told(7, change(7)), told(9, deleted, change(9)))
    async with FakeDoor(lambda asked: lines) as door, Client(door.url) as client:
        watch = client.kv.watch(prefix=b"k", prev_kv=True, delete=False)
        assert await watch.created() == 6
        assert watch.revision == 6
        assert await anext(watch) == WatchBatch(7, (put(7),))
        batch = await anext(watch)
        gone = Event(KeyValue(b"k", b"", 0, 8, 0), KeyValue(b"k", b"v", 2, 7, 6))
        assert batch == WatchBatch(9, (gone, put(9)))
        assert watch.revision == 9
        watch.close()
        with pytest.raises(StopAsyncIteration):
            await anext(watch)
    request = door.asked[0].body["create_request"]
    assert request == {
        "key": b64(b"k"),
        "range_end": b64(b"l"),
        "prev_kv": True,
        "filters": ["NODELETE"],
        "progress_notify": True,
    }


@in_loop
async def test_a_watch_takes_a_key_or_the_bounds_of_a_range() -> None:
    forms: list[tuple[dict[str, Any], tuple[bytes, bytes]]] = [
        ({"key": b"k"}, (b"k", b"")),
        ({"first": b"k"}, (b"k", b"\0")),
        ({"first": b"k", "last": b"m"}, (b"k", b"m")),
        ({}, (b"\0", b"\0")),
    ]
    async with FakeDoor(lambda asked: Lines(created(6))) as door, Client(door.url) as client:
        for form, (key, end) in forms:
            async with client.kv.watch(**form) as watch:
                await watch.created()
            request = door.asked[-1].body["create_request"]
            assert (request["key"], request.get("range_end", "")) == (b64(key), b64(end))
        for wrong in ({"key": b"a", "first": b"b"}, {"first": b"a", "prefix": b"b"}):
            with pytest.raises(TypeError, match="not both"):
                client.kv.watch(**wrong)


@in_loop
async def test_a_watch_resumes_behind_what_it_has_given() -> None:
    """Half a line, and a batch that nobody has taken, are asked for again."""
    half = b'{"result":{"header":{"revision":"9"},"eve'
    first = Lines(created(6), told(7, change(7)), half)
    first.end()
    second = Lines(created(9), told(8, change(8)))
    streams = [first, second]
    async with (
        FakeDoor(lambda asked: streams.pop(0)) as door,
        Client([door.url, door.url]) as client,
    ):
        watch = client.kv.watch(b"k")
        assert [(await anext(watch)).revision for _ in range(2)] == [7, 8]
        assert [start_of(asked) for asked in door.asked] == [0, 8]
        assert watch.resumptions == 1


@in_loop
async def test_a_watch_from_now_keeps_its_now() -> None:
    first = Lines(created(6))
    first.end()
    streams = [first, Lines(created(20), told(7, change(7)))]
    async with FakeDoor(lambda asked: streams.pop(0)) as door, Client(door.url) as client:
        async with client.kv.watch(b"k") as watch:
            assert (await anext(watch)).revision == 7
        assert [start_of(asked) for asked in door.asked] == [0, 7]


@in_loop
async def test_progress_moves_the_position_and_is_given_if_asked_for() -> None:
    mark = {"result": {"header": header(50)}}
    first = Lines(created(6), mark)
    streams = [first, Lines(created(60), told(51, change(51)))]
    async with FakeDoor(lambda asked: streams.pop(0)) as door, Client(door.url) as client:
        watch = client.kv.watch(b"k")
        taking = asyncio.create_task(anext(watch))
        await until(lambda: watch.revision == 50)
        first.end()
        assert (await taking).revision == 51  # the mark was not wanted
        assert start_of(door.asked[1]) == 51
        streams.append(Lines(created(60), {"result": {"header": header(70)}}))
        marked = client.kv.watch(b"k", progress_s=0.001)
        assert await anext(marked) == WatchBatch(70, ())


@in_loop
async def test_a_cancelled_wait_loses_nothing() -> None:
    lines = Lines(created(6))
    async with FakeDoor(lambda asked: lines) as door, Client(door.url) as client:
        watch = client.kv.watch(b"k")
        await watch.created()
        for revision in (7, 8, 9):
            waiting = asyncio.create_task(anext(watch))
            await asyncio.sleep(0)
            lines.add(told(revision, change(revision)))
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert (await anext(watch)).revision == revision


@in_loop
async def test_a_watch_that_was_compacted_ends_for_good() -> None:
    line = {"result": {"header": header(0), "canceled": True, "compact_revision": "30"}}
    lines = Lines(created(40), line)
    async with FakeDoor(lambda asked: lines) as door, Client(door.url) as client:
        watch = client.kv.watch(b"k", start_revision=3)
        for _ in range(2):
            with pytest.raises(WatchCancelled) as caught:
                await anext(watch)
            assert caught.value.reason == "compacted"
            assert caught.value.compact_revision == 30
            assert caught.value.resume_revision == 0
        assert watch.cancelled is not None


@pytest.mark.parametrize("reason", ["raftkv: slow: watch again", "raftkv: stopped", ""])
def test_other_ends_are_resumed(reason: str) -> None:
    @in_loop
    async def scenario() -> None:
        end = {"result": {"header": header(7), "canceled": True, "cancel_reason": reason}}
        streams = [Lines(created(6), told(7, change(7)), end), Lines(told(8, change(8)))]
        async with FakeDoor(lambda asked: streams.pop(0)) as door, Client(door.url) as client:
            watch = client.kv.watch(b"k")
            assert [(await anext(watch)).revision for _ in range(2)] == [7, 8]
            assert start_of(door.asked[1]) == 8

    scenario()


@pytest.mark.parametrize("reason", ["raftkv: stopped: watch again from revision 7", "raftkv: slow"])
def test_a_node_that_is_about_to_stop_is_left_for_another(reason: str) -> None:
    """It takes the request, and then ends the watch in the line that says `created`."""

    @in_loop
    async def scenario() -> None:
        no = {"result": {"created": True, "canceled": True, "cancel_reason": reason}}
        streams = [Lines(created(6)), Lines(no), Lines(created(9), told(8, change(8)))]
        async with FakeDoor(lambda asked: streams.pop(0)) as door, Client(door.url) as client:
            first = streams[0]
            watch = client.kv.watch(b"k")
            assert await watch.created() == 6
            first.end()
            assert (await anext(watch)).revision == 8
            assert [start_of(asked) for asked in door.asked] == [0, 7, 7]

    scenario()


@in_loop
async def test_a_client_that_is_closed_while_a_watch_connects_ends_it() -> None:
    lines = Lines(created(6))
    async with FakeDoor(lambda asked: lines) as door:
        client = Client(door.url)
        waiting = asyncio.create_task(anext(client.kv.watch(b"k"), None))
        await asyncio.sleep(0)  # it is connecting
        await asyncio.sleep(0)
        await client.close()
        async with asyncio.timeout(5):
            with pytest.raises(WatchCancelled) as ended:
                await waiting
        assert ended.value.reason == "stopped"


@in_loop
async def test_a_watch_that_no_node_would_take_is_refused() -> None:
    no = {"result": {"created": True, "canceled": True, "cancel_reason": "mvcc: empty range"}}
    async with FakeDoor(lambda asked: Lines(no)) as door, Client(door.url) as client:
        with pytest.raises(Refused, match="empty range"):
            await anext(client.kv.watch(b"k"))
    refusal = error("bad_thing", 400, detail="no such field")
    async with FakeDoor(lambda asked: refusal) as door, Client(door.url) as client:
        with pytest.raises(Refused, match="no such field"):
            await anext(client.kv.watch(b"k"))
    with pytest.raises(ValueError, match="from 0 to|0 or more"):
        client.kv.watch(b"k", start_revision=-1)


@in_loop
async def test_a_silent_stream_is_given_up_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "SILENCE_S", 0.1)
    streams: list[Any] = [Lines(created(6)), error("no_leader", 503), Say({}, 500)]
    async with FakeDoor(lambda asked: streams.pop(0)) as door, Client(door.url) as client:
        streams.append(Lines(created(9), told(7, change(7))))
        watch = client.kv.watch(b"k")
        assert (await anext(watch)).revision == 7
        assert [start_of(asked) for asked in door.asked] == [0, 7, 7, 7]


@in_loop
async def test_a_stream_on_which_a_long_line_arrives_is_not_silent() -> None:
    class Arriving:
        heard_at = 0.0

        async def next(self) -> bytes:
            self.heard_at = asyncio.get_running_loop().time() + 60
            return await asyncio.get_running_loop().create_future()

        def close(self) -> None: ...

    async with FakeDoor(lambda asked: Lines(created(6))) as api, Client(api.url) as client:
        watch: Any = client.kv.watch(b"k")
        await watch.created()
        stream, arriving = watch._stream, Arriving()
        watch._stream = arriving
        assert await watch._advance() is None
        assert watch._stream is arriving
        stream.close()
        watch.close()


@in_loop
async def test_closing_ends_a_wait_in_another_task() -> None:
    async with FakeDoor(lambda asked: Lines(created(6))) as door, Client(door.url) as client:
        watch = client.kv.watch(b"k")
        await watch.created()
        waiting = asyncio.create_task(anext(watch, None))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="one consumer"):
            await anext(watch)
        watch.close()
        assert await waiting is None
        unborn = client.kv.watch(b"k")
        unborn.close()
        with pytest.raises(WatchCancelled):
            await unborn.created()
    with pytest.raises(Stopped):
        client.kv.watch(b"k")  # of a client that is closed


@in_loop
async def test_a_slow_user_stops_the_stream_and_loses_nothing() -> None:
    """More than the reading side keeps: the socket fills up, nothing is dropped."""
    lines = Lines(created(6))
    count, value = 300, b"x" * 20_000
    for revision in range(7, 7 + count):
        lines.add(told(revision, change(revision, value=value)))
    async with FakeDoor(lambda asked: lines) as door, Client(door.url) as client:
        watch = client.kv.watch(b"k")
        await watch.created()
        stream = watch._stream
        assert stream is not None
        await until(lambda: stream._size > 1024 * 1024)
        for _ in range(100):  # as the loop would fill it further, without a bound
            await asyncio.sleep(0)
        assert stream._size < 3 * 1024 * 1024
        seen = [(await anext(watch)).revision for _ in range(count)]
        assert seen == list(range(7, 7 + count))
        assert watch.resumptions == 0


@in_loop
async def test_a_watch_survives_the_nodes_that_serve_it() -> None:
    """Every put of a writer is seen once and in order, while nodes and connections end."""
    async with served(3) as doors, Client(doors.urls, timeout_s=20) as client:
        urls = doors.urls
        async with Client(urls, timeout_s=20) as watcher:
            watch = watcher.kv.watch(prefix=b"w/")
            await watch.created()
            total = 60
            seen: list[int] = []

            async def follow() -> None:
                async for batch in watch:
                    seen.extend(event.kv.mod_revision for event in batch.events)
                    if len(seen) >= total:
                        return

            following = asyncio.create_task(follow())
            written = []
            for number in range(total):
                written.append((await client.kv.put(b"w/%d" % (number % 7), b"v")).revision)
                if number == 15:
                    for proxy in doors.proxies.values():
                        proxy.cut()
                if number == 30:
                    served_by = watcher.endpoint
                    name = next(n for n, p in doors.proxies.items() if p.url == served_by)
                    await doors.kill(name)
            await following
            assert seen == written
            assert watch.resumptions >= 2
