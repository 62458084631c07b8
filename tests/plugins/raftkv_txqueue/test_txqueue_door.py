"""`/v1/txqueue/...`, handler by handler, on a faked log with real machines."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from raftkv.plugin import Request, Response, handle_of
from raftkv.testing.clock import run
from raftkv.testing.plugin_cluster import FakeCluster, FakeHost, until
from raftkv_txqueue import StillUnderWay, TxQueue, TxQueueApi, bodies, reports
from raftkv_txqueue import door as door_module
from raftkv_txqueue.options import TxQueueOptions
from raftkv_txqueue.settings import SETTINGS
from tests.metrics_page import documented

BAD = (400, "bad_request")
ROOT = Path(__file__).resolve().parent.parent.parent.parent
# A body and a header: no error, no status and no list of branches may show them.
BODY, HEADER = "s3cret", "h3ader"
XID, OTHER = "1:6162:01", "1:6162:02"


def b64(data: str) -> str:
    return base64.b64encode(data.encode()).decode()


def message(body: str = BODY) -> dict[str, Any]:
    return {"body": b64(body), "headers": [["kind", HEADER]]}


def publishes(*messages: str, to: str = "b") -> dict[str, Any]:
    return {"publish": to, "messages": [message(each) for each in messages]}


def accepts(*seqs: int, of: str = "a") -> dict[str, Any]:
    return {"accept": of, "seqs": list(seqs)}


class Stand:
    """A cluster and the doors of all its nodes."""

    def __init__(self, cluster: FakeCluster[FakeHost[TxQueueApi]]) -> None:
        self.cluster = cluster
        #: Every text that a door answered with, but for messages that somebody asked for.
        self.said: list[str] = []
        self.routes = {
            name: {(route.method, route.path): route.handler for route in node.service.routes()}
            for name, node in cluster.nodes.items()
        }

    async def ask(
        self, method: str, path: str, body: Any = None, *, at: str = "core1", **query: str
    ) -> tuple[int, Any]:
        """The status and the body as whoever asked gets them; `path` as it is on the wire."""
        pattern, params = self._find(method, path, at)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = Request(params, query, b"" if body is None else data, "")
        response: Response = await self.routes[at][method, pattern](request)
        text = msgspec.json.encode(response.body).decode()
        if response.status >= 400 or not path.endswith(("/messages", "/get")):
            self.said.append(text)
        return response.status, json.loads(text)

    def _find(self, method: str, path: str, at: str) -> tuple[str, dict[str, str]]:
        parts = path.split("/")
        found = []
        for known, pattern in self.routes[at]:
            pieces = pattern.split("/")
            if known != method or len(pieces) != len(parts):
                continue
            params = {p[1:-1]: q for p, q in zip(pieces, parts, strict=True) if p[0] == "{"}
            fits = all(p[0] == "{" or p == q for p, q in zip(pieces, parts, strict=True))
            if fits:
                found.append((len(params), pattern, params))
        _, pattern, params = min(found, key=lambda each: each[0])
        return pattern, params

    async def good(
        self, method: str, path: str, body: Any = None, *, at: str = "core1", **query: str
    ) -> Any:
        status, answer = await self.ask(method, path, body, at=at, **query)
        assert status in (200, 202), answer
        return answer

    async def open(self, kind: str = "plain", at: str = "core1") -> tuple[str, Any]:
        """The path of a new session, and what was answered."""
        opened = await self.good("POST", "sessions", {"kind": kind}, at=at)
        return f"sessions/{opened['session']}", opened

    async def bodies(self, queue: str, **query: str) -> list[str]:
        found = await self.good("GET", f"queues/{queue}/messages", **query)
        return [base64.b64decode(each["body"]).decode() for each in found["messages"]]

    async def get(self, session: str, queue: str = "a", count: int = 10) -> list[int]:
        found = await self.good("POST", f"{session}/get", {"queue": queue, "count": count})
        return [each["seq"] for each in found["messages"]]


Body = Callable[[Stand], Awaitable[None]]


def doors(
    *shape: int, options: TxQueueOptions | None = None
) -> Callable[[Body], Callable[..., None]]:
    """A story at the doors of a cluster with the queues a (of x, y, z) and b."""

    def wrap(body: Body) -> Callable[..., None]:
        async def whole() -> None:
            cluster: FakeCluster[FakeHost[TxQueueApi]] = FakeCluster(
                TxQueue, *(shape or (3,)), options=options or TxQueueOptions()
            )
            await cluster.start()
            stand = Stand(cluster)
            for queue in "ab":
                await stand.good("PUT", f"queues/{queue}", {})
            told = {"messages": [message(each) for each in "xyz"]}
            await stand.good("POST", "queues/a/publish", told)
            await body(stand)
            await asyncio.sleep(5)
            cluster.check()
            for text in stand.said:
                for secret in (BODY, b64(BODY), HEADER):
                    assert secret not in text, text

        def test() -> None:
            run(whole())

        test.__name__, test.__doc__ = body.__name__, body.__doc__
        return test

    return wrap


def reason(answer: tuple[int, Any]) -> tuple[int, str]:
    """The status and the stable word of an error, which has all that errors of the door have."""
    status, body = answer
    assert body["error"] == body["message"]
    assert isinstance(body["code"], int)
    return status, body["reason"]


# --- queues ---------------------------------------------------------------------------------------


@doors()
async def test_queues_are_declared_changed_listed_and_deleted(stand: Stand) -> None:
    first = await stand.good("PUT", "queues/new", {"depth_max": 2, "dead_letter": "b"})
    assert first == {"queue": "new", "created": True, "changed": False}
    differs = await stand.ask("PUT", "queues/new", {"depth_max": 1}, at="core2")
    assert reason(differs) == (409, "txqueue_queue_differs")
    assert (differs[1]["queue"], differs[1]["what"]) == ("new", "depth_max")
    lost = await stand.ask("PUT", "queues/other", {"dead_letter": "typo"})
    assert reason(lost) == (409, "txqueue_unknown_dead_letter")
    plain = await stand.good("PUT", "queues/new", {}, at="core2")
    assert (plain["created"], plain["changed"]) == (False, False)
    again = await stand.good("PUT", "queues/new", {"depth_max": 1, "change": True}, at="core2")
    assert (again["created"], again["changed"]) == (False, True)
    found = await stand.good("GET", "queues", at="core3")
    assert [each["name"] for each in found["queues"]] == ["a", "b", "new"]
    one = await stand.good("GET", "queues/a")
    assert (one["depth"], one["ready"], one["acquired"], one["next_seq"]) == (3, 3, 0, 4)
    await stand.good("POST", "queues/new/publish", {"messages": [message()]})
    full = await stand.ask("POST", "queues/new/publish", {"messages": [message()]})
    assert reason(full) == (409, "txqueue_queue_full")
    assert (full[1]["queue"], full[1]["what"], full[1]["limit"]) == ("new", "messages", 1)
    letters = await stand.ask("DELETE", "queues/b", at="core2")
    assert reason(letters) == (409, "txqueue_dead_letter_in_use")
    assert (letters[1]["queue"], letters[1]["queues"], letters[1]["more"]) == ("b", ["new"], 0)
    busy = await stand.ask("DELETE", "queues/new", if_empty="true")
    assert reason(busy) == (409, "txqueue_queue_not_empty")
    gone = await stand.good("DELETE", "queues/new")
    assert (gone["deleted"], gone["messages"]) == (True, 1)
    for method, path in (("GET", "queues/new"), ("DELETE", "queues/new")):
        assert reason(await stand.ask(method, path)) == (404, "txqueue_unknown_queue")
    await stand.good("PUT", "queues/new", {"ttl_ms": 60_000, "dead_letter": "b"})
    assert (await stand.good("GET", "queues/new"))["ttl_ms"] == 60_000
    long = await stand.ask("PUT", "queues/new", {"ttl_ms": 10**15, "change": True})
    assert reason(long) == (400, "txqueue_bad_queue_ttl")
    cycle = await stand.ask(
        "PUT", "queues/b", {"ttl_ms": 1, "dead_letter": "new", "change": True}, at="core2"
    )
    assert reason(cycle) == (409, "txqueue_dead_letter_cycle")
    assert (cycle[1]["queue"], cycle[1]["queues"]) == ("b", ["new"])
    own = await stand.ask("PUT", "queues/a", {"dead_letter": "a"})
    assert reason(own) == (400, "txqueue_bad_dead_letter")
    assert reason(await stand.ask("PUT", "queues/%20", {})) == (400, "txqueue_bad_queue_name")


@doors()
async def test_messages_are_published_looked_at_and_purged(stand: Stand) -> None:
    done = await stand.good(
        "POST", "queues/b/publish", {"messages": [message("1"), message("2")]}, at="core2"
    )
    assert (done["first"], done["last"], done["dropped"]) == (1, 2, 0)
    found = await stand.good("GET", "queues/b/messages", limit="1")
    (shown,) = found["messages"]
    assert (shown["seq"], shown["state"], shown["deliveries"]) == (1, "available", 0)
    assert shown["headers"] == [["kind", HEADER]]
    assert found["next"] == 2
    assert await stand.bodies("b", **{"from": "2"}) == ["2"]
    assert reason(await stand.ask("POST", "queues/b/publish", {"messages": []})) == (
        400, "txqueue_empty_batch",
    )  # fmt: skip
    assert (await stand.good("POST", "queues/b/purge"))["purged"] == 2
    assert await stand.bodies("b") == []


@doors()
async def test_messages_have_times_and_return_to_the_back(stand: Stand) -> None:
    timed = [{**message("1"), "delay_s": 3600}, {**message("2"), "ttl_s": 3600}, message("3")]
    await stand.good("POST", "queues/b/publish", {"messages": timed})
    found = await stand.good("GET", "queues/b/messages", all="true")
    assert [each["state"] for each in found["messages"]] == ["delayed", "available", "available"]
    assert ["x-raftkv-ttl-ms", "3600000"] in found["messages"][1]["headers"]
    assert (await stand.good("GET", "queues/b"))["delayed"] == 1
    session, _ = await stand.open()
    got = await stand.good("POST", f"{session}/get", {"queue": "b"})
    assert [each["seq"] for each in got["messages"]] == [2]
    back = {"queue": "b", "seqs": [2], "how": "to_back"}
    assert (await stand.good("POST", f"{session}/settle", back))["done"] == 1
    assert await stand.bodies("b") == ["3", "2"]
    for wrong in ({"ttl_s": 0}, {"delay_s": -1}, {"ttl_s": "x"}):
        asked = {"messages": [{**message("1"), **wrong}]}
        assert reason(await stand.ask("POST", "queues/b/publish", asked))[0] == 400
    long = {"messages": [{**message("1"), "delay_s": 8 * 86_400}]}
    assert reason(await stand.ask("POST", "queues/b/publish", long)) == (400, "txqueue_bad_time")


@doors()
async def test_a_look_has_an_end(stand: Stand) -> None:
    """More than an answer may hold comes in pages, and nothing is left out."""
    large = "x" * (bodies.LIST_MAX // 4 * 1024)
    for _ in range(20):
        await stand.good("POST", "queues/b/publish", {"messages": [message(large)]})
    seen, first = [], 1
    while first:
        query = {"from": str(first)}
        found = await stand.good("GET", "queues/b/messages", **query)
        size = sum(len(base64.b64decode(each["body"])) for each in found["messages"])
        assert size <= reports.ANSWER_BYTES_MAX
        seen += [each["seq"] for each in found["messages"]]
        first = found["next"]
    assert seen == list(range(1, 21))


@doors()
async def test_the_longest_look_knows_whether_there_is_more(stand: Stand) -> None:
    for count in (bodies.LIST_MAX, 1):
        batch = {"messages": [message("x")] * count}
        assert (await stand.good("POST", "queues/b/publish", batch))["first"] > 0
        found = await stand.good("GET", "queues/b/messages", limit=str(bodies.LIST_MAX))
        assert len(found["messages"]) == bodies.LIST_MAX
        assert found["next"] == (0 if count > 1 else bodies.LIST_MAX + 1)


# --- sessions -------------------------------------------------------------------------------------


@doors()
async def test_a_session_acquires_and_settles(stand: Stand) -> None:
    session, opened = await stand.open()
    assert (opened["kind"], opened["node"], opened["txid"]) == ("plain", "core1", "")
    assert await stand.get(session, count=3) == [1, 2, 3]
    assert await stand.bodies("a") == []
    assert await stand.bodies("a", all="true") == ["x", "y", "z"]
    held = await stand.good("GET", session)
    assert [each["seq"] for each in held["held"]] == [1, 2, 3]
    assert (held["held_count"], held["transaction"]) == (3, False)
    settle = f"{session}/settle"
    done = await stand.good("POST", settle, {"queue": "a", "seqs": [1, 9]})
    assert (done["done"], done["missing"]) == (1, [9])
    await stand.good("POST", settle, {"queue": "a", "seqs": [3], "how": "release"})
    await stand.good("POST", settle, {"queue": "a", "seqs": [2], "how": "reject"})
    assert await stand.bodies("a") == ["z"]
    got = await stand.good("POST", f"{session}/get", {"queue": "a"})
    assert (got["messages"][0]["deliveries"], got["messages"][0]["redelivered"]) == (2, True)
    assert (await stand.good("DELETE", session))["closed"]
    await until(lambda: stand.cluster.witness.view("txqueue").table("queues")["a"].ready == 1)
    gone = await stand.ask("POST", f"{session}/get", {"queue": "a"})
    assert reason(gone) == (409, "txqueue_session_ended")


@doors()
async def test_a_session_is_its_clients_alone(stand: Stand) -> None:
    """Numbers are small and shown to all: only the secret opens the way to what a session does."""
    session, opened = await stand.open("tx")
    await stand.good("POST", f"tx/{opened['txid']}/stage", {"operations": [publishes("p")]})
    number = int(opened["session"].partition("-")[0])
    for guess, told in ((handle_of(number, 0), (409, "txqueue_session_ended")), (number, BAD)):
        for method, path, body in (
            ("GET", f"sessions/{guess}", None),
            ("DELETE", f"sessions/{guess}", None),
            ("POST", f"sessions/{guess}/get", {"queue": "a"}),
            ("POST", f"sessions/{guess}/settle", {"queue": "a", "seqs": [1]}),
            ("POST", f"sessions/{guess}/keepalive", {}),
            ("POST", "tx", {"session": str(guess)}),
            ("POST", f"tx/{guess}.1/stage", {"operations": [publishes("q")]}),
            ("POST", f"tx/{guess}.1/commit", {}),
            ("POST", f"tx/{guess}.1/rollback", {}),
        ):
            assert reason(await stand.ask(method, path, body)) == told, path
    assert (await stand.good("GET", session))["session"] == opened["session"]
    done = await stand.good("POST", f"tx/{opened['txid']}/commit", {})
    assert (done["state"], done["txid"]) == ("committed", opened["txid"])
    assert await stand.bodies("b") == ["p"]


@doors()
async def test_who_asks_another_node_is_told_which(stand: Stand) -> None:
    session, opened = await stand.open(at="core2")
    for path, body in (
        (f"{session}/get", {"queue": "a"}),
        (f"{session}/keepalive", {}),
        ("tx", {"session": opened["session"]}),
    ):
        answer = await stand.ask("POST", path, body)
        assert reason(answer) == (409, "txqueue_not_your_session")
        number = int(opened["session"].partition("-")[0])
        assert (answer[1]["node"], answer[1]["session"]) == ("core2", number)
        # Where to ask: none here, for these nodes have no door of their own.
        address = stand.cluster.nodes["core1"].members["core2"].http_address
        assert answer[1]["http_address"] == address
    mine = await stand.cluster.nodes["core1"].opened.session("plain")
    # The program's own, at its own node: not the door's to use.
    answer = await stand.ask("DELETE", f"sessions/{handle_of(mine.id, 7)}")
    assert reason(answer) == (409, "txqueue_not_your_session")
    assert not mine.ended


@doors()
async def test_a_get_waits_for_a_message_and_does_not_hold_up_the_rest(stand: Stand) -> None:
    session, _ = await stand.open()
    got = await stand.get(session, count=1)
    waiting = asyncio.ensure_future(
        stand.good("POST", f"{session}/get", {"queue": "b", "wait_s": 30})
    )
    await asyncio.sleep(1)
    await stand.good("POST", f"{session}/settle", {"queue": "a", "seqs": got})
    assert not waiting.done()
    await stand.good("POST", "queues/b/publish", {"messages": [message("new")]}, at="core3")
    (found,) = (await waiting)["messages"]
    assert base64.b64decode(found["body"]) == b"new"
    empty = await stand.good("POST", f"{session}/get", {"queue": "b", "wait_s": 0.5})
    assert empty["messages"] == []


@doors(options=TxQueueOptions(door_idle_s=2.0, door_sessions_max=2))
async def test_a_session_that_nobody_uses_is_closed(stand: Stand) -> None:
    idle, _ = await stand.open()
    used, _ = await stand.open()
    assert await stand.get(idle) == [1, 2, 3]
    more = await stand.ask("POST", "sessions", {})
    assert reason(more) == (429, "txqueue_too_many_door_sessions")
    for _ in range(4):
        await asyncio.sleep(1)
        await stand.good("POST", f"{used}/keepalive")
    gone = await stand.ask("GET", idle)
    assert reason(gone) == (409, "txqueue_session_ended")
    assert await stand.bodies("a") == ["x", "y", "z"]
    waiting = await stand.good("POST", f"{used}/get", {"queue": "b", "wait_s": 6})
    assert waiting["messages"] == []
    assert (await stand.good("GET", used))["kind"] == "plain"
    status = await stand.good("GET", "status", consistency="local")
    assert (status["door_sessions"], status["mine"]["door_sessions_closed"]) == (1, 1)


@doors(options=TxQueueOptions(door_sessions_max=2))
async def test_sessions_that_are_being_opened_count(stand: Stand) -> None:
    answers = await asyncio.gather(*(stand.ask("POST", "sessions", {}) for _ in range(5)))
    assert sorted(status for status, _ in answers) == [200, 200, 429, 429, 429]


@doors(options=TxQueueOptions(door_idle_s=2.0))
async def test_one_that_is_being_closed_has_ended(stand: Stand) -> None:
    session, _ = await stand.open()
    closing = asyncio.ensure_future(stand.ask("DELETE", session))
    await asyncio.sleep(0)
    assert not closing.done()
    gone = await stand.ask("POST", f"{session}/keepalive")
    assert reason(gone) == (409, "txqueue_session_ended")
    assert (await closing)[0] == 200


# --- local transactions ---------------------------------------------------------------------------


@doors()
async def test_a_transaction_in_one_request(stand: Stand) -> None:
    session, opened = await stand.open("tx")
    txid = opened["txid"]
    await stand.get(session)
    body = {"operations": [accepts(1, 2), publishes("p", "q")]}
    done = await stand.good("POST", f"tx/{txid}/commit", body)
    assert (done["txid"], done["state"], done["spans"]) == (txid, "committed", [["b", 1, 2]])
    assert done["index"] > 0
    assert await stand.bodies("b") == ["p", "q"]
    assert await stand.bodies("a", all="true") == ["z"]
    # Whoever did not hear the answer asks, or does it again: nothing happens twice.
    again = await stand.good("POST", f"tx/{txid}/commit", body)
    assert (again["state"], again["next"]) == ("committed", done["next"])
    for at in ("core1", "core2", "core3"):
        fate = await stand.good("GET", f"tx/{txid}", at=at)
        assert (fate["txid"], fate["state"]) == (txid, "committed")
    elsewhere = await stand.good("POST", f"tx/{txid}/commit", body, at="core2")
    assert elsewhere["state"] == "committed"
    assert await stand.bodies("b") == ["p", "q"]
    assert done["next"] != txid


@doors()
async def test_operations_arrive_once_however_often_they_are_sent(stand: Stand) -> None:
    _, opened = await stand.open("tx")
    begun = await stand.good("POST", "tx", {"session": opened["session"]})
    txid = begun["txid"]
    assert begun == {"txid": opened["txid"], "operations": 0}
    stage = f"tx/{txid}/stage"
    for _ in range(2):
        sent = await stand.good("POST", stage, {"operations": [publishes("1")], "at": 0})
        assert sent == {"txid": txid, "operations": 1}
    # One that was heard and one that was not, in the same request.
    both = {"operations": [publishes("1"), publishes("2")], "at": 0}
    assert (await stand.good("POST", stage, both))["operations"] == 2
    gap = await stand.ask("POST", stage, {"operations": [publishes("9")], "at": 5})
    assert reason(gap) == (409, "txqueue_stage_gap")
    assert (gap[1]["at"], gap[1]["sent"]) == (5, 2)
    assert await stand.bodies("b") == []
    begun = await stand.good("POST", "tx", {"session": opened["session"]})
    assert begun == {"txid": txid, "operations": 2}
    await stand.good("POST", f"tx/{txid}/commit", {"operations": [publishes("3")], "at": 2})
    assert await stand.bodies("b") == ["1", "2", "3"]
    late = await stand.ask("POST", stage, {"operations": [publishes("4")]})
    assert reason(late) == (409, "txqueue_transaction_over")


@doors()
async def test_a_transaction_that_cannot_be_done_says_why(stand: Stand) -> None:
    session, opened = await stand.open("tx")
    txid = opened["txid"]
    await stand.get(session)
    body = {"operations": [publishes(BODY), publishes(BODY, to="nowhere"), accepts(1)]}
    answer = await stand.ask("POST", f"tx/{txid}/commit", body)
    assert reason(answer) == (409, "txqueue_transaction_aborted")
    plain = f"{txid.partition('-')[0]}.1"
    assert (answer[1]["txid"], answer[1]["cause"]) == (plain, "txqueue_unknown_queue")
    # What became of it is no secret.
    assert (await stand.good("GET", f"tx/{plain}", at="core2"))["state"] == "rolled back"
    assert "nowhere" in answer[1]["why"]
    assert await stand.bodies("b") == []
    fate = await stand.good("GET", f"tx/{txid}", at="core3")
    assert (fate["state"], fate["cause"]) == ("rolled back", "txqueue_unknown_queue")
    for at in ("core1", "core2"):
        again = await stand.ask("POST", f"tx/{txid}/commit", body, at=at)
        assert reason(again) == (409, "txqueue_transaction_aborted")
    # The session goes on, and holds what it held.
    begun = await stand.good("POST", "tx", {"session": opened["session"]})
    assert begun["txid"] != txid
    done = await stand.good("POST", f"tx/{begun['txid']}/commit", {"operations": [accepts(1)]})
    assert done["state"] == "committed"


@doors()
async def test_a_rollback_leaves_nothing_and_gives_back(stand: Stand) -> None:
    session, opened = await stand.open("tx")
    txid = opened["txid"]
    await stand.get(session)
    settled = await stand.ask("POST", f"{session}/settle", {"queue": "a", "seqs": [1]})
    # In a transaction it is done with the commit.
    assert settled == (202, {"queue": "a", "staged": 1})
    await stand.good("POST", f"tx/{txid}/stage", {"operations": [publishes("p")]})
    done = await stand.good("POST", f"tx/{txid}/rollback")
    assert (done["state"], done["next"] != txid) == ("rolled back", True)
    again = await stand.good("POST", f"tx/{txid}/rollback")
    assert again["state"] == "rolled back"
    assert await stand.bodies("b") == []
    assert [each["seq"] for each in (await stand.good("GET", session))["held"]] == [1, 2, 3]


@doors()
async def test_transactions_that_are_none_are_told_apart(stand: Stand) -> None:
    _, opened = await stand.open()
    number = opened["session"]
    wrong = await stand.ask("POST", "tx", {"session": number})
    assert reason(wrong)[0] == 409
    _, opened = await stand.open("tx")
    number = opened["session"]
    for path in ("x", "12", "12.", ".7", "1.2.3", "1.-2", "0.1", "1.0"):
        assert reason(await stand.ask("GET", f"tx/{path}")) == BAD, path
    assert (await stand.good("GET", f"tx/{number}.9"))["state"] == "unknown"
    assert (await stand.good("GET", "tx/999.1"))["state"] == "unknown"
    for verb in ("stage", "commit"):
        body = {"operations": [publishes("p")]}
        answer = await stand.ask("POST", f"tx/{number}.9/{verb}", body)
        assert reason(answer) == (404, "txqueue_unknown_transaction"), verb
    assert reason(await stand.ask("POST", "tx/999.1/commit", {})) == BAD
    nobody = await stand.ask("POST", f"tx/{handle_of(999, 1)}.1/commit", {})
    assert reason(nobody) == (409, "txqueue_session_ended")
    # Undecided, and its session is elsewhere.
    far = await stand.ask("POST", f"tx/{number}.1/commit", {}, at="core2")
    assert reason(far) == (409, "txqueue_not_your_session")
    assert far[1]["node"] == "core1"


# --- branches -------------------------------------------------------------------------------------


async def branch(stand: Stand, xid: str = XID, body: str = "p") -> str:
    """A branch that publishes to b, ended; the session's path."""
    session, opened = await stand.open("dtx")
    number = opened["session"]
    started = await stand.good("POST", f"dtx/{xid}/start", {"session": number})
    assert (started["xid"], started["status"], started["name"]) == (xid, 0, "OK")
    asked = {"session": number, "operations": [publishes(body)], "at": 0}
    for _ in range(2):
        assert (await stand.good("POST", f"dtx/{xid}/stage", asked))["operations"] == 1
    await stand.good("POST", f"dtx/{xid}/end", {"session": number})
    return session


@doors()
async def test_a_branch_is_prepared_and_committed_at_any_door(stand: Stand) -> None:
    await branch(stand)
    assert await stand.bodies("b") == []
    done = await stand.good("POST", f"dtx/{XID}/prepare", at="core2")
    assert (done["status"], done["name"]) == (0, "OK")
    found = (await stand.good("GET", "dtx/recover", at="core3"))["branches"]
    assert [(each["xid"], each["state"], each["rows"]) for each in found] == [(XID, "prepared", 1)]
    one = await stand.good("GET", f"dtx/{XID}")
    assert (one["state"], one["branch"]) == ("prepared", found[0])
    assert (await stand.good("POST", f"dtx/{XID}/commit", at="core3"))["name"] == "OK"
    assert await stand.bodies("b") == ["p"]
    again = await stand.ask("POST", f"dtx/{XID}/commit", {})
    assert reason(again) == (404, "txqueue_unknown_xid")
    assert again[1]["xa"] == 404
    told = await stand.good("GET", f"dtx/{XID}", at="core2")
    assert (told["state"], told["by"], told["branch"]) == ("committed", "coordinator", None)
    assert (await stand.good("GET", f"dtx/{OTHER}"))["state"] == "unknown"


@doors()
async def test_errors_have_their_code_of_xa(stand: Stand) -> None:
    _, opened = await stand.open("dtx")
    number = opened["session"]
    _, other = await stand.open()
    start = f"dtx/{XID}/start"
    unselected = await stand.ask("POST", start, {"session": other["session"]})
    assert (reason(unselected)[0], unselected[1]["xa"]) == (400, 503)
    both = await stand.ask("POST", start, {"session": number, "join": True, "resume": True})
    assert (reason(both)[0], both[1]["xa"]) == (400, 503)
    high = await stand.ask("POST", start, {"session": number, "timeout_s": 3_601})
    assert (reason(high)[0], high[1]["xa"]) == (400, 542)
    missing = await stand.ask("POST", f"dtx/{XID}/prepare", {})
    assert (reason(missing)[0], missing[1]["xa"]) == (404, 404)
    await stand.good("POST", start, {"session": number, "timeout_s": 200})
    assert (await stand.good("GET", f"dtx/{XID}"))["branch"]["timeout_s"] == 200
    await stand.good("POST", f"dtx/{XID}/timeout", {"seconds": 300})
    assert (await stand.good("GET", f"dtx/{XID}"))["branch"]["timeout_s"] == 300
    _, third = await stand.open("dtx")
    known = await stand.ask("POST", start, {"session": third["session"]})
    assert (reason(known)[0], known[1]["xa"]) == (409, 530)
    for verb in ("prepare", "commit", "rollback"):
        early = await stand.ask("POST", f"dtx/{XID}/{verb}", {})
        assert (reason(early)[0], early[1]["xa"]) == (409, 409), verb
    away = {"session": third["session"], "operations": [publishes("p")]}
    outside = await stand.ask("POST", f"dtx/{XID}/stage", away)
    assert reason(outside) == (400, "txqueue_not_in_branch")
    await stand.good("POST", f"dtx/{XID}/end", {"session": number})
    early = await stand.ask("POST", f"dtx/{XID}/forget", {})
    assert (reason(early)[0], early[1]["xa"]) == (409, 409)
    done = await stand.good("POST", f"dtx/{XID}/rollback", {})
    assert done["name"] == "OK"
    for xid in ("x", "1:6", "1:zz:", "99999999999:00:00"):
        assert reason(await stand.ask("GET", f"dtx/{xid}")) == BAD, xid


@doors()
async def test_an_operator_decides_and_the_coordinator_is_told(stand: Stand) -> None:
    await branch(stand)
    await stand.good("POST", f"dtx/{XID}/prepare")
    nothing = await stand.ask("POST", f"dtx/{XID}/heuristic", {})
    assert reason(nothing) == BAD
    body = {"decide": "commit", "reason": "it never came back"}
    assert (await stand.good("POST", f"dtx/{XID}/heuristic", body, at="core3"))["name"] == "OK"
    assert await stand.bodies("b") == ["p"]
    for verb in ("rollback", "commit"):
        assert (await stand.good("POST", f"dtx/{XID}/{verb}", {}))["name"] == "HEURCOM"
    told = await stand.good("GET", f"dtx/{XID}")
    assert (told["state"], told["by"]) == ("heuristically committed", "operator")
    assert told["reason"] == "it never came back"
    assert (await stand.good("POST", f"dtx/{XID}/forget"))["name"] == "OK"
    assert (await stand.good("GET", "dtx"))["branches"] == []


@doors()
async def test_a_one_phase_commit_and_a_failed_end(stand: Stand) -> None:
    await branch(stand)
    done = await stand.good("POST", f"dtx/{XID}/commit", {"one_phase": True})
    assert done["name"] == "OK"
    _, opened = await stand.open("dtx")
    number = opened["session"]
    await stand.good("POST", f"dtx/{OTHER}/start", {"session": number})
    ended = await stand.good("POST", f"dtx/{OTHER}/end", {"session": number, "fail": True})
    assert ended["name"] == "RBROLLBACK"
    assert (await stand.good("POST", f"dtx/{OTHER}/prepare"))["name"] == "RBROLLBACK"
    assert (await stand.good("POST", f"dtx/{OTHER}/rollback"))["name"] == "OK"


# --- status, settings, bad requests ---------------------------------------------------------------


@doors()
async def test_the_status_counts(stand: Stand) -> None:
    await branch(stand)
    await stand.good("POST", f"dtx/{XID}/prepare")
    session, _ = await stand.open()
    await stand.get(session, count=2)
    found = await stand.good("GET", "status")
    assert found["node"] == "core1"
    assert (found["totals"]["messages"], found["totals"]["ready"]) == (3, 1)
    assert (found["totals"]["prepared"], found["acquired"], found["door_sessions"]) == (1, 2, 2)
    await stand.good("POST", f"dtx/{XID}/rollback")


@doors()
async def test_settings_are_shown_and_changed(stand: Stand) -> None:
    found = (await stand.good("GET", "settings"))["settings"]
    assert (found["queues_max"], found["dtx_timeout_ms"]) == (1_000, 60_000)
    assert set(found) == {*(setting.key for setting in SETTINGS), "quota_bytes"}
    done = await stand.good("PUT", "settings/queues_max", {"value": 2})
    assert done["settings"]["queues_max"] == 2
    more = await stand.ask("PUT", "queues/c", {})
    assert reason(more) == (409, "txqueue_too_many_queues")
    done = await stand.good("PUT", "settings/queues_max", {"value": None})
    assert done["settings"]["queues_max"] == 1_000
    for value in (0, "many", 1.5):
        answer = await stand.ask("PUT", "settings/queues_max", {"value": value})
        assert reason(answer) == (400, "invalid_setting"), value
    assert reason(await stand.ask("PUT", "settings/queues_max", {"value": 10**30})) == BAD
    assert reason(await stand.ask("PUT", "settings/colour", {"value": 1})) == BAD


@doors()
async def test_bad_requests_are_told_what_to_send(stand: Stand) -> None:
    session, opened = await stand.open("tx")
    txid = opened["txid"]
    for method, path, body in (
        ("PUT", "queues/c", {"depth": 1}),
        ("PUT", "queues/c", {"depth_max": -1}),
        ("PUT", "queues/c", {"overflow": "explode"}),
        ("POST", "queues/a/publish", {}),
        ("POST", "queues/a/publish", {"messages": [{"body": "not base64!"}]}),
        ("POST", "queues/a/purge", {"all": True}),
        ("POST", "sessions", {"kind": "other"}),
        ("POST", f"{session}/get", {}),
        ("POST", f"{session}/get", {"queue": "a", "count": 0}),
        ("POST", f"{session}/get", {"queue": "a", "count": 1001}),
        ("POST", f"{session}/get", {"queue": "a", "wait_s": 601}),
        ("POST", f"{session}/settle", {"queue": "a", "seqs": [0]}),
        ("POST", f"{session}/settle", {"queue": "a", "seqs": [1], "how": "eat"}),
        ("POST", "sessions/x/get", {"queue": "a"}),
        ("POST", "tx", {}),
        ("POST", f"tx/{txid}/stage", {"operations": [{}]}),
        ("POST", f"tx/{txid}/stage", {"operations": [{"publish": "b", "accept": "a"}]}),
        ("POST", f"tx/{txid}/stage", {"operations": [{"accept": "a", "messages": [message()]}]}),
        ("POST", f"tx/{txid}/stage", {"operations": [publishes("1")], "at": -1}),
        ("POST", f"tx/{txid}/commit", {"timeout_s": 0}),
        ("POST", f"dtx/{XID}/timeout", {}),
        ("POST", f"dtx/{XID}/heuristic", {"decide": "perhaps"}),
        ("POST", "queues/a/publish", b"{"),
    ):
        assert reason(await stand.ask(method, path, body)) == BAD, (path, body)
    for path, query in (
        ("status", {"consistency": "fresh"}),
        ("queues", {"limit": "1"}),
        ("queues/a/messages", {"from": "0"}),
        ("queues/a/messages", {"limit": "1001"}),
        ("queues/a/messages", {"all": "perhaps"}),
        ("dtx/recover", {"consistency": "local"}),
    ):
        assert reason(await stand.ask("GET", path, **query)) == BAD, (path, query)


# --- the page -------------------------------------------------------------------------------------


def page() -> str:
    return (ROOT / "docs" / "txqueue.md").read_text("utf-8")


@doors()
async def test_every_route_and_limit_is_in_the_page(stand: Stand) -> None:
    written = re.sub(r"\{\w+\}", "...", page())
    essay = re.sub(r"\{\w+\}", "...", door_module.__doc__ or "")
    for route in stand.cluster.nodes["core1"].service.routes():
        path = re.sub(r"\{\w+\}", "...", route.path)
        assert f"`{route.method} {path}`" in written, route.path
        assert path in essay, route.path
        assert route.doc.endswith(".")
    assert (bodies.LIST_MAX, bodies.TIMEOUT_MAX_S) == (1_000, 600)
    assert reports.ANSWER_BYTES_MAX == 4 * 1024 * 1024
    for shown in ("1,000", "4 MiB", "600 s"):
        assert shown in written, shown


@doors()
async def test_every_figure_is_explained_in_the_docs_and_no_other(stand: Stand) -> None:
    shown = set()
    for metric in stand.cluster.nodes["core1"].service.metrics():
        name = metric.name.removesuffix("_total")
        ending = "_total" if metric.kind == "counter" else ""
        shown.add((f"raftkv_txqueue_{name}{ending}", metric.kind))
    assert shown == set(documented("raftkv_txqueue_").items())


@pytest.mark.parametrize("name", [setting.key for setting in SETTINGS])
def test_every_setting_is_in_the_page(name: str) -> None:
    assert f"`{name}`" in page()


@pytest.mark.parametrize("name", TxQueueOptions.__struct_fields__)
def test_every_option_is_in_the_page(name: str) -> None:
    assert f"`{name}`" in page()


def test_every_refusal_and_error_is_in_the_page() -> None:
    from raftkv_txqueue import errors
    from raftkv_txqueue.refusals import REFUSALS

    told = set(re.findall(r"`([A-Z]\w+)", page()))
    own = {name for name in errors.__all__ if name[0].isupper()}
    assert {kind.__name__ for kind in REFUSALS} | own <= told | {"BranchRefused"}


# --- what a review found --------------------------------------------------------------------------


@doors(options=TxQueueOptions(stage_operations=1))
async def test_an_operation_that_is_late_is_not_done_twice(stand: Stand) -> None:
    """504: it goes on. Whoever sends it again, as it may, has sent it once."""
    _, opened = await stand.open("tx")
    begun = await stand.good("POST", "tx", {"session": opened["session"]})
    stage, body = f"tx/{begun['txid']}/stage", {"operations": [publishes("1")], "at": 0}
    release = stand.cluster.hold("core1", "stage")
    with pytest.raises(StillUnderWay):  # the door's 504
        await stand.ask("POST", stage, body)
    release()
    assert (await stand.good("POST", stage, body))["operations"] == 1
    # A client that leaves is one more that nobody answers.
    release = stand.cluster.hold("core1", "stage")
    body = {"operations": [publishes("2")], "at": 1}
    leaving = asyncio.ensure_future(stand.ask("POST", stage, body))
    await asyncio.sleep(1)
    leaving.cancel()
    await asyncio.wait((leaving,))
    release()
    assert (await stand.good("POST", stage, body))["operations"] == 2
    await stand.good("POST", f"tx/{begun['txid']}/commit", {})
    assert await stand.bodies("b") == ["1", "2"]


@doors(options=TxQueueOptions(stage_operations=1))
async def test_operations_of_an_aborted_one_do_not_get_into_the_next(stand: Stand) -> None:
    _, opened = await stand.open("tx")
    txid = (await stand.good("POST", "tx", {"session": opened["session"]}))["txid"]
    release = stand.cluster.hold("core1", "rollback")
    body = {"operations": [publishes("0", to="nowhere")], "at": 0}
    aborted = (409, "txqueue_transaction_aborted")
    assert reason(await stand.ask("POST", f"tx/{txid}/stage", body)) == aborted
    body = {"operations": [publishes("1")]}
    assert reason(await stand.ask("POST", f"tx/{txid}/commit", body)) == aborted
    assert reason(await stand.ask("POST", f"tx/{txid}/stage", body))[0] == 409
    release()
    following = (await stand.good("POST", "tx", {"session": opened["session"]}))["txid"]
    assert following == f"{opened['session']}.2"
    body = {"operations": [publishes("2")]}
    done = await stand.good("POST", f"tx/{following}/commit", body)
    assert done["next"] == f"{opened['session']}.3"
    assert await stand.bodies("b") == ["2"]


@doors(options=TxQueueOptions(stage_operations=1))
async def test_the_rollback_of_an_aborted_one_leaves_the_next_alone(stand: Stand) -> None:
    _, opened = await stand.open("tx")
    txid = (await stand.good("POST", "tx", {"session": opened["session"]}))["txid"]
    release = stand.cluster.hold("core1", "rollback")
    body = {"operations": [publishes("0", to="nowhere")], "at": 0}
    assert reason(await stand.ask("POST", f"tx/{txid}/stage", body))[0] == 409
    asking = asyncio.ensure_future(stand.good("POST", f"tx/{txid}/rollback", {}))
    await asyncio.sleep(1)
    release()
    done = await asking
    assert (done["txid"], done["state"]) == (txid, "rolled back")
    assert done["next"] == f"{opened['session']}.2"


@doors()
async def test_a_get_is_answered_with_a_bounded_answer(stand: Stand) -> None:
    """A thousand messages of a mebibyte would be an answer of 1.4 GB."""
    size = 200 * 1024
    big = [{"body": b64("x" * size)}]
    for _ in range(25):
        await stand.good("POST", "queues/b/publish", {"messages": big})
    session, _ = await stand.open()
    got = await stand.get(session, "b", 100)
    assert got == list(range(1, reports.ANSWER_BYTES_MAX // size + 1))
    assert len(await stand.get(session, "b", 100)) == 25 - len(got)
