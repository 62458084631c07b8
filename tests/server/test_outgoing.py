"""Answers under way are bounded in bytes over all connections."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from raftkv.config import HttpLimits
from raftkv.kv import DeleteRangeResult, KeyValue, OperationResult, RangeResult, TxnResult
from raftkv.kv.work_budget import WORK_MAX, WorkBudget
from raftkv.server import bounded
from raftkv.server.answers import Busy
from raftkv.server.gateway import (
    BARE_ROW_BYTES,
    ROW_BYTES,
    Gateway,
    _operation_answer,
)
from raftkv.server.large_answer import Given
from raftkv.server.outgoing import Outgoing
from raftkv.server.tls import DoorTls
from tests.server.conftest import Served, b64
from tests.server.solo import SoloNode
from tests.server.test_door import connection_of
from tests.server.test_pipelines import connected, post, read
from tests.server.test_tls import World, until

KIB = 1024
VALUE = b"v" * (768 * KIB)
LIMIT = 8 * KIB * KIB
ALL = b'{"key":"AA==","range_end":"AA=="}'


@pytest.fixture
def served() -> Iterator[Served]:
    server = Served(limits=HttpLimits(answer_bytes_max=LIMIT))
    server.start()
    for number in range(4):
        status, _ = server.post("/v3/kv/put", {"key": b64(b"k%d" % number), "value": b64(VALUE)})
        assert status == 200
    yield server
    server.stop()


def held(server: Served) -> int:
    return server.app.outgoing.bytes


def unread(server: Served) -> socket.socket:
    """A client that asks for 4 MiB and takes none of them."""
    client = connected(server)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.sendall(post("/v3/kv/range", ALL))
    return client


def test_what_clients_do_not_take_is_bounded_over_all_connections(served: Served) -> None:
    clients = [unread(served) for _ in range(8)]
    until(served, lambda _: served.app.outgoing.refused > 0)
    until(served, lambda _: served.app.requests == 0)
    assert held(served) <= LIMIT + 1024 * KIB
    # Beyond it no request is begun, with a reason that names the limit.
    served.run(_moved(served, LIMIT))
    status, answer = served.post("/v3/kv/put", {"key": "YQ=="})
    assert (status, answer["reason"]) == (429, "overloaded")
    assert "http.answer_bytes_max" in answer["detail"]
    refused = {
        each.labels["limit"]: each.value for each in served.door.metrics() if each.name == "refused"
    }
    assert refused["answer_bytes_max"] > 0
    served.run(_moved(served, -LIMIT))
    for client in clients:
        client.close()
    until(served, lambda _: held(served) == 0)
    assert served.post("/v3/kv/put", {"key": "YQ=="})[0] == 200


@pytest.mark.parametrize("hot", [False, True])
def test_over_tls_they_are_counted_as_well(tmp_path: Path, hot: bool) -> None:
    world = World(tmp_path)
    server = Served(tls=DoorTls(world.files))
    server.start()
    clients = []
    try:
        for number in range(12):
            server.run(server.node.kv.put(b"k%02d" % number, VALUE))
        for _ in range(3):
            raw = socket.create_connection(("127.0.0.1", server.door.port), 10)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client = world.context(world.client).wrap_socket(raw, server_hostname="127.0.0.1")
            clients.append(client)
            if hot:  # the head is known then
                nothing = b'{"key":"eg==","range_end":"ew=="}'
                client.sendall(post("/v3/kv/range", nothing))
                read(client, b'"revision"')
            client.sendall(post("/v3/kv/range", ALL))
        # Of 12 MiB each the sockets of both sides hold 4 or so.
        until(server, lambda _: server.app.requests == 0 and held(server) > 16 * KIB * KIB)
        time.sleep(0.1)
        assert held(server) > 16 * KIB * KIB
    finally:
        for client in clients:
            client.close()
        until(server, lambda _: held(server) == 0)
        server.stop()


def test_what_a_connection_that_ends_still_holds_is_counted(served: Served) -> None:
    """It is closed as soon as its client, who takes nothing, has taken what is written."""
    client = connected(served)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection = connection_of(served, lambda found: found.client == client.getsockname())

    async def end() -> int:
        # The sockets of both sides hold 4 MiB or so.
        connection.transport.write(bytes(2 * LIMIT))
        connection.transport.close()
        await asyncio.sleep(0)
        connection.check(asyncio.get_running_loop().time())
        return connection.transport.get_write_buffer_size()

    unsent = served.run(end())
    assert held(served) == unsent > LIMIT
    status, answer = served.post("/v3/kv/put", {"key": "YQ=="})
    assert (status, answer["reason"]) == (429, "overloaded")
    client.close()
    until(served, lambda _: held(served) == 0)


@pytest.mark.parametrize("others_refused", [False, True])
def test_who_takes_too_little_is_cut_while_others_are_refused(
    served: Served, others_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded, "SEND_TIMEOUT_S", 2.0)
    monkeypatch.setattr(bounded, "TAKEN_BYTES_PER_S_MIN", 16 * KIB * KIB)
    for number in range(4, 28):
        served.run(served.node.kv.put(b"k%d" % number, VALUE))
    client = connected(served)
    client.sendall(post("/v3/kv/range", ALL))
    until(served, lambda _: held(served) > bounded.LARGE_BYTES)
    begin, taken = time.monotonic(), 0
    with contextlib.suppress(ConnectionError):
        # A client that is to be cut is cut at some time; that the other one is not takes 5 s.
        while held(served) and time.monotonic() < begin + (60 if others_refused else 5):
            if taken < min(5, time.monotonic() - begin) * 3 * KIB * KIB:
                taken += len(client.recv(65536))  # less than is demanded
            else:
                time.sleep(0.01)
            served.app.outgoing.refused += others_refused
    assert (held(served) == 0) == others_refused
    client.close()


@pytest.mark.parametrize("hot", [False, True])
def test_however_many_large_answers_there_are_a_turn_sends_a_bounded_share(
    served: Served, hot: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sent at once, those of hundreds of connections would take seconds of one turn."""
    spent = {0: 0}
    budget = served.app.budget
    spend, renewed = budget.spend, budget._next

    def counted(units: int) -> None:
        spent[len(spent) - 1] += units
        spend(units)

    def turned() -> None:
        spent[len(spent)] = 0
        renewed()

    monkeypatch.setattr(budget, "spend", counted)
    monkeypatch.setattr(budget, "_next", turned)
    one = b'{"key":"%b"}' % b64(b"k0").encode()
    clients = [connected(served) for _ in range(6)]
    for client in clients:
        if hot:  # the head is known then
            client.sendall(post("/v3/kv/range", b'{"key":"%b"}' % b64(b"no").encode()))
            read(client, b'"revision"')
        client.sendall(post("/v3/kv/range", one))
    for client in clients:
        assert read(client, b'"count":"1"}').startswith(b"HTTP/1.1 200 OK")
        client.close()
    assert sum(spent.values()) >= len(clients) * len(VALUE) * 4 // 3 // 1024
    # Those who come in the turn of those who were woken have room as well.
    assert max(spent.values()) < 2 * WORK_MAX + bounded.PIECE_BYTES // 1024
    until(served, lambda _: held(served) == 0)


def test_a_stop_cuts_a_large_answer_without_an_error_in_the_log(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(4, 16):
        served.run(served.node.kv.put(b"k%02d" % number, VALUE))
    client = unread(served)
    until(served, lambda _: served.app.requests == 0 and held(served) > LIMIT)
    served.run(served.door.stop())
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    client.close()


def test_an_answer_that_is_taken_counts_no_more(served: Served) -> None:
    client = connected(served)
    for _ in range(5):
        client.sendall(post("/v3/kv/range", ALL))
        assert b"200 OK" in read(client, b'"count":"4"}')
    until(served, lambda _: held(served) == 0)
    assert served.app.outgoing.refused == 0
    client.close()


def test_a_stream_waits_until_there_is_room(served: Served) -> None:
    stream = connected(served)
    watch = b'{"create_request":{"key":"YQ=="}}'
    head = b"POST /v3/watch HTTP/1.1\r\nhost: [::1]\r\ncontent-length: %d\r\n\r\n" % len(watch)
    stream.sendall(head + watch)
    assert b'"created":true' in read(stream, b"created")
    served.run(_moved(served, LIMIT))
    served.run(_put(served, b"a"))
    stream.settimeout(0.3)
    # Also the first one: many idle streams may have an event at once.
    for _ in range(3):
        served.run(_put(served, b"a"))
    assert _waiting_lines(stream) == 0
    served.run(_moved(served, -LIMIT))
    stream.settimeout(10)
    assert b'"events"' in read(stream, b"events")
    stream.close()


def test_a_line_that_waits_for_its_connection_counts(served: Served) -> None:
    stream = connected(served)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    watch = b'{"create_request":{"key":"YQ=="}}'
    head = b"POST /v3/watch HTTP/1.1\r\nhost: [::1]\r\ncontent-length: %d\r\n\r\n" % len(watch)
    stream.sendall(head + watch)
    assert b'"created":true' in read(stream, b"created")
    # Of 16 MiB the sockets of both sides hold 4 or so; of the rest a line is in the transport and
    # another one waits.
    for number in range(16):
        served.run(served.node.kv.put(b"a", b"%04d" % number + VALUE))
    until(served, lambda _: held(served) > 2 * len(VALUE) * 4 // 3)
    stream.close()
    until(served, lambda _: held(served) == 0)


def test_leases_are_kept_alive_without_room(served: Served) -> None:
    stream = connected(served)
    one = b'{"ID":"5"}'
    head = b"POST /v3/lease/keepalive HTTP/1.1\r\nhost: [::1]\r\ncontent-length: %d\r\n\r\n" % (
        3 * len(one)
    )
    served.run(_moved(served, LIMIT))
    stream.sendall(head)
    for _ in range(3):
        stream.sendall(one)
        assert b'"ID":"5"' in read(stream, b"result")
    served.run(_moved(served, -LIMIT))
    stream.close()


def _waiting_lines(stream: socket.socket) -> int:
    """How many events come until none comes any more."""
    found = b""
    try:
        while True:
            found += stream.recv(65536)
    except TimeoutError:
        return found.count(b'"events"')


async def _moved(server: Served, size: int) -> None:
    server.app.outgoing.moved(size)


async def _put(server: Served, key: bytes) -> None:
    await server.node.kv.put(key, b"")


def test_one_answer_alone_is_never_too_large() -> None:
    outgoing = Outgoing(100)
    outgoing.require_room(1000)
    outgoing.moved(50)
    outgoing.require_room(49)
    with pytest.raises(Busy):
        outgoing.require_room(50)


def test_a_large_answer_is_held_once() -> None:
    async def written() -> tuple[int, int]:
        node = SoloNode()
        for number in range(24):
            await node.kv.put(b"k%02d" % number, VALUE)
        gateway = Gateway(node)
        tracemalloc.start()
        answer = await gateway.range(ALL)
        try:
            return tracemalloc.get_traced_memory()[1], len(answer)
        finally:
            tracemalloc.stop()

    most, size = asyncio.run(written())
    assert size > 24 * KIB * KIB
    # A buffer grows by an eighth, of which nothing is touched, and a slice is written beside it.
    assert most < size * 1.25


def test_rows_that_are_sorted_count_from_their_reading_on() -> None:
    class Recorded(Outgoing):
        moves: list[int]

        def moved(self, size: int) -> None:
            self.moves.append(size)
            super().moved(size)

    async def play() -> None:
        node, outgoing = SoloNode(), Recorded(50 * KIB)
        outgoing.moves = []
        for number in range(1_500):
            await node.kv.put(b"k%04d" % number, b"")
        gateway = Gateway(node, outgoing=outgoing)
        ordered = ALL[:-1] + b',"sort_order":"DESCEND"%b}'
        # Alone it always fits.
        assert b'"count":"1500"' in await gateway.range(ordered % b"")
        assert outgoing.moves[0] == 1_500 * ROW_BYTES
        assert outgoing.bytes == 0
        await gateway.range(ordered % b',"keys_only":true,"limit":"1"')
        assert outgoing.moves[-2:] == [1_500 * BARE_ROW_BYTES, -1_500 * BARE_ROW_BYTES]
        outgoing.moved(20 * KIB)
        with pytest.raises(Busy):
            await gateway.range(ordered % b"")
        assert outgoing.moves[-1] == 20 * KIB, "nothing was read"

    asyncio.run(play())


async def some_turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_those_who_wait_go_one_after_the_other() -> None:
    async def play() -> None:
        outgoing = Outgoing(100)
        outgoing.moved(150)
        wrote: list[int] = []

        async def line(number: int) -> None:
            await outgoing.room()
            outgoing.moved(60)
            wrote.append(number)

        tasks = [asyncio.ensure_future(line(number)) for number in range(5)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        outgoing.moved(-150)
        await some_turns()
        assert wrote == [0, 2]
        outgoing.moved(-60)
        await some_turns()
        assert wrote == [0, 2, 3]
        outgoing.moved(-120)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert wrote == [0, 2, 3, 4]

    asyncio.run(play())


def test_the_answer_of_a_write_counts_and_is_never_refused() -> None:
    async def written() -> tuple[set[int], int]:
        outgoing = Outgoing(100)
        outgoing.moved(1_000)  # far beyond the limit already
        kvs = tuple(KeyValue(b"%04d" % n, bytes(1_024), 1, 1, 1, 0) for n in range(2_500))
        counted = set()
        with Given(outgoing, WorkBudget()) as given:
            result = RangeResult(7, kvs, len(kvs), False)
            answer = asyncio.ensure_future(_operation_answer(result, given))
            while not answer.done():
                counted.add(outgoing.bytes - 1_000)
                await asyncio.sleep(0)
            assert 0 <= len(answer.result()) - (outgoing.bytes - 1_000) < 1_000
            counted.add(outgoing.bytes - 1_000)
        return counted, outgoing.bytes

    counted, left = asyncio.run(written())
    assert len(counted) > 3, "it grows slice by slice"
    assert left == 1_000


async def written_in_turns(results: Sequence[OperationResult]) -> int:
    """How many turns of the loop the answers of a transaction's operations take."""
    outgoing, turns = Outgoing(100), 0

    async def write() -> None:
        with Given(outgoing, WorkBudget()) as given:
            for result in results:
                assert b"header" in await _operation_answer(result, given)

    task = asyncio.create_task(write())
    while not task.done():
        turns += 1
        await asyncio.sleep(0)
    await task
    assert outgoing.bytes == 0
    return turns


def rows_of(count: int) -> tuple[KeyValue, ...]:
    return tuple(KeyValue(b"%06d" % number, b"", 1, 1, 1, 0) for number in range(count))


@pytest.mark.parametrize(
    "results",
    [
        [RangeResult(7, rows_of(900), 900, False)] * 20,
        [DeleteRangeResult(7, 900, rows_of(900))] * 20,
        [DeleteRangeResult(7, 18_000, rows_of(18_000))],
        [TxnResult(7, True, (RangeResult(7, rows_of(900), 900, False),) * 10)] * 2,
    ],
    ids=["ranges", "deletions", "one deletion", "nested"],
)
def test_many_rows_of_a_transaction_are_written_in_several_turns(
    results: Sequence[OperationResult],
) -> None:
    # A piece begins as long as there is room for one unit.
    assert asyncio.run(written_in_turns(results)) >= 18_000 // (WORK_MAX + 900)
