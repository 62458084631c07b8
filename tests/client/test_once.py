"""Routes of plugins that take numbers: done once, whatever is lost on the way. On real nodes."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from raftkv import Client
from raftkv.errors import Timeout
from raftkv.plugin import Plugin, Request, Response, Route
from raftkv.server import App, Door
from raftkv.server.sessions import Sessions
from raftkv.testing.local_cluster import LocalCluster
from raftkv_subscriptions import Subscriptions
from raftkv_txqueue import TxQueue
from tests.client.doors import Proxy, Served, served
from tests.client.fake_door import b64, in_loop, until

WRITERS, ROUNDS = 6, 15


class Kind(NamedTuple):
    """A plugin whose messages are published at the door, and who tells how many there are."""

    plugin: Callable[[], Plugin[Any]]
    declare: str
    read: str
    publish: str


KINDS = {
    "subscriptions": Kind(
        Subscriptions,
        "/v1/subscriptions/topics/t",
        "/v1/subscriptions/topics/t/messages?limit=1000",
        "/v1/subscriptions/topics/t/publish",
    ),
    "txqueue": Kind(
        TxQueue,
        "/v1/txqueue/queues/t",
        "/v1/txqueue/queues/t/messages?limit=1000",
        "/v1/txqueue/queues/t/publish",
    ),
}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def told(*bodies: str) -> dict[str, Any]:
    return {"messages": [{"body": b64(body.encode())} for body in bodies]}


async def bodies(client: Client, kind: Kind) -> list[str]:
    found = await client.call("GET", kind.read, repeat=True)
    assert found.good, found
    return [each["body"] for each in found.body["messages"]]


async def lose_one(proxy: Proxy, running: asyncio.Future[Any]) -> None:
    """Let an answer get lost behind this proxy, if anybody still asks."""
    before = proxy.dropped
    proxy.mode = "drop"
    await until(lambda: proxy.dropped > before or running.done())
    proxy.mode = "pass"


async def started(doors: Served, client: Client, kind: Kind) -> None:
    if kind.plugin is Subscriptions:
        named = await client.call("PUT", "/v1/subscriptions/region", {"region": "here"})
        assert named.good, named
    assert (await client.call("PUT", kind.declare, {}, repeat=True)).good


@each_kind
@in_loop
async def test_a_publication_whose_answer_is_lost_is_there_once(kind: Kind) -> None:
    async with (
        served(3, plugins=[kind.plugin()]) as doors,
        Client(doors.urls, timeout_s=20) as client,
    ):
        await started(doors, client, kind)

        async def publish(writer: int) -> None:
            for number in range(ROUNDS):
                done = await client.call(
                    "POST", kind.publish, told(f"{writer}.{number}"), once=True
                )
                assert done.good, done

        running = asyncio.gather(*(publish(writer) for writer in range(WRITERS)))
        for proxy in (*doors.proxies.values(), *doors.proxies.values()):
            await lose_one(proxy, running)
        leader = doors.cluster.leader()
        assert leader is not None
        await doors.kill(leader.name)
        await running
        assert client.retries > 0
        expected = [b64(f"{w}.{n}".encode()) for w in range(WRITERS) for n in range(ROUNDS)]
        found = await bodies(client, kind)
        assert sorted(found) == sorted(expected)
        for writer in range(WRITERS):
            mine = [b64(f"{writer}.{n}".encode()) for n in range(ROUNDS)]
            assert [each for each in found if each in mine] == mine


@each_kind
@in_loop
async def test_a_number_gets_the_first_answer_at_every_node_and_is_good_for_one_command(
    kind: Kind,
) -> None:
    async with served(3, plugins=[kind.plugin()]) as doors, Client(doors.urls) as client:
        await started(doors, client, kind)
        opened = await client.call("POST", "/v1/sessions", {})
        session = opened.body["session"]

        async def ask(node: int, body: Any, **headers: str) -> tuple[int, Any]:
            port = list(doors.doors.values())[node].port
            return await asyncio.to_thread(posted, port, kind.publish, body, headers)

        def number(seq: int) -> dict[str, str]:
            return {"Raftkv-Session": session, "Raftkv-Seq": str(seq)}

        first = await ask(0, told("a", "b"), **number(1))
        assert first[0] == 200
        for node in range(3):
            assert await ask(node, told("a", "b"), **number(1)) == first
        # The first command of its kind has the number for good, whatever comes under it later.
        assert await ask(1, told("c"), **number(1)) == first
        second = await ask(2, told("c"), **number(2))
        assert second[1]["first"] == first[1]["last"] + 1
        # A refusal is a verdict, too: of this number, for good.
        assert (await ask(0, {"messages": []}, **number(3)))[0] == 400
        expired = await ask(0, told("d"), **{"Raftkv-Session": "999-1", "Raftkv-Seq": "1"})
        assert (expired[0], expired[1]["reason"]) == (409, "session_expired")
        for wrong in ({"Raftkv-Session": session}, {**number(4), "Raftkv-What": "1"}):
            status, said = await ask(0, told("d"), **wrong)
            assert (status, said["reason"]) == (400, "bad_request")
        assert len(await bodies(client, kind)) == 3


@each_kind
@in_loop
async def test_a_route_that_takes_no_number_says_so(kind: Kind) -> None:
    async with served(1, plugins=[kind.plugin()]) as doors, Client(doors.urls) as client:
        await started(doors, client, kind)
        refused = await client.call("PUT", kind.declare, {}, once=True)
        assert (refused.status, refused.body["reason"]) == (400, "bad_request")
        assert "takes no number" in refused.body["error"]


@in_loop
async def test_a_door_without_sessions_takes_no_numbers() -> None:
    async def handler(request: Request) -> Response:
        return Response({"numbered": request.under is not None})

    route = Route("POST", "x", handler, "a write", numbered=True)
    async with LocalCluster(1, fsync="off") as cluster:
        door = Door(App(cluster.nodes[0], routes={"toy": [route]}), "127.0.0.1", 0)
        await door.start()
        try:
            plain = await asyncio.to_thread(posted, door.port, "/v1/toy/x", {}, {})
            assert plain == (200, {"numbered": False})
            number = {"Raftkv-Session": "1-a", "Raftkv-Seq": "1"}
            status, said = await asyncio.to_thread(posted, door.port, "/v1/toy/x", {}, number)
            assert (status, said["reason"]) == (400, "bad_request")
            assert "no client sessions" in said["error"]
        finally:
            await door.stop()


@in_loop
async def test_a_node_that_does_not_take_numbers_there_settles_nothing() -> None:
    """One door has the route numbered, and loses its answer; the other is of a former version."""
    done = 0

    async def handler(request: Request) -> Response:
        nonlocal done
        done += 1
        return Response({"done": done})

    async with served(1) as doors, contextlib.AsyncExitStack() as stack:
        node = doors.cluster.nodes[0]
        ends = []
        for numbered in (True, False):
            routes = {"toy": [Route("POST", "x", handler, "a write", numbered)]}
            sessions = Sessions(node)
            app = App(node, routes={**routes, **sessions.routes()}, sessions=sessions)
            door = Door(app, "127.0.0.1", 0)
            await door.start()
            stack.push_async_callback(door.stop)
            ends.append(await stack.enter_async_context(Proxy(door.port)))
        async with Client([end.url for end in ends], timeout_s=3.0) as client:
            assert (await client.call("POST", "/v1/toy/x", {}, once=True)).body == {"done": 1}
            ends[0].mode = "drop"
            with pytest.raises(Timeout):
                await client.call("POST", "/v1/toy/x", {}, once=True)
            assert done == 2


def posted(port: int, path: str, body: Any, headers: dict[str, str]) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("POST", path, json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()
