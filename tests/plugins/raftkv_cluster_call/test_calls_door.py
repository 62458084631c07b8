"""`/v1/calls/...`, handler by handler, on a faked log with real machines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from raftkv.plugin import Request, Response
from raftkv_cluster_call.functions import Call
from raftkv_cluster_call.operating import STATUS_CALLS_MAX
from tests.metrics_page import documented
from tests.plugins.raftkv_cluster_call.fakes import Cluster, FakeNode, Note, tell, until

Body = Callable[["Stand"], Awaitable[None]]
BAD = (400, "bad_request")


class Odd:
    """What has no JSON form."""


class Blob(msgspec.Struct, frozen=True, array_like=True):
    """Neither bytes nor an array-like Struct can be said in JSON without the type."""

    name: str
    content: bytes


class Stand:
    """A cluster of three cores and the door of one of them."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.node: FakeNode = cluster.nodes["core1"]
        self.blobs: list[Blob] = []

    def register(self) -> None:
        for node in self.cluster.nodes.values():
            node.calls.function("odd", version=1)(self.odd)
            node.calls.function("blob", version=2)(self.blob)
            node.calls.function("nothing", version=1, type=None)(self.nothing)

    def odd(self, args: Note, call: Call) -> Odd:
        return Odd()

    def blob(self, args: Blob, call: Call) -> Blob:
        """Keep the blob."""
        self.blobs.append(args)
        return args

    def nothing(self, args: None, call: Call) -> None:
        assert args is None

    async def ask(
        self, method: str, path: str, params: dict[str, str], query: dict[str, str], body: Any
    ) -> tuple[int, Any]:
        """The status and the body as whoever asked gets them."""
        routes = {(route.method, route.path): route.handler for route in self.node.service.routes()}
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = Request(params, query, b"" if body is None else data, "")
        response: Response = await routes[method, path](request)
        return response.status, json.loads(msgspec.json.encode(response.body))

    async def get(self, path: str, id: str = "", **query: str) -> tuple[int, Any]:
        return await self.ask("GET", path, {"id": id}, query, None)

    async def post(self, path: str, body: Any = None) -> tuple[int, Any]:
        return await self.ask("POST", path, {}, {}, body)

    async def call(self, function: str, args: Any, **words: Any) -> Any:
        status, body = await self.post("call", {"function": function, "args": args, **words})
        assert status == 200, body
        return body


def door(body: Body) -> Callable[[], None]:
    def test() -> None:
        async def whole(cluster: Cluster) -> None:
            stand = Stand(cluster)
            stand.register()
            await body(stand)

        tell(whole)

    test.__name__ = body.__name__
    test.__doc__ = body.__doc__
    return test


def reason(answer: tuple[int, Any]) -> tuple[int, str]:
    """The status and the stable word of an error, which has all that errors of the door have."""
    status, body = answer
    assert body["error"] == body["message"]
    assert isinstance(body["code"], int)
    return status, body["reason"]


# --- calling --------------------------------------------------------------------------------------


@door
async def test_a_call_is_made_and_its_result_comes_back(stand: Stand) -> None:
    done = await stand.call("note", {"text": "x"})
    assert done == {"outcome": "ok", "id": 1, "result": "x@core1", "nodes": [], "error": None}
    assert stand.cluster.ran("core3") == [1]


@door
async def test_arguments_are_read_as_the_functions_type(stand: Stand) -> None:
    done = await stand.call("blob", ["a", "AP8="], required=["core1", "core2"])
    assert done["outcome"] == "ok"
    assert stand.blobs[0] == Blob("a", b"\x00\xff")
    assert done["result"] == ["a", "AP8="]
    assert (await stand.call("nothing", None))["outcome"] == "ok"
    # Left out is null.
    assert (await stand.post("call", {"function": "nothing"}))[0] == 200
    for wrong in ({"name": "a"}, ["a", 1], ["a", "?"], None):
        answer = await stand.post("call", {"function": "blob", "args": wrong})
        assert reason(answer) == BAD, wrong
        assert "not what 'blob' version 2 takes (Blob)" in answer[1]["error"]
    assert len(stand.cluster.table("records")) == 3


@door
async def test_a_failure_on_the_initiator_is_an_answer(stand: Stand) -> None:
    stand.cluster.seats["core1"].broken.add("note")
    done = await stand.call("note", {"text": "x"})
    assert (done["outcome"], done["id"], done["result"]) == ("init_failure", 1, None)
    assert done["error"]["kind"] == "Broken"
    assert done["error"]["reason"]
    assert set(done["error"]) == {"kind", "reason"}, "no files and lines of the server"
    unknown = await stand.call("nonsense", {"a": 1})
    assert (unknown["outcome"], unknown["id"]) == ("init_failure", 0)
    assert unknown["error"]["kind"] == "UnknownFunction"


@door
async def test_what_is_behind_is_named(stand: Stand) -> None:
    stand.cluster.seats["core2"].broken.add("*")
    done = await stand.call("note", {"text": "x"}, timeout_s=1)
    assert (done["outcome"], done["nodes"]) == ("peers_lagging", ["core2"])
    stand.cluster.kill("core3")
    stand.cluster.declare_dead("core3")
    done = await stand.call("note", {"text": "y"}, required=["core1", "core3"])
    assert (done["outcome"], done["nodes"]) == ("stopped_nodes", ["core3"])


@door
async def test_a_result_without_a_json_form_is_named(stand: Stand) -> None:
    done = await stand.call("odd", {"text": "x"})
    assert (done["outcome"], done["result"]) == ("ok", {"not_json": "Odd"})

    def endless(args: Note, call: Call) -> list[Any]:
        found: list[Any] = []
        found.append(found)
        return found

    # It is committed by then, whatever it returned.
    for node in stand.cluster.nodes.values():
        node.calls.function("endless", version=1, type=Note)(endless)
    done = await stand.call("endless", {"text": "x"})
    assert (done["outcome"], done["result"]) == ("ok", {"not_json": "list"})


@door
async def test_bad_calls_say_what_is_right(stand: Stand) -> None:
    good: dict[str, Any] = {"function": "note", "args": {"text": "x"}}
    for wrong, advice in (
        (b"", "missing required field"),
        (b"\xff", "JSON with function, args, version, required, timeout_s"),
        (b"[]", "Expected `object`"),
        (b'{"args": ' + 10_000 * b"[" + 10_000 * b"]" + b"}", "nested too deep"),
        ({**good, "arguments": 1}, "unknown field"),
        ({**good, "version": 0}, ">= 1"),
        ({**good, "timeout_s": 0}, "> 0"),
        ({**good, "timeout_s": 601}, "<= 600"),
        ({**good, "required": "core1"}, 'say "all", how many nodes, or a list'),
        ({**good, "required": 0}, "say 1 or more"),
        ({**good, "required": []}, "required is empty"),
        ({**good, "required": [1]}, "Expected `str`"),
    ):
        answer = await stand.post("call", wrong)
        assert reason(answer) == BAD, wrong
        assert advice in answer[1]["error"], answer
    answer = await stand.post("call", {**good, "required": 4})
    assert reason(answer) == (400, "calls_too_many_required")
    answer = await stand.post("call", {**good, "required": ["core9"]})
    assert reason(answer) == (404, "calls_unknown_node")
    assert stand.cluster.table("records") == {}


@door
async def test_a_stuck_node_refuses_calls_with_its_numbers(stand: Stand) -> None:
    stand.cluster.seats["core1"].broken.add("*")
    await stand.cluster.calls("core2").call("note", Note("x"), required=1)
    await until(lambda: stand.cluster.row("core1").attempts == 10)
    answer = await stand.post("call", {"function": "quick", "args": {"text": "x"}})
    assert reason(answer) == (409, "calls_stale_view")
    assert (answer[1]["cluster_id"], answer[1]["own_id"]) == (1, 0)
    assert answer[1]["attempts"] >= 10


@door
async def test_a_call_whose_turn_does_not_come_is_refused(stand: Stand) -> None:
    stand.cluster.seats["core2"].takes_s = lambda call: 10.0
    running = asyncio.ensure_future(stand.cluster.calls("core2").call("note", Note("x")))
    await until(lambda: len(stand.cluster.seats["core2"].tries) == 1)
    body = {"function": "quick", "args": {"text": "x"}, "timeout_s": 0.5}
    assert reason(await stand.post("call", body)) == (409, "calls_deadline_passed")
    await running
    assert stand.cluster.ran("core1") == [1]


# --- looking --------------------------------------------------------------------------------------


@door
async def test_the_status_has_nodes_calls_alarms_and_the_time(stand: Stand) -> None:
    stand.cluster.seats["core2"].broken.add("*")
    await stand.call("note", {"text": "s3cret"}, required=1)
    await until(lambda: stand.cluster.row("core2").failing == 1)
    status, found = await stand.get("status")
    assert status == 200
    assert [node["name"] for node in found["nodes"]] == ["core1", "core2", "core3"]
    assert found["nodes"][1]["failing"] == 1
    assert found["calls"][0]["pending_nodes"] == ["core2"]
    assert [(each["name"], each["node"]) for each in found["alarms"]] == [("call_failed", "core2")]
    assert found["now_ms"] >= found["calls"][0]["created_ms"]
    assert "s3cret" not in json.dumps(found)


@door
async def test_the_status_is_fresh_unless_the_asked_nodes_copy_is_wanted(stand: Stand) -> None:
    stand.cluster.pause("core1")
    await stand.cluster.calls("core2").call("note", Note("x"), required=1)
    assert (await stand.get("status", consistency="local"))[1]["last"] == 0
    fresh = asyncio.ensure_future(stand.get("status"))
    await asyncio.sleep(0.1)
    assert not fresh.done()
    stand.cluster.resume("core1")
    assert (await fresh)[1]["last"] == 1


@door
async def test_the_status_comes_in_pages(stand: Stand) -> None:
    for _ in range(3):
        await stand.call("quick", {"text": "x"})
    stand.cluster.seats["core1"].broken.add("*")
    await stand.call("quick", {"text": "x"})
    page = (await stand.get("status", limit="2"))[1]["calls"]
    assert [each["id"] for each in page] == [3, 2]
    page = (await stand.get("status", limit="2", below="2"))[1]["calls"]
    assert [each["id"] for each in page] == [1]
    page = (await stand.get("status", all="true", limit="1"))[1]["calls"]
    assert [(each["id"], each["state"]) for each in page] == [(4, "aborted")]


@door
async def test_wrong_parameters_say_what_is_right(stand: Stand) -> None:
    for path, id, query, advice in (
        ("status", "", {"consistency": "fresh"}, "say linearizable, or local"),
        ("status", "", {"every": "true"}, "only consistency, all, limit, below"),
        ("status", "", {"all": "yes"}, "say true or false"),
        ("status", "", {"limit": "0"}, f"say 1 to {STATUS_CALLS_MAX}"),
        ("status", "", {"limit": str(STATUS_CALLS_MAX + 1)}, "say 1 to"),
        ("status", "", {"limit": "9" * 5000}, "say a number"),
        ("status", "", {"below": "-1"}, "say a number"),
        ("calls/{id}", "x", {}, "say a number"),
        ("calls/{id}", "0", {}, "say 1 to"),
        ("calls/{id}", "²", {}, "say a number"),
        ("calls/{id}", "1", {"all": "true"}, "only consistency"),
        ("functions", "", {"node": "core2"}, "it takes none"),
    ):
        answer = await stand.get(path, id, **query)
        assert reason(answer) == BAD, (path, id, query)
        assert advice in answer[1]["error"], answer


@door
async def test_one_call_is_shown_or_is_not_there(stand: Stand) -> None:
    assert reason(await stand.get("calls/{id}", "1")) == (404, "calls_unknown_id")
    await stand.call("note", {"text": "x"})
    status, found = await stand.get("calls/{id}", "1")
    assert (status, found["function"], found["state"]) == (200, "note", "committed")


@door
async def test_functions_are_shown_with_their_types(stand: Stand) -> None:
    _, found = await stand.get("functions")
    assert found["node"] == "core1"
    by_name = {each["name"]: each for each in found["functions"]}
    assert list(by_name) == ["blob", "count", "note", "nothing", "odd", "quick"]
    assert by_name["count"]["effect"] is True
    assert by_name["blob"] == {
        "name": "blob",
        "version": 2,
        "effect": False,
        "argument": "Blob",
        "doc": "Keep the blob.",
    }


# --- mending --------------------------------------------------------------------------------------


@door
async def test_a_stuck_node_is_skipped_and_forwarded(stand: Stand) -> None:
    stand.cluster.seats["core2"].broken.add("*")
    for _ in range(3):
        await stand.call("note", {"text": "x"}, required=1)
    status, found = await stand.post("skip", {"node": "core2"})
    assert (status, found["node"], found["cursor"], found["last"]) == (200, "core2", 1, 3)
    assert [(each["id"], each["ok"], each["error"]) for each in found["attempts"]] == [
        (1, False, "Broken")
    ]
    status, found = await stand.post("fast-forward", {"node": "core2", "id": 99})
    assert (status, found["cursor"]) == (200, 3)
    # Without a name it is the node that is asked.
    assert (await stand.post("skip"))[1]["node"] == "core1"
    status, found = await stand.post("fix", {"timeout_s": 30})
    assert (status, found["verdict"]) == (200, "consistent")


@door
async def test_what_cannot_be_mended_says_why(stand: Stand) -> None:
    for path, wrong in (
        ("skip", {"nodes": "core2"}),
        ("skip", {"timeout_s": 0}),
        ("fast-forward", {"node": "core2"}),
        ("fast-forward", {"id": 0}),
        ("fast-forward", {"id": "1"}),
        ("fix", {"timeout_s": 1e9}),
        ("reset", {"node": "core1"}),
        ("force-leave", {}),
        ("acknowledge", {"node": "core1"}),
    ):
        assert reason(await stand.post(path, wrong)) == BAD, (path, wrong)
    assert reason(await stand.post("skip", {"node": "core9"})) == (404, "calls_unknown_node")
    assert (await stand.post("leave", {"node": "core2"}))[1]["done"] is True
    # Both the other node's refusal and this one's own.
    answer = await stand.post("skip", {"node": "core2"})
    assert reason(answer) == (409, "calls_not_following")
    assert "core2 takes no part" in answer[1]["error"]
    await stand.post("leave")
    assert reason(await stand.post("skip")) == (409, "calls_not_following")
    # No other endpoint could do it either, and the reason must not get lost over trying them.
    stand.cluster.kill("core3")
    stand.cluster.declare_dead("core3")
    answer = await stand.post("skip", {"node": "core3"})
    assert reason(answer) == (409, "calls_node_is_down")
    assert "core3 is down: start it" in answer[1]["error"]


@door
async def test_nodes_come_and_go_and_all_starts_anew(stand: Stand) -> None:
    await stand.call("note", {"text": "x"})
    assert (await stand.post("leave", {"node": "core3"}))[1] == {
        "verb": "leave",
        "node": "core3",
        "done": True,
        "last": 1,
    }
    assert (await stand.post("rejoin", {"node": "core3"}))[1]["done"] is True
    await until(lambda: stand.cluster.state("core3") == "following")
    stand.cluster.kill("core3")
    stand.cluster.declare_dead("core3")
    assert (await stand.post("force-leave", {"node": "core3"}))[1]["done"] is True
    assert (await stand.post("acknowledge", {"id": 1}))[1]["done"] is False
    assert (await stand.post("reset"))[1] == {"verb": "reset", "node": "", "done": True, "last": 1}
    assert stand.cluster.table("records") == {}


@door
async def test_every_route_has_a_line_and_is_told_apart(stand: Stand) -> None:
    routes = stand.node.service.routes()
    assert len({(route.method, route.path) for route in routes}) == len(routes) == 14
    assert all(route.doc.endswith(".") for route in routes)


@door
async def test_every_figure_is_explained_in_the_docs_and_no_other(stand: Stand) -> None:
    shown = set()
    for metric in stand.node.service.metrics():
        name = metric.name.removesuffix("_total")
        ending = "_total" if metric.kind == "counter" else ""
        shown.add((f"raftkv_calls_{name}{ending}", metric.kind))
    assert shown == set(documented("raftkv_calls_").items())
