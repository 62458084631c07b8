"""Which endpoint, how long, and whether again: the rules of raftkv/client/calls.py."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from raftkv import Client
from raftkv.errors import (
    ConfigError,
    NoLeader,
    OutcomeUnknown,
    Overloaded,
    PeerUnreachable,
    ReadTimeout,
    Refused,
    SessionExpired,
    Stopped,
    Timeout,
    TooLarge,
)
from raftkv.kv.commands import Compacted, EmptyKey, KeyValue, LeaseNotFound, PutOp, RangeOp
from raftkv.testing.local_cluster import free_ports
from tests.client.fake_door import (
    HANG_UP,
    SILENCE,
    Asked,
    Before,
    FakeDoor,
    Say,
    b64,
    error,
    in_loop,
    out_of_time,
    until,
)
from tests.clocks import LONG_S, skip

HEADER = {"cluster_id": "1", "member_id": "2", "revision": "7", "raft_term": "3"}
DONE = Say({"header": HEADER})
KV = {
    "key": b64(b"k"),
    "value": b64(b"v"),
    "create_revision": "5",
    "mod_revision": "7",
    "version": "2",
}
FOUND = Say({"header": HEADER, "kvs": [KV], "count": "1"})


def door_of(write: Callable[[Asked], Any], session: str = "12-00ab") -> Callable[[Asked], Any]:
    """A door that opens sessions, answers reads, and asks `write` about the rest."""
    serials = itertools.count()

    def answer(asked: Asked) -> Any:
        if asked.path == "/v1/sessions":
            number, _, secret = session.partition("-")
            return Say({"session": f"{int(number) + next(serials)}-{secret}"})
        if asked.path == "/v3/kv/range":
            return FOUND
        return write(asked)

    return answer


def always(said: Any, asked: Asked) -> Any:
    return said


def in_turn(*answers: Any) -> Callable[[Asked], Any]:
    """The next answer for each request, the last one for ever."""
    left = list(answers)
    return lambda asked: left.pop(0) if len(left) > 1 else left[0]


@in_loop
async def test_a_write_carries_its_session_number_and_floor() -> None:
    async with FakeDoor(door_of(lambda asked: DONE)) as door, Client(door.url) as client:
        for _ in range(3):
            assert (await client.kv.put(b"k", b"v")).revision == 7
    assert door.paths() == ["/v1/sessions", *["/v3/kv/put"] * 3]
    assert [asked.numbers for asked in door.asked[1:]] == [
        ("12-00ab", 1, 1),
        ("12-00ab", 2, 2),
        ("12-00ab", 3, 3),
    ]
    assert door.connections == 1


@in_loop
async def test_a_write_whose_answer_is_lost_is_sent_again_under_its_number() -> None:
    """At the other endpoint: the cluster knows the number, whoever is asked."""
    writes = door_of(lambda asked: DONE)
    async with (
        FakeDoor(door_of(lambda asked: HANG_UP)) as first,
        FakeDoor(writes) as second,
        Client([first.url, second.url]) as client,
    ):
        await client.kv.put(b"k", b"v")
        assert client.endpoint == second.url
        assert first.asked[-1].numbers == second.asked[-1].numbers
        assert second.paths() == ["/v3/kv/put"]
        assert client.retries == 1


@in_loop
async def test_the_floor_waits_for_the_lowest_number_without_an_answer() -> None:
    held = asyncio.Event()

    def write(asked: Asked) -> Any:
        slow = asked.body["key"] == b64(b"slow")
        if slow and not held.is_set():
            held.set()
            return SILENCE
        return DONE

    async with FakeDoor(door_of(write)) as door, Client(door.url, timeout_s=LONG_S) as client:
        slow = asyncio.create_task(client.kv.put(b"slow", b"v"))
        await held.wait()
        for _ in range(2):
            await client.kv.put(b"k", b"v")
        skip(LONG_S)
        with pytest.raises(Timeout) as caught:
            await slow
        assert (caught.value.session, caught.value.seq) == (12, 1)
        await client.kv.put(b"k", b"v")
        writes = [asked.numbers[1:] for asked in door.asked if asked.path == "/v3/kv/put"]
        assert writes == [(1, 1), (2, 1), (3, 1), (4, 1)]  # its outcome may still be asked for


@in_loop
async def test_an_expired_session_is_replaced_when_nothing_was_delivered() -> None:
    expired = error("session_expired", 412)
    async with (
        FakeDoor(door_of(in_turn(expired, DONE))) as door,
        Client(door.url) as client,
    ):
        await client.kv.put(b"k", b"v")
        assert door.paths() == ["/v1/sessions", "/v3/kv/put"] * 2
        assert [asked.numbers[:2] for asked in door.asked if asked.path == "/v3/kv/put"] == [
            ("12-00ab", 1),
            ("13-00ab", 1),
        ]


@in_loop
async def test_an_expired_session_after_a_delivery_is_unknown_and_not_sent_again() -> None:
    """The first delivery may have been applied before the session ended: no silent double."""
    expired = error("session_expired", 412)
    async with (
        FakeDoor(door_of(in_turn(HANG_UP, expired, DONE))) as door,
        Client(door.url) as client,
    ):
        with pytest.raises(Timeout) as caught:
            await client.kv.put(b"k", b"v")
        assert caught.value.seq == 1
        assert door.paths().count("/v3/kv/put") == 2
        await client.kv.put(b"k", b"v")  # the next write opens another session
        assert door.asked[-1].numbers[1] == 1


@in_loop
async def test_what_was_never_delivered_is_not_called_unknown() -> None:
    unreachable = f"http://127.0.0.1:{free_ports(1)[0]}"
    async with Client(unreachable, timeout_s=LONG_S) as client:
        with pytest.raises(PeerUnreachable):
            await out_of_time(client.kv.put(b"k", b"v"), lambda: client.retries)
    no_leader = error("no_leader", 503)
    async with (
        FakeDoor(door_of(lambda asked: no_leader)) as door,
        Client(door.url, timeout_s=LONG_S) as client,
    ):
        with pytest.raises(NoLeader):
            await out_of_time(client.kv.put(b"k", b"v"), lambda: client.retries > 2)
        assert len(door.asked) > 2  # it tried again until the deadline
        numbers = {asked.numbers[1] for asked in door.asked[1:]}
        assert numbers == {1}


@pytest.mark.parametrize("lost", [HANG_UP, error("timeout", 504), Say(b"oops", 500)])
def test_what_was_delivered_is_unknown_at_the_deadline(lost: Any) -> None:
    @in_loop
    async def scenario() -> None:
        no_leader = error("no_leader", 503)
        async with (
            FakeDoor(door_of(in_turn(lost, no_leader))) as door,
            Client(door.url, timeout_s=LONG_S) as client,
        ):
            with pytest.raises(Timeout) as caught:
                await out_of_time(client.kv.put(b"k", b"v"), lambda: client.retries > 1)
            assert caught.value.session == 12
            assert caught.value.seq == 1
            assert door.paths().count("/v3/kv/put") > 1

    scenario()


@in_loop
async def test_a_word_that_is_no_verdict_does_not_settle_what_was_delivered() -> None:
    """A node of another version, say, that serves no sessions: the first one may have applied."""
    odd = error("bad_request", 400, detail="this door has no client sessions")
    async with (
        FakeDoor(door_of(in_turn(HANG_UP, odd))) as door,
        Client(door.url) as client,
    ):
        with pytest.raises(Timeout, match="no client sessions"):
            await client.kv.put(b"k", b"v")
        with pytest.raises(Refused, match="no client sessions"):  # nothing was delivered
            await client.kv.put(b"k", b"v")


@in_loop
async def test_without_sessions_a_lost_answer_is_unknown_at_once() -> None:
    async with (
        FakeDoor(door_of(lambda asked: HANG_UP)) as door,
        Client(door.url, exactly_once=False) as client,
    ):
        with pytest.raises(OutcomeUnknown):
            await client.kv.put(b"k", b"v")
        assert door.paths() == ["/v3/kv/put"]
        assert "raftkv-session" not in door.asked[0].headers


@pytest.mark.parametrize("status", [408, 500, 502, 503, 504])
def test_a_proxys_word_does_not_say_that_a_write_was_not_applied(status: int) -> None:
    """Some answer 503 when the connection behind them breaks, whatever was sent on it before."""

    @in_loop
    async def scenario() -> None:
        proxy = Say(b"upstream connect error or disconnect/reset before headers", status)
        async with FakeDoor(door_of(in_turn(proxy, DONE, proxy, proxy))) as door:
            async with Client(door.url) as client:
                await client.kv.put(b"k", b"v")  # sent again under its number
                assert door.paths()[1:] == ["/v3/kv/put"] * 2
            async with Client(door.url, exactly_once=False) as client:
                with pytest.raises(Timeout):
                    await client.kv.put(b"k", b"v")
                assert door.paths()[3:] == ["/v3/kv/put"]

    scenario()


@in_loop
async def test_a_word_before_the_answer_is_not_the_answer() -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nlink: <x>\r\n\r\n"
    async with FakeDoor(lambda asked: Before(early, FOUND)) as door, Client(door.url) as client:
        for _ in range(2):
            assert await client.kv.get(b"k") == KeyValue(b"k", b"v", 5, 7, 2)
        assert (len(door.asked), door.connections) == (2, 1)


@in_loop
async def test_a_refusal_ends_the_call_with_its_own_class_and_arguments() -> None:
    compacted = error("compacted", 400, args=["it was compacted", 42])
    async with FakeDoor(lambda asked: compacted) as door, Client(door.url) as client:
        with pytest.raises(Compacted) as caught:
            await client.kv.get(b"k", revision=3)
        assert caught.value.args == ("it was compacted", 42)
        assert len(door.asked) == 1
    gone = error("lease_not_found", 404, detail="there is no lease 5")
    async with FakeDoor(door_of(lambda asked: gone)) as door, Client(door.url) as client:
        with pytest.raises(LeaseNotFound, match="there is no lease 5"):
            await client.kv.put(b"k", b"v", lease=5)


@in_loop
async def test_a_read_ends_with_what_a_node_answered_and_not_with_the_cut_last_attempt() -> None:
    said = itertools.chain([error("no_leader", 503)], itertools.repeat(SILENCE))
    async with (
        FakeDoor(lambda asked: next(said)) as node,
        Client(node.url, timeout_s=LONG_S) as client,
    ):
        with pytest.raises(NoLeader):
            await out_of_time(client.kv.get(b"k"), lambda: len(node.asked) > 1)


@in_loop
async def test_unknown_refusals_and_odd_answers_have_their_place_in_the_tree() -> None:
    async def raised(said: Any) -> type[BaseException]:
        async with (
            FakeDoor(lambda asked: said) as door,
            Client(door.url, timeout_s=LONG_S) as client,
        ):
            with pytest.raises(Exception) as caught:  # noqa: PT011
                await out_of_time(client.kv.get(b"k"), lambda: client.retries)
            return caught.type

    assert await raised(error("not_yet_invented", 412)) is Refused
    assert await raised(Say(b"<html>", 404)) is Refused
    assert await raised(Say(b"", 502)) is ReadTimeout
    assert await raised(error("overloaded", 429)) is Overloaded
    assert await raised(error("disk_failed", 503)) is Stopped
    assert await raised(Say(b"", 413)) is TooLarge
    assert await raised(error("compacted", 400, args=[1, 2, 3, 4])) is Compacted
    assert await raised(error("compacted", 400, args={"no": "list"})) is Compacted


@in_loop
async def test_reads_go_to_the_next_endpoint_and_stay_there() -> None:
    async with (
        FakeDoor(lambda asked: SILENCE) as hangs,
        FakeDoor(lambda asked: HANG_UP) as breaks,
        FakeDoor(lambda asked: error("no_leader", 503)) as lacks,
        FakeDoor(lambda asked: FOUND) as works,
    ):
        urls = [hangs.url, breaks.url, lacks.url, works.url]
        async with Client(urls, timeout_s=2.0) as client:
            for _ in range(3):
                assert await client.kv.get(b"k") == KeyValue(b"k", b"v", 5, 7, 2)
            assert client.endpoint == works.url
            assert [len(door.asked) for door in (hangs, breaks, lacks, works)] == [1, 1, 1, 3]


@in_loop
async def test_a_read_that_nobody_answers_ends_at_its_deadline() -> None:
    async with FakeDoor(lambda asked: SILENCE) as door, Client(door.url) as client:
        reading = asyncio.create_task(client.kv.get(b"k", timeout_s=2 * LONG_S))
        await until(lambda: door.asked)
        skip(LONG_S)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not reading.done()
        skip(LONG_S)
        with pytest.raises(ReadTimeout):
            await reading
        # The connection is not used again: the answer may still come.
        door.answer = lambda asked: FOUND
        assert await client.kv.get(b"k") is not None
        assert door.connections == 2


@in_loop
async def test_an_endpoint_that_failed_is_tried_again_after_a_rest() -> None:
    port = free_ports(1)[0]
    url = f"http://127.0.0.1:{port}"
    async with Client(url, timeout_s=5.0) as client:
        reading = asyncio.create_task(client.kv.get(b"k"))
        await until(lambda: client.retries >= 2)
        async with FakeDoor(lambda asked: FOUND, port=port):
            assert await reading is not None


@in_loop
async def test_calls_at_once_are_bounded_and_share_connections() -> None:
    async with FakeDoor(lambda asked: FOUND) as door:
        async with Client(door.url, connections_max=4) as client:
            await asyncio.gather(*(client.kv.get(b"k") for _ in range(40)))
            assert door.connections <= 4
        door.answer = lambda asked: SILENCE
        async with Client(door.url, connections_max=1, timeout_s=2 * LONG_S) as client:
            first = asyncio.create_task(client.kv.get(b"k"))
            await until(lambda: len(door.asked) == 41)
            with pytest.raises(Overloaded):
                await out_of_time(client.kv.get(b"k", timeout_s=LONG_S), lambda: True)
            first.cancel()


@in_loop
async def test_a_cancelled_call_gives_its_place_and_number_back() -> None:
    async with (
        FakeDoor(door_of(in_turn(SILENCE, DONE))) as door,
        Client(door.url, connections_max=1) as client,
    ):
        cut = asyncio.create_task(client.kv.put(b"k", b"v"))
        await until(lambda: len(door.asked) == 2)
        cut.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cut
        await client.kv.put(b"k", b"v")
        assert door.asked[-1].numbers[1:] == (2, 2)


@in_loop
async def test_a_closed_client_answers_that_it_is_closed() -> None:
    async with FakeDoor(door_of(lambda asked: SILENCE)) as door:
        client = Client(door.url)
        writing = asyncio.create_task(client.kv.put(b"k", b"v"))
        await until(lambda: len(door.asked) == 2)
        await client.close()
        with pytest.raises(Timeout):  # it was on its way
            await writing
        with pytest.raises(Stopped):
            await client.kv.put(b"k", b"v")
        with pytest.raises(Stopped):
            await client.kv.get(b"k")
        await client.close()


@in_loop
async def test_an_answer_beyond_the_limit_is_not_kept() -> None:
    large = Say({"header": HEADER, "kvs": [KV] * 50, "count": "50"})
    async with (
        FakeDoor(lambda asked: large) as door,
        Client(door.url, answer_bytes_max=1000) as client,
    ):
        with pytest.raises(TooLarge, match="exceeds 1000 bytes"):
            await client.kv.range()
        assert len(door.asked) == 1  # it would be as large elsewhere


@in_loop
async def test_a_connection_that_the_door_closes_is_not_used_again() -> None:
    closing = Say(FOUND.body, close=True)
    async with FakeDoor(lambda asked: closing) as door, Client(door.url) as client:
        await client.kv.get(b"k")
        await client.kv.get(b"k")
        assert door.connections == 2
        assert client.retries == 0


@in_loop
async def test_arguments_are_judged_before_anything_is_sent() -> None:
    async with FakeDoor(lambda asked: DONE) as door, Client(door.url) as client:
        with pytest.raises(EmptyKey):
            await client.kv.put(b"", b"v")
        with pytest.raises(TypeError):
            await client.kv.put("k", b"v")  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            await client.kv.txn(success=[PutOp("k", b"v")])  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="no key between"):
            await client.kv.range(b"b", b"a")
        with pytest.raises(ValueError, match="limit"):
            await client.kv.read(RangeOp(b"k", limit=-1))
        with pytest.raises(TypeError):
            await client.kv.delete()
        with pytest.raises(ValueError, match="consistency"):
            await client.kv.get(b"k", consistency="soon")  # type: ignore[arg-type]
        assert not door.asked


@pytest.mark.parametrize(
    "endpoint", ["", "127.0.0.1:4001", "ftp://a:1", "http://", "http://a:x", "http://a:1/path"]
)
def test_what_is_no_endpoint_is_refused(endpoint: str) -> None:
    @in_loop
    async def scenario() -> None:
        with pytest.raises(ConfigError, match="not an endpoint"):
            Client([endpoint])

    scenario()


@in_loop
async def test_a_client_needs_an_endpoint_and_positive_limits() -> None:
    with pytest.raises(ConfigError):
        Client([])
    with pytest.raises(ConfigError):
        Client("http://127.0.0.1:1", timeout_s=0)


@in_loop
async def test_the_outcome_of_a_write_with_an_unknown_answer() -> None:
    verdicts = in_turn(
        Say({"verdict": "applied"}),
        Say({"verdict": "not_applied"}),
        Say({"verdict": "refused", "reason": "compacted", "args": ["gone", 9]}),
    )

    def write(asked: Asked) -> Any:
        if asked.path.startswith("/v1/outcome"):
            return verdicts(asked)
        return DONE if settled else SILENCE

    settled = False
    async with FakeDoor(door_of(write)) as door, Client(door.url, timeout_s=LONG_S) as client:
        errors = []
        for number in range(1, 4):
            put = client.kv.put(b"k", b"v")
            with pytest.raises(Timeout) as caught:
                await out_of_time(put, lambda n=number: door.paths().count("/v3/kv/put") == n)
            errors.append(caught.value)
        settled = True
        applied = await client.outcome(errors[0].session, errors[0].seq)
        assert applied.verdict == "applied"
        assert applied.result.revision == 7  # it was sent once more for its first answer
        assert door.asked[-1].numbers[1] == 1
        not_applied = await client.outcome(errors[1].session, errors[1].seq)
        assert (not_applied.verdict, not_applied.result) == ("not_applied", None)
        refused = await client.outcome(errors[2].session, errors[2].seq)
        assert refused.verdict == "refused"
        assert isinstance(refused.result, Compacted)
        assert (await client.outcome(999, 1)).verdict == "expired"
        await client.kv.put(b"k", b"v")
        assert door.asked[-1].numbers[1:] == (4, 4)  # what was settled is passed by the floor


@in_loop
async def test_sessions_that_cannot_be_opened_are_told() -> None:
    async with (
        FakeDoor(lambda asked: error("not_found", 404, detail="there is no /v1/sessions")) as door,
        Client(door.url) as client,
    ):
        with pytest.raises(Refused, match="no /v1/sessions"):
            await client.kv.put(b"k", b"v")
    async with (
        FakeDoor(lambda asked: Say({})) as door,
        Client(door.url, timeout_s=LONG_S) as client,
    ):
        with pytest.raises(ReadTimeout, match="/v1/sessions cannot be understood"):
            await out_of_time(client.kv.put(b"k", b"v"), lambda: client.retries)


@in_loop
async def test_an_answer_that_cannot_be_understood_is_none() -> None:
    for odd in (b"<html>", b"", {"kvs": 3}, {"header": {"revision": "many"}}):
        said = Say(odd)
        async with (
            FakeDoor(door_of(functools.partial(always, said))) as door,
            Client(door.url) as client,
        ):
            if odd != {"kvs": 3}:
                put = client.kv.put(b"k", b"v", timeout_s=LONG_S)
                with pytest.raises(Timeout):
                    await out_of_time(put, lambda c=client: c.retries)
        async with (
            FakeDoor(functools.partial(always, said)) as door,
            Client(door.url, timeout_s=LONG_S) as client,
        ):
            with pytest.raises(ReadTimeout, match="cannot be understood"):
                await out_of_time(client.kv.get(b"k"), lambda c=client: c.retries)


def test_every_error_of_the_tree_is_told_apart_by_its_code() -> None:
    """Otherwise a client could not tell which one the node has raised."""
    from raftkv.client.failures import _BY_REASON

    assert _BY_REASON["session_expired"] is SessionExpired
    assert all(kind.code == code for code, kind in _BY_REASON.items())
