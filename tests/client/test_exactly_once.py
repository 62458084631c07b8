"""A write through the door is applied once, whatever is lost on the way: on real nodes."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from raftkv import Client
from raftkv.client.sessions import Sessions as ClientSessions
from raftkv.errors import NumberReused, Refused, SessionExpired, Timeout
from raftkv.kv.commands import Compare, LeaseNotFound, PutOp, RangeOp
from raftkv.server.sessions import Sessions
from tests.client.doors import Served, served
from tests.client.fake_door import b64, in_loop, until


async def counted(client: Client, key: bytes) -> int:
    """The version of a key: how often it was put."""
    found = await client.kv.get(key)
    return 0 if found is None else found.version


@in_loop
async def test_a_lost_answer_is_fetched_at_another_node() -> None:
    """The door of the first node applies the write and its answer reaches nobody."""
    async with served(3) as doors, Client(doors.urls, timeout_s=3) as client:
        first = next(iter(doors.proxies.values()))
        await client.kv.put(b"k", b"0")  # the session is open
        for mode in ("drop", "hang"):
            first.mode = mode
            before = await counted(client, b"n")
            first.cut()
            client._caller._current = 0  # back to the first endpoint
            client._caller._places[0].rests_until = 0.0
            put = await client.kv.put(b"n", mode.encode(), prev_kv=True)
            assert first.dropped > 0
            found = await client.kv.get(b"n")
            assert found is not None
            assert found.version == before + 1
            assert found.mod_revision == put.revision  # the answer is the first one's
            first.dropped, first.mode = 0, "pass"


@in_loop
async def test_writers_count_exactly_while_nodes_die_and_answers_are_lost() -> None:
    """Each writer puts its own key; the version says how often each put was applied."""
    writers, puts = 8, 25

    async def write(client: Client, number: int) -> int:
        for count in range(puts):
            await client.kv.put(b"w%d" % number, b"%d" % count, timeout_s=20)
        return puts

    async with served(3) as doors, Client(doors.urls, timeout_s=20) as client:
        running = [asyncio.create_task(write(client, number)) for number in range(writers)]
        proxies = list(doors.proxies.values())
        for proxy in (*proxies, *proxies):
            proxy.mode = "drop"
            proxy.cut()
            before = proxy.dropped
            while proxy.url == client.endpoint and proxy.dropped == before:
                await asyncio.sleep(0.002)
            proxy.mode = "pass"
        leader = doors.cluster.leader()
        assert leader is not None
        await doors.kill(leader.name)
        await asyncio.gather(*running)
        assert client.retries > 0
        for number in range(writers):
            assert await counted(client, b"w%d" % number) == puts


@in_loop
async def test_the_outcome_is_settled_when_the_answer_stays_away() -> None:
    async with served(1) as doors, Client(doors.urls) as client:
        (proxy,) = doors.proxies.values()
        await client.kv.put(b"k", b"0")
        proxy.mode = "hang"
        proxy.cut()
        with pytest.raises(Timeout) as caught:
            await client.kv.put(b"k", b"1", timeout_s=3)
        assert proxy.dropped, "the answer had come"
        proxy.mode = "pass"
        proxy.cut()
        outcome = await client.outcome(caught.value.session, caught.value.seq, timeout_s=30)
        assert outcome.verdict == "applied"
        assert outcome.result.revision == (await client.kv.range()).revision
        with pytest.raises(LeaseNotFound):
            await client.kv.put(b"k", b"2", lease=99)


async def raw(doors: Served, name: str, path: str, body: object, **headers: str) -> object:
    """A request with these headers, without a client; the decoded answer."""
    port = doors.doors[name].port
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = msgspec.json.encode(body)
    lines = "".join(f"{key.replace('_', '-')}: {value}\r\n" for key, value in headers.items())
    head = f"POST {path} HTTP/1.1\r\nhost: [::1]\r\nconnection: close\r\n{lines}"
    writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
    answer = await reader.read()
    writer.close()
    return msgspec.json.decode(answer.partition(b"\r\n\r\n")[2])


@in_loop
async def test_the_same_number_gives_the_same_answer_at_every_node() -> None:
    async with served(3, replicants=1) as doors:
        opened = await raw(doors, "replicant1", "/v1/sessions", {})
        handle = opened["session"]  # type: ignore[index]
        answers = []
        for name in ("core1", "replicant1", "core2", "core3", "core1"):
            body = {"key": b64(b"k"), "value": b64(name.encode())}
            head = {"raftkv_session": handle, "raftkv_seq": "1", "raftkv_floor": "1"}
            answer = await raw(doors, name, "/v3/kv/put", body, **head)
            answers.append(answer["header"]["revision"])  # type: ignore[index]
        assert len(set(answers)) == 1
        found = await doors.cluster.nodes[0].kv.get(b"k")
        assert found is not None
        assert (found.value, found.version) == (b"core1", 1)


@in_loop
async def test_headers_that_are_not_ours_are_refused() -> None:
    async with served(1) as doors:
        opened = await raw(doors, "core1", "/v1/sessions", {})
        handle: str = opened["session"]  # type: ignore[index]
        number, _, secret = handle.partition("-")
        put = {"key": b64(b"k"), "value": b64(b"v")}

        async def reason(path: str = "/v3/kv/put", **headers: str) -> str:
            answer = await raw(doors, "core1", path, put, **headers)
            return answer.get("reason", "")  # type: ignore[attr-defined, no-any-return]

        assert await reason(raftkv_session=handle) == "bad_request"  # no number
        for seq in ("0", "-1", "x", "9" * 30):
            assert await reason(raftkv_session=handle, raftkv_seq=seq) == "bad_request"
        floor_above = {"raftkv_seq": "1", "raftkv_floor": "2"}
        assert await reason(raftkv_session=handle, **floor_above) == "bad_request"
        assert await reason(raftkv_session=number, raftkv_seq="1") == "bad_request"
        assert await reason(raftkv_seq="1") == "bad_request"
        assert await reason(raftkv_sesion=handle, raftkv_seq="1") == "bad_request"
        other = f"{number}-{int(secret, 16) ^ 1:016x}"
        assert await reason(raftkv_session=other, raftkv_seq="1") == "session_expired"
        unknown = f"{int(number) + 1}-{secret}"
        assert await reason(raftkv_session=unknown, raftkv_seq="1") == "session_expired"
        node = doors.cluster.nodes[0]
        of_a_node = f"{node.session}-{secret}"
        assert await reason(raftkv_session=of_a_node, raftkv_seq="1") == "session_expired"
        assert await node.kv.get(b"k") is None


@in_loop
async def test_a_number_that_was_used_for_another_command_is_refused() -> None:
    async with served(1) as doors:
        opened = await raw(doors, "core1", "/v1/sessions", {})
        head = {"raftkv_session": opened["session"], "raftkv_seq": "1"}  # type: ignore[index]
        await raw(doors, "core1", "/v3/kv/put", {"key": b64(b"k"), "value": b64(b"v")}, **head)
        answer = await raw(doors, "core1", "/v3/lease/grant", {"TTL": "60"}, **head)
        assert answer["reason"] == NumberReused.code  # type: ignore[index]
        assert await doors.cluster.nodes[0].leases.list() == ()


@in_loop
async def test_a_session_that_has_ended_is_replaced_or_told() -> None:
    """The cluster ends the sessions that were used longest ago when there are very many."""
    async with served(1) as doors, Client(doors.urls, timeout_s=2) as client:
        node = doors.cluster.nodes[0]
        (proxy,) = doors.proxies.values()
        await client.kv.put(b"k", b"0")

        def end_all() -> None:
            sessions = node.machine._sessions
            for session in list(sessions._clients.values()):
                sessions._end_client(session)

        end_all()
        await client.kv.put(b"k", b"1")
        assert client._caller.sessions.opened == 2
        # An answer is lost, and the table that would tell with it.
        proxy.mode = "drop"
        proxy.cut()
        writing = asyncio.create_task(client.kv.put(b"k", b"2"))
        await until(lambda: proxy.dropped > 0)
        end_all()
        proxy.mode = "pass"
        with pytest.raises(Timeout):
            await writing
        assert await counted(client, b"k") == 3


@in_loop
async def test_all_words_work_under_a_session() -> None:
    async with served(1) as doors, Client(doors.urls) as client:
        granted = await client.leases.grant(60)
        await client.kv.put(b"a", b"1", lease=granted.id)
        done = await client.kv.txn(
            [Compare(b"a", "version", "=", 1)], [PutOp(b"b", b"2", prev_kv=True)]
        )
        assert done.succeeded
        assert (await client.kv.delete(b"b", prev_kv=True)).prev[0].value == b"2"
        revoked = await client.leases.revoke(granted.id)
        assert revoked.deleted == 1
        assert (await client.kv.compact(revoked.revision)).revision == revoked.revision
        node = doors.cluster.nodes[0]
        assert node.foreign.applied == 6 + 1  # and the session's opening
        assert len(node.foreign) == 0
        assert node.foreign.size_bytes == 0


@in_loop
async def test_a_transaction_that_only_reads_takes_no_number() -> None:
    async with served(3, replicants=1) as doors, Client(doors.urls) as client:
        await client.kv.put(b"a", b"1")
        applied = sum(node.foreign.applied for node in doors.cluster.nodes)
        compare, reads = [Compare(b"a", "value", "=", b"1")], [RangeOp(b"a"), RangeOp(b"b")]
        done = await client.kv.txn(compare, reads)
        assert done == await doors.cluster.nodes[0].kv.txn(compare, reads)
        assert [result.count for result in done.results] == [1, 0]  # type: ignore[union-attr]
        # One that another client numbers is a read, too, also under a number that was used.
        opened = await raw(doors, "core1", "/v1/sessions", {})
        handle = opened["session"]  # type: ignore[index]
        head = {"raftkv_session": handle, "raftkv_seq": "1", "raftkv_floor": "1"}
        body = {"success": [{"request_range": {"key": b64(b"a")}}]}
        for name in ("core1", "core2", "replicant1"):
            answer = await raw(doors, name, "/v3/kv/txn", body, **head)
            assert answer["succeeded"] is True  # type: ignore[index]
        opening = 1
        assert sum(node.foreign.applied for node in doors.cluster.nodes) == applied + opening


@in_loop
async def test_a_node_that_lags_does_not_take_a_new_session_for_an_ended_one() -> None:
    async with served(3, replicants=1) as doors:
        late = doors.cluster.replicants[0]
        late.inject_lag(0.3)
        opened = await raw(doors, "core1", "/v1/sessions", {})
        head = {"raftkv_session": opened["session"], "raftkv_seq": "1"}  # type: ignore[index]
        body = {"key": b64(b"k"), "value": b64(b"v")}
        answer = await raw(doors, "replicant1", "/v3/kv/put", body, **head)
        assert answer["header"]["revision"]  # type: ignore[index]


@in_loop
async def test_a_second_command_under_one_ticket_is_a_mistake() -> None:
    async with served(1) as doors:
        node = doors.cluster.nodes[0]
        handle = await node.foreign.open_session(5)
        head = {b"raftkv-session": handle.encode(), b"raftkv-seq": b"1"}
        writer = Sessions(node).bind(head)
        await writer.put(b"k", b"v")
        with pytest.raises(RuntimeError, match="more than one command"):
            await writer.put(b"k", b"w")


@in_loop
async def test_a_session_that_is_nearly_full_is_put_aside() -> None:
    handles = iter(("1-a", "2-b"))

    async def opener(deadline: float) -> str:
        return next(handles)

    sessions = ClientSessions(opener)
    deadline = asyncio.get_running_loop().time() + 5
    first = await sessions.current(deadline)
    held = first.take()
    while not first.full:
        first.done(first.take())
    second = await sessions.current(deadline)
    assert second is not first
    assert sessions.find(first.id) is first
    assert first.floor == held
    first.done(held)
    assert not first.full


def test_refusals_of_sessions_are_verdicts() -> None:
    assert issubclass(SessionExpired, Refused)
    assert issubclass(NumberReused, Refused)
