"""etcd's watch stream at the door: what a real etcd 3.4 answers, line by line."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from raftkv.config import HttpLimits
from raftkv.kv import PutOp, watch_hub
from raftkv.kv.work_budget import WORK_MAX
from raftkv.server import streams, watch_words
from raftkv.server.encoding import Headers
from raftkv.server.watch_words import WatchStream
from raftkv.server.work_units import REQUEST_UNITS
from tests.server.conftest import Served, b64
from tests.server.solo import SoloNode
from tests.server.wire import Wire, post

K, L = b64(b"k"), b64(b"l")


@pytest.fixture
def wire(served: Served) -> Iterator[Wire]:
    with Wire(served.door.port) as made:
        yield made


def create(key: str = K, **fields: Any) -> dict[str, Any]:
    return {"create_request": {"key": key, **fields}}


def begun(wire: Wire, *requests: Any) -> dict[str, str]:
    """Open a stream; the headers of its answer."""
    wire.open_stream("/v3/watch", *requests)
    status, headers = wire.head()
    assert status == 200
    return headers


def bare(result: Any) -> Any:
    """A result without the ids of its header, which differ from cluster to cluster."""
    header = {key: value for key, value in result["header"].items() if not key.endswith("_id")}
    return {**result, "header": header}


def eventually(served: Served, holds: Any) -> None:
    async def wait() -> None:
        while not holds():
            await asyncio.sleep(0.001)

    served.run(asyncio.wait_for(wait(), 10))


def test_a_watch_is_created_and_gives_what_changes(served: Served, wire: Wire) -> None:
    served.put(b"k", b"0")
    headers = begun(wire, create())
    assert headers["content-type"] == "application/json"
    assert headers["transfer-encoding"] == "chunked"
    head = {"revision": "2", "raft_term": "7"}
    assert bare(wire.result()) == {"header": head, "created": True}
    served.put(b"k", b"1")
    kv = {"key": K, "create_revision": "2", "mod_revision": "3", "version": "2", "value": b64(b"1")}
    assert bare(wire.result()) == {"header": head | {"revision": "3"}, "events": [{"kv": kv}]}
    served.post("/v3/kv/deleterange", {"key": K})
    deleted = {"type": "DELETE", "kv": {"key": K, "mod_revision": "4"}}
    assert bare(wire.result()) == {"header": head | {"revision": "4"}, "events": [deleted]}


def test_the_body_may_end_before_the_stream(served: Served) -> None:
    with Wire(served.door.port) as wire:
        wire.send(post("/v3/watch", json.dumps(create()).encode()))
        assert wire.head()[0] == 200
        assert wire.result()["created"] is True
        served.put(b"k", b"1")
        assert wire.result()["events"][0]["kv"]["key"] == K


def test_a_watch_from_a_revision_gets_the_history_and_what_the_keys_were(
    served: Served, wire: Wire
) -> None:
    for value in (b"1", b"2"):
        served.put(b"k", value)
    served.post("/v3/kv/deleterange", {"key": K})
    begun(wire, create(startRevision="3", prevKv=True))
    assert wire.result()["created"] is True
    events = wire.result()["events"]
    assert [event.get("type") for event in events] == [None, "DELETE"]
    assert [event["prev_kv"]["value"] for event in events] == [b64(b"1"), b64(b"2")]


def test_a_transaction_is_one_line(served: Served, wire: Wire) -> None:
    begun(wire, create("AA==", range_end="AA=="))
    wire.result()
    puts = [{"request_put": {"key": b64(b"%03d" % n), "value": ""}} for n in range(100)]
    served.post("/v3/kv/txn", {"success": puts})
    events = wire.result()["events"]
    assert {event["kv"]["mod_revision"] for event in events} == {"2"}
    assert len(events) == 100


@pytest.mark.parametrize(
    ("filters", "kinds"), [(["NOPUT"], ["DELETE"]), ([1], [None]), (["NODELETE", 0], [])]
)
def test_filters(served: Served, wire: Wire, filters: list[Any], kinds: list[Any]) -> None:
    begun(wire, create(filters=filters), create(L))
    wire.result(), wire.result()
    served.put(b"k", b"1")
    served.post("/v3/kv/deleterange", {"key": K})
    served.put(b"l", b"end")
    found = []
    while "watch_id" not in (result := wire.result()):
        found += [event.get("type") for event in result["events"]]
    assert found == kinds


def test_watches_of_one_stream_have_numbers(served: Served, wire: Wire) -> None:
    begun(wire, create(), create(L, watchId=7), create(L, watch_id="7"), create(L))
    assert "watch_id" not in wire.result()
    assert wire.result()["watch_id"] == "7"
    assert bare(wire.result()) == {
        "header": {"revision": "1", "raft_term": "7"},
        "watch_id": "-1",
        "created": True,
        "canceled": True,
        "cancel_reason": "mvcc: duplicate watch ID provided on the WatchStream",
    }
    assert wire.result()["watch_id"] == "1"
    served.put(b"l", b"1")
    assert {wire.result()["watch_id"], wire.result()["watch_id"]} == {"1", "7"}


def test_a_cancelled_watch_says_nothing_more(served: Served, wire: Wire) -> None:
    begun(wire, create(), create(L))
    wire.result(), wire.result()
    wire.say({"cancel_request": {"watch_id": 99}}, {"cancelRequest": {}})
    expected = {"header": {"revision": "1", "raft_term": "7"}, "canceled": True}
    assert bare(wire.result()) == expected
    served.put(b"k", b"1")
    served.put(b"l", b"1")
    assert wire.result()["watch_id"] == "1"


def test_an_empty_range_is_refused_as_etcd_does(wire: Wire) -> None:
    begun(wire, create(L, range_end=K))
    assert bare(wire.result()) == {
        "header": {"revision": "1", "raft_term": "7"},
        "watch_id": "-1",
        "created": True,
        "canceled": True,
        "cancel_reason": "mvcc: watcher range is empty",
    }


def test_a_compacted_revision_ends_the_watch_with_the_lowest_one(
    served: Served, wire: Wire
) -> None:
    for value in (b"1", b"2", b"3"):
        served.put(b"k", value)
    served.post("/v3/kv/compaction", {"revision": "3"})
    begun(wire, create(start_revision="2"))
    assert wire.result()["created"] is True
    assert bare(wire.result()) == {
        "header": {"raft_term": "7"},
        "canceled": True,
        "compact_revision": "3",
    }


def test_progress_is_told_once_everything_was_given(served: Served, wire: Wire) -> None:
    for _ in range(3):
        served.put(b"k", b"1")
    begun(wire, create(start_revision="2"), create(L), {"progress_request": {}})
    wire.result(), wire.result()
    seen = 0
    while (result := wire.result()).get("watch_id") != "-1":
        seen += len(result["events"])
    assert seen == 3, "events that come after the mark would be lost to who trusts it"
    assert bare(result) == {"header": {"revision": "4", "raft_term": "7"}, "watch_id": "-1"}


def test_progress_without_a_watch_is_the_revision_of_now(wire: Wire) -> None:
    begun(wire, {"progress_request": {}})
    assert wire.result()["watch_id"] == "-1"


def test_an_idle_watch_is_marked_if_it_wants(
    served: Served, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_words, "PROGRESS_S", 0.02)
    served.put(b"l", b"1")
    begun(wire, create(progress_notify=True))
    assert wire.result()["created"] is True
    mark = {"header": {"revision": "2", "raft_term": "7"}}
    assert bare(wire.result()) == mark
    assert bare(wire.result()) == mark


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "create_request"),
        (b"{}", "create_request"),
        (b'{"create_request":{"key":1}}', "cannot be understood"),
        (b'{"create_request":{"filters":["NOSUCH"]}}', "NOPUT"),
        (b"x", "JSON objects"),
        (b'{"create_request":{"key":"' + b"A" * 300_000, "exceeds"),
    ],
)
def test_what_is_no_request_is_an_ordinary_error(served: Served, body: bytes, said: str) -> None:
    status, answer = served.post("/v3/watch", body)
    assert (status, answer["code"]) == (400, 3)
    assert said in answer["error"]


def test_a_bad_request_in_a_stream_is_its_last_line(wire: Wire) -> None:
    begun(wire, create())
    assert wire.result()["created"] is True
    wire.say(b"{bad}")
    error = wire.line()["error"]
    assert (error["grpc_code"], error["http_code"]) == (3, 400)
    assert error["http_status"] == "Bad Request"
    assert wire.line() is None


def test_a_client_that_goes_frees_its_watches(served: Served) -> None:
    hub = served.node.kv.hub
    assert hub is not None
    with Wire(served.door.port) as wire:
        begun(wire, create(), create(L))
        wire.result(), wire.result()
        assert (hub.count, served.app.streams) == (2, 1)
    eventually(served, lambda: hub.count == 0 and served.app.streams == 0)


def test_a_node_that_stops_ends_the_watch_with_a_reason(served: Served, wire: Wire) -> None:
    begun(wire, create())
    wire.result()
    hub = served.node.kv.hub
    assert hub is not None

    async def stop() -> None:
        hub.stop()

    served.run(stop())
    result = wire.result()
    assert result["canceled"] is True
    assert result["cancel_reason"].startswith("raftkv: stopped")
    assert "watch_id" not in result


def test_a_door_that_stops_says_where_to_go_on_and_does_not_wait() -> None:
    server = Served()
    server.start()
    try:
        server.put(b"k", b"1")
        with Wire(server.door.port) as wire, Wire(server.door.port) as other:
            begun(wire, create(), create(L))
            wire.result(), wire.result()
            other.open_stream("/v3/lease/keepalive", {"ID": 1})
            assert other.head()[0] == 200
            other.result()
            server.run(asyncio.wait_for(server.door.stop(), 1.5))
            for number in (None, "1"):
                result = wire.result()
                assert result.get("watch_id") == number
                assert result["cancel_reason"] == "raftkv: stopped: watch again from revision 3"
            assert wire.line() is None
            assert wire.closed()
    finally:
        server.stop()


def test_a_slow_client_loses_its_watch_and_is_told_where_to_go_on(
    served: Served, wire: Wire
) -> None:
    """The client takes nothing; its buffers fill, then that of the watch, which ends."""
    begun(wire, create("AA==", range_end="AA=="))
    wire.result()
    hub = served.node.kv.hub
    assert hub is not None
    value = b"v" * 1_000_000

    async def fill() -> int:
        count = 0
        while not hub.ended["slow"]:
            await served.node.kv.put(b"k%d" % count, value)
            await asyncio.sleep(0)
            count += 1
        return count

    count = served.run(fill())
    assert count < 2 * watch_hub.BUFFER_BYTES_MAX // len(value)
    last, result = 1, wire.result()
    while "events" in result:
        revisions = [int(event["kv"]["mod_revision"]) for event in result["events"]]
        assert revisions == list(range(last + 1, last + 1 + len(revisions)))
        last, result = revisions[-1], wire.result()
    assert result["canceled"] is True
    assert result["cancel_reason"] == f"raftkv: slow: watch again from revision {last + 1}"
    assert result["header"]["revision"] == str(last)


def test_a_client_that_never_reads_is_cut_off(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "SEND_TIMEOUT_S", 0.05)
    with Wire(served.door.port) as wire:
        begun(wire, create())
        wire.result()

        async def fill() -> None:
            while served.app.streams:
                await served.node.kv.put(b"k", b"v" * 1_000_000)
                await asyncio.sleep(0.001)

        served.run(fill())


@pytest.fixture(scope="module")
def narrow() -> Iterator[Served]:
    server = Served(limits=HttpLimits(streams_max=1, stream_watches_max=2))
    server.start()
    yield server
    server.stop()


def test_streams_and_their_watches_are_bounded(narrow: Served) -> None:
    with Wire(narrow.door.port) as wire:
        begun(wire, create(), create(), create())
        wire.result(), wire.result()
        assert "at most 2 watches" in wire.result()["cancel_reason"]
        with Wire(narrow.door.port) as other:
            other.open_stream("/v3/watch", create())
            status, headers, body = other.response()
            assert (status, headers["retry-after"]) == (429, "1")
            answer = json.loads(body)
            assert (answer["code"], answer["reason"]) == (8, "overloaded")
            assert "streams_max" in answer["detail"]
    assert narrow.app.refused["streams_max"] == 1


def test_the_keys_of_all_watches_are_bounded() -> None:
    long = b64(b"x" * 10_000)
    server = Served(limits=HttpLimits(watch_bytes_max=25_000))
    server.start()
    held = server.app.watch_bytes
    try:
        with Wire(server.door.port) as first, Wire(server.door.port) as second:
            begun(first, create(long, watch_id="7"))
            assert first.result()["created"]
            assert held.bytes == 10_000 + watch_words.WATCH_BYTES
            begun(second, create(long), create(K, range_end=long))
            assert second.result()["created"]
            refused = second.result()
            assert refused["canceled"]
            assert "http.watch_bytes_max = 25000" in refused["cancel_reason"]
            counts = {m.labels["limit"]: m.value for m in server.door.metrics() if m.labels}
            assert counts["watch_bytes_max"] == 1
            first.say({"cancel_request": {"watch_id": "7"}})
            assert first.result()["canceled"]
            second.say(create(K, range_end=long))
            assert "canceled" not in second.result()
            # One whose start was compacted has ended and counts no more.
            before = held.bytes
            for number in range(5):
                server.put(b"k", b"%d" % number)
            server.run(server.node.kv.compact(5))
            first.say(create(L, start_revision="2"))
            assert first.result()["created"]
            assert first.result()["canceled"]
            eventually(server, lambda: held.bytes == before)
        eventually(server, lambda: held.bytes == 0)
    finally:
        server.stop()


def test_a_mark_does_not_speak_for_a_watch_that_came_after_it_was_asked_for(
    served: Served, wire: Wire
) -> None:
    count = 2000
    for number in range(count):
        served.put(b"busy", b"%d" % number)
    begun(
        wire,
        create(key=b64(b"quiet")),
        {"progress_request": {}},
        create(key=b64(b"busy"), start_revision="2"),
    )
    seen = 0
    while (result := wire.result()).get("watch_id") != "-1":
        seen += len(result.get("events", ()))
    assert seen == count
    assert int(result["header"]["revision"]) == count + 1


@pytest.mark.parametrize("watches", [1, 20])
def test_lines_of_many_streams_are_written_a_few_in_each_turn(watches: int) -> None:
    """A change that many watch leaves room for others; each gets it all the same."""

    async def play() -> Counter[int]:
        node, now, given = SoloNode(), 0, Counter[int]()
        node.start_watches()

        async def requests() -> AsyncIterator[bytes]:
            for _ in range(watches):
                yield json.dumps(create()).encode()
            await asyncio.Event().wait()

        async def listen() -> None:
            left = watches
            made: Any = node
            async for line in WatchStream(made, Headers(made)).answers(requests()):
                events = line.count(b'"kv"')
                given[now] += events
                left -= bool(events)
                if not left:
                    return

        tasks = [asyncio.create_task(listen()) for _ in range(1000 // watches)]
        for _ in range(100):
            await asyncio.sleep(0)
        await node.kv.txn(success=[PutOp(b"k", b"v")] + [PutOp(b"x%d" % n, b"") for n in range(9)])
        while not all(task.done() for task in tasks):
            now += 1
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        return given

    given = asyncio.run(play())
    assert sum(given.values()) == 1000
    # Each is a line of eleven units.
    assert max(given.values()) * (REQUEST_UNITS + 1) < 2 * WORK_MAX
