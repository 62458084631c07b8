"""`/v1/subscriptions/...`, handler by handler, on a faked log with real machines."""

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
from raftkv_subscriptions import Subscriptions, SubscriptionsApi, SubscriptionsOptions, bodies
from raftkv_subscriptions import door as door_module
from raftkv_subscriptions.errors import StillUnderWay
from raftkv_subscriptions.settings import SETTINGS

BAD = (400, "bad_request")
ROOT = Path(__file__).resolve().parent.parent.parent.parent
# A body, a key and a header: no error, no status and no list may show them.
BODY, KEY, HEADER = "s3cret", "k3y", "h3ader"
MESSAGES = re.compile(r"/(messages|receive)$")


def message(body: str = BODY, key: str = KEY) -> dict[str, Any]:
    data = base64.b64encode(body.encode()).decode()
    return {"body": data, "key": key, "headers": [["kind", HEADER]]}


def told(*texts: str) -> dict[str, Any]:
    return {"messages": [message(each) for each in texts]}


def text_of(each: dict[str, Any]) -> str:
    return base64.b64decode(each["body"]).decode()


class Stand:
    """A cluster, and the doors of all its nodes."""

    def __init__(self, cluster: FakeCluster[FakeHost[SubscriptionsApi]]) -> None:
        self.cluster = cluster
        #: Every text that a door answered with, but for messages that somebody asked for.
        self.said: list[str] = []

    async def ask(
        self, method: str, path: str, body: Any = None, *, at: str = "core1", **query: str
    ) -> tuple[int, Any]:
        """The status and the body, as whoever asked gets them."""
        route, params = self._find(method, path, at)
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body)
        raw = data.encode() if isinstance(data, str) else data
        response: Response = await route.handler(Request(params, query, raw, ""))
        text = msgspec.json.encode(response.body).decode()
        if response.status >= 400 or not MESSAGES.search(path):
            self.said.append(text)
        return response.status, json.loads(text)

    def _find(self, method: str, path: str, at: str) -> tuple[Any, dict[str, str]]:
        parts = path.split("/")
        found = []
        for route in self.cluster.nodes[at].service.routes():
            pieces = route.path.split("/")
            if route.method != method or len(pieces) != len(parts):
                continue
            pairs = list(zip(pieces, parts, strict=True))
            if all(piece[0] == "{" or piece == part for piece, part in pairs):
                params = {piece[1:-1]: part for piece, part in pairs if piece[0] == "{"}
                found.append((len(params), route, params))
        _, best, params = min(found, key=lambda each: each[0])
        return best, params

    async def good(
        self, method: str, path: str, body: Any = None, *, at: str = "core1", **query: str
    ) -> Any:
        status, answer = await self.ask(method, path, body, at=at, **query)
        assert status == 200, answer
        return answer

    async def open(self, sub: str, at: str = "core1", **more: Any) -> str:
        """The path of a new consumer of the topic t, from its first message on."""
        wanted = {"topic": "t", "sub": sub, "initial": "earliest", **more}
        opened = await self.good("POST", "consumers", wanted, at=at)
        assert opened["node"] == at
        return f"consumers/{opened['consumer']}"

    async def receive(self, consumer: str, count: int = 10, at: str = "core1") -> list[int]:
        found = await self.good("POST", f"{consumer}/receive", {"count": count}, at=at)
        return [each["position"] for each in found["messages"]]

    async def backlog(self, sub: str) -> int:
        return int((await self.good("GET", f"topics/t/subs/{sub}"))["backlog"])


Story = Callable[[Stand], Awaitable[None]]


def doors(*, options: SubscriptionsOptions | None = None) -> Callable[[Story], Callable[..., None]]:
    """A story at the doors of a region, with the topic t of the messages x, y, z."""

    def wrap(story: Story) -> Callable[..., None]:
        async def whole() -> None:
            cluster: FakeCluster[FakeHost[SubscriptionsApi]] = FakeCluster(
                Subscriptions, 3, options=options or SubscriptionsOptions()
            )
            await cluster.start()
            stand = Stand(cluster)
            await stand.good("PUT", "topics/t", {})
            await stand.good("POST", "topics/t/publish", told("x", "y", "z"))
            await story(stand)
            await asyncio.sleep(5)
            cluster.check()
            for text in stand.said:
                for secret in (BODY, base64.b64encode(BODY.encode()).decode(), KEY, HEADER):
                    assert secret not in text, text

        def test() -> None:
            run(whole())

        test.__name__, test.__doc__ = story.__name__, story.__doc__
        return test

    return wrap


def reason(answer: tuple[int, Any]) -> tuple[int, str]:
    """The status and the stable word of an error, which has all that errors of the door have."""
    status, body = answer
    assert body["error"] == body["message"]
    assert isinstance(body["code"], int)
    return status, body["reason"]


# --- topics ---------------------------------------------------------------------------------------


@doors()
async def test_topics_are_declared_changed_listed_and_deleted(stand: Stand) -> None:
    first = await stand.good("PUT", "topics/new", {"retention_s": 1.5, "backlog_bytes_max": 70})
    assert first == {"topic": "new", "created": True, "changed": False}
    other = {"retention_s": 60, "backlog_bytes_max": 70}
    differs = await stand.ask("PUT", "topics/new", other, at="core2")
    assert reason(differs) == (409, "subscriptions_topic_differs")
    assert (differs[1]["topic"], differs[1]["what"]) == ("new", "retention_ms")
    plain = await stand.good("PUT", "topics/new", {})
    assert (plain["created"], plain["changed"]) == (False, False)
    again = await stand.good("PUT", "topics/new", {**other, "change": True}, at="core2")
    assert (again["created"], again["changed"]) == (False, True)
    found = await stand.good("GET", "topics", at="core3")
    assert [each["name"] for each in found["topics"]] == ["new", "t"]
    assert found["now_ms"] > 0
    one = await stand.good("GET", "topics/t")
    assert (one["messages"], one["first"], one["next"], one["vector"]) == (3, 1, 4, {"local": 3})
    assert (one["holes"], one["holes_count"]) == ([], 0)
    assert (await stand.good("GET", "topics/new"))["retention_ms"] == 60_000
    full = await stand.ask("POST", "topics/new/publish", told(BODY))
    assert reason(full) == (409, "subscriptions_backlog_full")
    assert (full[1]["topic"], full[1]["limit"]) == ("new", 70)
    fixed = await stand.ask("PUT", "topics/t", {"compacted": True})
    assert reason(fixed) == (409, "subscriptions_compacted_fixed")
    gone = await stand.good("DELETE", "topics/new")
    assert gone == {"topic": "new", "deleted": True, "messages": 0}
    for method, path in (("GET", "topics/new"), ("DELETE", "topics/new"),
                         ("GET", "topics/new/messages"), ("GET", "topics/new/subs")):  # fmt: skip
        assert reason(await stand.ask(method, path)) == (404, "subscriptions_unknown_topic")
    assert reason(await stand.ask("PUT", "topics/%20", {})) == (400, "subscriptions_bad_name")


@doors()
async def test_messages_are_published_and_read_in_pages(stand: Stand) -> None:
    done = await stand.good("POST", "topics/t/publish", told("1", "2"), at="core2")
    assert done == {"topic": "t", "first": 4, "last": 5, "origin": "local", "seq": 4}
    first, seen = 1, []
    while first:
        page = await stand.good("GET", "topics/t/messages", **{"from": str(first), "limit": "2"})
        seen += page["messages"]
        first = page["next"]
    assert [text_of(each) for each in seen] == ["x", "y", "z", "1", "2"]
    assert [each["position"] for each in seen] == [1, 2, 3, 4, 5]
    assert (seen[3]["origin"], seen[3]["seq"], seen[3]["key"]) == ("local", 4, KEY)
    assert seen[3]["headers"] == [["kind", HEADER]]
    assert seen[3]["published_ms"] == seen[3]["at_ms"] > 0
    # An answer is full before it has what was asked for, and says where to go on.
    large = "x" * 200_000
    for _ in range(bodies.LIST_MAX // 40):
        await stand.good("POST", "topics/t/publish", told(large))
    page = await stand.good("GET", "topics/t/messages", limit="1000")
    size = sum(len(text_of(each)) for each in page["messages"])
    assert size <= 4 * 1024 * 1024
    assert page["next"] == page["messages"][-1]["position"] + 1
    assert reason(await stand.ask("POST", "topics/t/publish", {"messages": []})) == (
        400, "subscriptions_empty_batch",
    )  # fmt: skip
    huge = await stand.ask("POST", "topics/t/publish", told("x" * 300_000))
    assert reason(huge) == (400, "subscriptions_message_too_large")


@doors()
async def test_a_reader_may_wait_for_the_next_message(stand: Stand) -> None:
    query = {"from": "4", "wait_s": "60"}
    waiting = asyncio.create_task(stand.good("GET", "topics/t/messages", at="core2", **query))
    await asyncio.sleep(1)
    assert not waiting.done()
    await stand.good("POST", "topics/t/publish", told("late"))
    found = await waiting
    assert [text_of(each) for each in found["messages"]] == ["late"]
    nothing = await stand.good("GET", "topics/t/messages", **{"from": "5", "wait_s": "0.5"})
    assert (nothing["messages"], nothing["next"]) == ([], 0)


@doors()
async def test_a_compacted_topic_shows_the_last_of_each_key(stand: Stand) -> None:
    await stand.good("PUT", "topics/prices", {"compacted": True})
    for key, body in (("a", "1"), ("b", "2"), ("a", "3")):
        await stand.good("POST", "topics/prices/publish", {"messages": [message(body, key)]})
    found = await stand.good("GET", "topics/prices/messages", compacted="true")
    assert [(each["key"], text_of(each)) for each in found["messages"]] == [("b", "2"), ("a", "3")]
    assert (await stand.good("GET", "topics/prices"))["keys"] == 2


# --- subscriptions --------------------------------------------------------------------------------


@doors()
async def test_subscriptions_are_made_shown_and_deleted(stand: Stand) -> None:
    made = await stand.good("PUT", "topics/t/subs/s", {"initial": "earliest", "replicate": True})
    assert made == {"topic": "t", "sub": "s", "created": True, "mark": 0}
    late = await stand.good("PUT", "topics/t/subs/late", {"kind": "shared"}, at="core2")
    assert late["mark"] == 3
    found = await stand.good("GET", "topics/t/subs", at="core3")
    rows = [(each["name"], each["kind"], each["backlog"]) for each in found["subs"]]
    assert rows == [("late", "shared", 0), ("s", "exclusive", 3)]
    one = await stand.good("GET", "topics/t/subs/s")
    assert (one["replicate"], one["base"], one["ranges"], one["consumers"]) == (True, {}, [], [])
    assert (await stand.good("GET", "topics/t/subs/late"))["base"] == {"local": 3}
    off = await stand.good("PUT", "topics/t/subs/s/replicate", {"replicate": False})
    assert off["replicate"] is False
    assert (await stand.good("GET", "topics/t/subs/s"))["replicate"] is False
    await stand.good("PUT", "settings/enabled", {"value": False})
    refused = await stand.ask("PUT", "topics/t/subs/s/replicate", {"replicate": True})
    assert reason(refused) == (409, "subscriptions_replication_disabled")
    await stand.open("s")
    busy = await stand.ask("DELETE", "topics/t/subs/s")
    assert reason(busy) == (409, "subscriptions_subscription_in_use")
    assert (await stand.good("DELETE", "topics/t/subs/s", force="true"))["deleted"] is True
    gone = await stand.ask("GET", "topics/t/subs/s")
    assert reason(gone) == (404, "subscriptions_unknown_subscription")
    assert (gone[1]["topic"], gone[1]["sub"]) == ("t", "s")


@doors()
async def test_an_operator_acknowledges_and_seeks(stand: Stand) -> None:
    sub = "topics/t/subs/s"
    await stand.good("PUT", sub, {"initial": "earliest"})
    done = await stand.good("POST", f"{sub}/ack", {"positions": [2]})
    assert done == {"topic": "t", "sub": "s", "done": 1, "mark": 0}
    assert (await stand.good("GET", sub))["ranges"] == [["local", 2, 2]]
    done = await stand.good("POST", f"{sub}/ack_to", {"position": 3}, at="core2")
    assert (done["done"], done["mark"]) == (2, 3)
    sought = await stand.good("POST", f"{sub}/seek", {"position": 1})
    assert (sought["mark"], await stand.backlog("s")) == (1, 2)
    sought = await stand.good("POST", f"{sub}/seek", {"position": "latest"})
    assert (sought["mark"], await stand.backlog("s")) == (3, 0)
    await stand.good("POST", f"{sub}/seek", {"position": "earliest"})
    assert await stand.backlog("s") == 3
    now_ms = (await stand.good("GET", "topics"))["now_ms"]
    await stand.good("POST", f"{sub}/seek", {"at_ms": now_ms + 1_000})
    assert await stand.backlog("s") == 0
    await stand.good("POST", f"{sub}/seek", {"at_ms": 0})
    assert await stand.backlog("s") == 3
    for body in ({}, {"position": 1, "at_ms": 1}, {"position": "middle"}, {"position": -1}):
        assert reason(await stand.ask("POST", f"{sub}/seek", body)) == BAD
    beyond = await stand.ask("POST", f"{sub}/ack", {"positions": [9]})
    assert reason(beyond) == (400, "subscriptions_unknown_position")
    assert (beyond[1]["position"], beyond[1]["next"]) == (9, 4)


@doors()
async def test_an_acknowledgement_carries_the_epoch_of_its_delivery(stand: Stand) -> None:
    await stand.good("PUT", "topics/t/subs/s", {"initial": "earliest"})
    consumer = await stand.open("s")
    received = await stand.good("POST", f"{consumer}/receive", {"count": 3})
    old = received["messages"][0]["epoch"]
    await stand.good("POST", "topics/t/subs/s/seek", {"position": 1})
    for body in ({"positions": [2, 3]}, {"positions": [2, 3], "epoch": old}):
        assert (await stand.good("POST", f"{consumer}/ack", body))["mark"] == 1
    body = {"position": 3, "epoch": old}
    assert (await stand.good("POST", f"{consumer}/ack_to", body))["mark"] == 1
    assert (await stand.good("POST", "topics/t/subs/s/ack_to", body))["done"] == 0
    received = await stand.good("POST", f"{consumer}/receive", {"count": 3})
    new = received["messages"][0]["epoch"]
    body = {"positions": [2, 3], "epoch": new}
    assert (await stand.good("POST", f"{consumer}/ack", body))["mark"] == 3


@doors()
async def test_b12_a_release_carries_the_epoch_of_its_delivery(stand: Stand) -> None:
    await stand.good("PUT", "topics/t/subs/s", {"kind": "shared", "initial": "earliest"})
    consumer = await stand.open("s", kind="shared")
    received = await stand.good("POST", f"{consumer}/receive", {"count": 3})
    old = received["messages"][0]["epoch"]
    await stand.good("POST", "topics/t/subs/s/seek", {"position": 0})
    received = await stand.good("POST", f"{consumer}/receive", {"count": 3})
    new = received["messages"][0]["epoch"]
    body = {"positions": [1, 2], "epoch": old}
    assert (await stand.good("POST", f"{consumer}/nack", body))["done"] == 0
    assert (await stand.good("POST", f"{consumer}/receive", {"count": 3}))["messages"] == []
    body = {"positions": [1, 2], "epoch": new}
    assert (await stand.good("POST", f"{consumer}/nack", body))["done"] == 2
    received = await stand.good("POST", f"{consumer}/receive", {"count": 3})
    assert [each["deliveries"] for each in received["messages"]] == [2, 2]


@doors()
async def test_many_ranges_are_counted_and_the_first_ones_shown(stand: Stand) -> None:
    await stand.good("PUT", "topics/t/subs/s", {"initial": "earliest"})
    for _ in range(5):
        await stand.good("POST", "topics/t/publish", told(*"x" * 60))
    odd = [position for position in range(1, 303) if position % 2 == 0]
    await stand.good("POST", "topics/t/subs/s/ack", {"positions": odd})
    found = await stand.good("GET", "topics/t/subs/s")
    assert (len(found["ranges"]), found["ranges_count"]) == (100, len(odd))
    assert found["ranges"][0] == ["local", 2, 2]
    (listed,) = (await stand.good("GET", "topics/t/subs"))["subs"]
    assert listed["ranges_count"] == len(odd)


# --- consumers ------------------------------------------------------------------------------------


@doors()
async def test_a_consumer_receives_acknowledges_and_closes(stand: Stand) -> None:
    consumer = await stand.open("s", kind="exclusive", name="billing")
    shown = await stand.good("GET", consumer)
    expected = {"topic": "t", "sub": "s", "kind": "exclusive", "name": "billing", "active": True}
    assert {name: shown[name] for name in expected} == expected
    assert shown["idle_s"] == SubscriptionsOptions().door_idle_s
    found = await stand.good("POST", f"{consumer}/receive", {"count": 2})
    assert [text_of(each) for each in found["messages"]] == ["x", "y"]
    assert [each["deliveries"] for each in found["messages"]] == [1, 1]
    assert found["active"] is True
    assert (await stand.good("POST", f"{consumer}/ack", {"positions": [1]}))["mark"] == 1
    assert (await stand.good("POST", f"{consumer}/nack", {"positions": [2]}))["done"] == 1
    assert await stand.receive(consumer) == [3, 2]
    assert (await stand.good("POST", f"{consumer}/ack_to", {"position": 3}))["mark"] == 3
    assert await stand.receive(consumer) == []
    sought = await stand.good("POST", f"{consumer}/seek", {"position": "earliest"})
    assert sought["mark"] == 0
    assert await stand.receive(consumer) == [1, 2, 3]
    await stand.good("POST", f"{consumer}/keepalive")
    assert (await stand.good("DELETE", consumer))["closed"] is True
    for method, path in (("GET", consumer), ("DELETE", consumer)):
        assert reason(await stand.ask(method, path)) == (409, "subscriptions_consumer_ended")
    # What was not acknowledged comes again.
    again = await stand.open("s", at="core2")
    assert await stand.receive(again, at="core2") == [1, 2, 3]


@doors()
async def test_consumers_of_a_shared_subscription_share(stand: Stand) -> None:
    one = await stand.open("s", kind="shared")
    two = await stand.open("s", at="core2", kind="shared")
    assert await stand.receive(one, 2) == [1, 2]
    assert await stand.receive(two, 2, at="core2") == [3]
    all_at_once = await stand.ask("POST", f"{one}/ack_to", {"position": 2})
    assert reason(all_at_once) == (409, "subscriptions_not_cumulative")
    await stand.good("POST", f"{one}/nack", {"positions": [1, 2]})
    found = await stand.good("POST", f"{two}/receive", {"count": 5}, at="core2")
    assert [(each["position"], each["deliveries"]) for each in found["messages"]] == [
        (1, 2), (2, 2),
    ]  # fmt: skip
    held = (await stand.good("GET", "topics/t/subs/s"))["consumers"]
    assert [each["held"] for each in held] == [0, 3]


@doors()
async def test_only_one_of_a_failover_subscription_is_active(stand: Stand) -> None:
    one = await stand.open("s", kind="failover", priority=1)
    other = await stand.open("s", at="core2", kind="failover", priority=0)
    assert await stand.receive(one) == []
    assert (await stand.good("GET", one))["active"] is False
    assert await stand.receive(other, at="core2") == [1, 2, 3]
    await stand.good("DELETE", other, at="core2")
    assert (await stand.good("GET", one))["active"] is True
    assert await stand.receive(one) == [1, 2, 3]


@doors()
async def test_a_second_exclusive_consumer_is_refused(stand: Stand) -> None:
    await stand.open("s")
    wanted = {"topic": "t", "sub": "s"}
    second = await stand.ask("POST", "consumers", wanted, at="core2")
    assert reason(second) == (409, "subscriptions_subscription_busy")
    unknown = await stand.ask("POST", "consumers", {**wanted, "sub": "x", "subscribe": False})
    assert reason(unknown) == (404, "subscriptions_unknown_subscription")
    nowhere = await stand.ask("POST", "consumers", {**wanted, "topic": "x"})
    assert reason(nowhere) == (404, "subscriptions_unknown_topic")
    for wrong in ({"kind": "all"}, {"priority": -1}, {"name": " "}, {"topic": 1}):
        assert (await stand.ask("POST", "consumers", {**wanted, **wrong}))[0] == 400


@doors()
async def test_another_door_names_the_node(stand: Stand) -> None:
    consumer = await stand.open("s", at="core2")
    for method, path, body in (
        ("GET", consumer, None),
        ("POST", f"{consumer}/receive", {}),
        ("POST", f"{consumer}/ack", {"positions": [1]}),
        ("DELETE", consumer, None),
    ):
        elsewhere = await stand.ask(method, path, body)
        assert reason(elsewhere) == (409, "subscriptions_consumer_elsewhere")
        assert elsewhere[1]["node"] == "core2"
        assert "http_address" in elsewhere[1]
    assert await stand.receive(consumer, at="core2") == [1, 2, 3]
    unknown = await stand.ask("GET", f"consumers/{handle_of(99, 1)}")
    assert reason(unknown) == (409, "subscriptions_consumer_ended")
    for wrong in ("x", "99", "99-", "99-0x00000000000001", f"{handle_of(99, 1)}0"):
        assert reason(await stand.ask("GET", f"consumers/{wrong}")) == BAD


@doors()
async def test_a_consumer_is_its_clients_alone(stand: Stand) -> None:
    """Its number is small, and shown to all: only the secret opens the way to its messages."""
    consumer = await stand.open("s")
    (shown,) = (await stand.good("GET", "topics/t/subs"))["subs"][0]["consumers"]
    for guess, told in (
        (handle_of(shown["id"], 0), (409, "subscriptions_consumer_ended")),
        (shown["id"], BAD),
    ):
        for method, verb, body in (
            ("GET", "", None),
            ("DELETE", "", None),
            ("POST", "/receive", {}),
            ("POST", "/ack", {"positions": [1]}),
            ("POST", "/ack_to", {"position": 1}),
            ("POST", "/nack", {"positions": [1]}),
            ("POST", "/seek", {"position": 1}),
            ("POST", "/keepalive", {}),
        ):
            assert reason(await stand.ask(method, f"consumers/{guess}{verb}", body)) == told
    assert await stand.receive(consumer) == [1, 2, 3]


@doors()
async def test_a_program_of_the_node_keeps_its_consumer(stand: Stand) -> None:
    """The door does not hand out what it did not open."""
    subs = stand.cluster.nodes["core1"].opened
    async with subs.consumer("t", "s", initial="earliest") as own:
        taken = await stand.ask("POST", f"consumers/{handle_of(own.id, 7)}/receive", {})
        assert reason(taken) == (409, "subscriptions_consumer_elsewhere")
        assert len(await own.receive(5)) == 3


@doors(options=SubscriptionsOptions(door_idle_s=10.0, door_consumers_max=2))
async def test_a_consumer_that_nobody_uses_is_closed(stand: Stand) -> None:
    idle, used = await stand.open("idle"), await stand.open("used")
    third = await stand.ask("POST", "consumers", {"topic": "t", "sub": "more"})
    assert reason(third) == (429, "subscriptions_too_many_door_consumers")
    assert third[1]["limit"] == 2
    # One that waits is used, however long it takes.
    wait = {"count": 1, "wait_s": 600}
    assert await stand.receive(used) == [1, 2, 3]
    waiting = asyncio.create_task(stand.good("POST", f"{used}/receive", wait))
    for _ in range(4):
        await asyncio.sleep(9)
        await stand.good("POST", f"{idle}/keepalive")
    assert (await stand.good("GET", "status"))["door_consumers"] == 2
    await asyncio.sleep(13)
    ended = await stand.ask("GET", idle)
    assert reason(ended) == (409, "subscriptions_consumer_ended")
    assert not waiting.done()
    await stand.good("POST", "topics/t/publish", told("late"))
    assert len((await waiting)["messages"]) == 1
    found = {each.name: each.value for each in stand.cluster.nodes["core1"].service.metrics()}
    assert found["door_consumers"] == 1
    assert found["door_consumers_limit"] == 2
    assert found["door_consumers_closed_total"] == 1
    # Its place is free, and the subscription is, too.
    await stand.open("idle")


@doors(options=SubscriptionsOptions(door_idle_s=4.0))
async def test_an_idle_consumer_waits_for_a_leader_to_be_closed(stand: Stand) -> None:
    consumer = await stand.open("s")
    stand.cluster.filter = lambda node, envelope: False
    await asyncio.sleep(30)
    stand.cluster.filter = lambda node, envelope: True
    await until(lambda: not stand.cluster.nodes["core1"].view().table("attached"))
    assert reason(await stand.ask("GET", consumer)) == (409, "subscriptions_consumer_ended")


@doors()
async def test_a_consumer_ends_with_its_nodes_life(stand: Stand) -> None:
    consumer = await stand.open("s", at="core2")
    await stand.cluster.restart("core2")
    gone = await stand.ask("POST", f"{consumer}/receive", {}, at="core2")
    assert reason(gone) == (409, "subscriptions_consumer_ended")
    again = await stand.open("s", at="core2")
    assert await stand.receive(again, at="core2") == [1, 2, 3]


# --- regions, settings ----------------------------------------------------------------------------


@doors()
async def test_regions_are_added_excluded_included_and_removed(stand: Stand) -> None:
    assert (await stand.good("GET", "regions"))["regions"][0]["own"] is True
    unknown = await stand.ask("PUT", "regions/us", {"state": "excluded"})
    assert reason(unknown) == (404, "subscriptions_unknown_region")
    added = await stand.good("PUT", "regions/us", {"fetches": False})
    assert (added["created"], added["changed"]) == (True, False)
    (row,) = (each for each in (await stand.good("GET", "regions"))["regions"] if not each["own"])
    assert (row["name"], row["state"], row["fetches"]) == ("us", "active", False)
    assert row["link"]["state"] == "none"
    active = await stand.ask("DELETE", "regions/us")
    assert reason(active) == (409, "subscriptions_region_active")
    replicated = await stand.ask("DELETE", "topics/t")
    assert reason(replicated) == (409, "subscriptions_topic_replicated")
    assert (await stand.good("PUT", "regions/us", {"state": "excluded"}))["changed"] is True
    both = {"state": "excluded", "fetches": True}
    assert reason(await stand.ask("PUT", "regions/us", both)) == BAD
    assert (await stand.good("PUT", "regions/us", {}))["changed"] is True
    await stand.good("PUT", "regions/us", {"state": "excluded"})
    assert (await stand.good("DELETE", "regions/us"))["removed"] is True
    own = await stand.ask("PUT", "regions/local", {})
    assert reason(own) == (409, "subscriptions_own_region")
    assert own[1]["region"] == "local"


@doors()
async def test_a_region_is_named_before_its_first_message(stand: Stand) -> None:
    named = await stand.ask("PUT", "region", {"region": "eu"})
    assert reason(named) == (409, "subscriptions_region_fixed")
    assert (await stand.good("PUT", "region", {"region": "local"}))["region"] == "local"


@doors()
async def test_settings_are_shown_and_changed(stand: Stand) -> None:
    found = (await stand.good("GET", "settings", at="core2"))["settings"]
    assert found.pop("quota_bytes") == 2**31
    assert found == {each.key: each.default for each in SETTINGS}
    changed = await stand.good("PUT", "settings/ranges_max", {"value": 50})
    assert changed["settings"]["ranges_max"] == 50
    assert (await stand.good("PUT", "mode", {"mode": "snapshot"}))["mode"] == "snapshot"
    assert (await stand.good("GET", "settings"))["settings"]["mode"] == "snapshot"
    assert (await stand.good("GET", "status"))["mode"] == "snapshot"
    await stand.good("PUT", "settings/mode", {"value": None})
    assert (await stand.good("GET", "settings"))["settings"]["mode"] == "vector"
    low = await stand.ask("PUT", "settings/period_ms", {"value": 1})
    assert reason(low) == (400, "invalid_setting")
    for path, body in (
        ("settings/nope", {"value": 1}),
        ("settings/period_ms", {"value": 2**80}),
        ("settings/period_ms", {}),
        ("mode", {"mode": "both"}),
    ):
        assert reason(await stand.ask("PUT", path, body)) == BAD


@doors()
async def test_the_status_tells_of_the_region(stand: Stand) -> None:
    await stand.good("PUT", "topics/t/subs/s", {"replicate": True})
    found = await stand.good("GET", "status", at="core3", consistency="local")
    assert (found["node"], found["region"], found["mode"]) == ("core3", "local", "vector")
    assert (found["topics"], found["messages"], found["published"]) == (1, 3, 3)
    assert (found["subscriptions"], found["replicated"], found["door_consumers"]) == (1, 1, 0)
    assert found["warnings"] == []


# --- what is asked --------------------------------------------------------------------------------


@doors()
async def test_what_is_not_known_is_refused(stand: Stand) -> None:
    for method, path, body, query in (
        ("GET", "topics", None, {"consistencey": "local"}),
        ("GET", "topics/t", None, {"consistency": "weak"}),
        ("PUT", "topics/t", {"retention": 1}, {}),
        ("PUT", "topics/t", {"retention_s": -1}, {}),
        ("PUT", "topics/t", b"[", {}),
        ("DELETE", "topics/t", None, {"force": "true"}),
        ("POST", "topics/t/publish", {"messages": [{"body": "?"}]}, {}),
        ("GET", "topics/t/messages", None, {"from": "0"}),
        ("GET", "topics/t/messages", None, {"limit": "1001"}),
        ("GET", "topics/t/messages", None, {"from": "9", "wait_s": "0"}),
        ("PUT", "topics/t/subs/s", {"kind": "queue"}, {}),
        ("DELETE", "topics/t/subs/s", None, {"force": "perhaps"}),
        ("PUT", "topics/t/subs/s/replicate", {}, {}),
        ("POST", "topics/t/subs/s/ack", {"positions": []}, {}),
        ("POST", "topics/t/subs/s/ack", {"positions": [0]}, {}),
        ("POST", "topics/t/subs/s/ack_to", {"position": "latest"}, {}),
        ("POST", "consumers", {"topic": "t"}, {}),
        ("POST", "consumers/1/receive", {"count": 0}, {}),
        ("POST", "consumers/1/receive", {"wait_s": 601}, {}),
        ("PUT", "regions/us", {"state": "gone"}, {}),
        ("PUT", "region", {}, {}),
    ):
        answer = await stand.ask(method, path, body, **query)
        assert reason(answer) == BAD, (method, path)


@doors()
async def test_what_is_under_way_is_504(stand: Stand) -> None:
    """The answer of the log is lost for longer than the request waits."""
    stand.cluster.filter = lambda node, envelope: False
    late = {**told(BODY), "timeout_s": 1.0}
    status, answer = await stand.ask("POST", "topics/t/publish", late)
    stand.cluster.filter = lambda node, envelope: True
    assert (status, answer["reason"]) == (504, StillUnderWay.code)


def test_the_top_of_the_file_lists_the_routes() -> None:
    async def listed() -> set[tuple[str, str]]:
        cluster: FakeCluster[FakeHost[SubscriptionsApi]] = FakeCluster(Subscriptions, 1)
        await cluster.start()
        found = cluster.nodes["core1"].service.routes()
        return {(route.method, route.path) for route in found}

    said = re.findall(r"^    (GET|PUT|POST|DELETE) +(\S+)", door_module.__doc__ or "", re.M)
    assert run(listed()) == {*said, ("POST", "link"), ("POST", "report")}


@pytest.mark.parametrize("name", [each.key for each in SETTINGS])
def test_the_page_names_every_setting(name: str) -> None:
    page = (ROOT / "docs" / "subscriptions.md").read_text("utf-8")
    assert f"`{name}`" in page
