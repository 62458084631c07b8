"""`/v1/lcr/...`, handler by handler, on a faked log with real machines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from raftkv.plugin import Request, Response
from raftkv.testing.clock import run
from raftkv_lcr.door import FILTER_ROWS_MAX, LIST_MAX
from raftkv_lcr.owner import ChannelGone
from raftkv_lcr.testing import MemoryBroker
from tests.plugins.raftkv_lcr.fakes import Cluster, FakeNode

Body = Callable[["Stand"], Awaitable[None]]


class Stand:
    """A cluster of two cores and the door of one of them."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.node: FakeNode = cluster.nodes["core1"]
        self.brokers: dict[str, MemoryBroker] = {}

    async def attach(self) -> None:
        """A broker on every node, in mode enabled."""
        for name, node in self.cluster.nodes.items():
            self.brokers[name] = MemoryBroker(name)
            self.brokers[name].attach(node.lcr)
        await self.node.lcr.switch_mode("enabled", timeout_s=10)

    async def ask(
        self, method: str, path: str, params: dict[str, str], query: dict[str, str], body: bytes
    ) -> Response:
        routes = {(route.method, route.path): route.handler for route in self.node.service.routes()}
        return await routes[(method, path)](Request(params, query, body, ""))

    async def get(self, path: str, client_id: str = "", **query: str) -> Response:
        first = query.pop("first", None)
        if first is not None:
            query["from"] = first
        return await self.ask("GET", path, {"client_id": client_id}, query, b"")

    async def post(self, verb: str, client_id: str, body: bytes = b"") -> Response:
        path = f"clients/{{client_id}}/{verb}"
        return await self.ask("POST", path, {"client_id": client_id}, {}, body)

    async def put_mode(self, body: Any) -> Response:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.ask("PUT", "mode", {}, {}, data)


def door(body: Body) -> Callable[[], None]:
    async def whole() -> None:
        await body(Stand(await Cluster(cores=2).start()))

    def test() -> None:
        run(whole())

    test.__name__ = body.__name__
    test.__doc__ = body.__doc__
    return test


def reason(response: Response) -> tuple[int, str]:
    """The status and the stable word of an error, which has all that errors of the door have."""
    body = response.body
    assert body["error"] == body["message"]
    assert isinstance(body["code"], int)
    return response.status, body["reason"]


CLIENT = "clients/{client_id}"


@door
async def test_a_client_is_looked_up_fresh_or_in_this_nodes_copy(stand: Stand) -> None:
    other = stand.cluster.nodes["core2"]
    stand.cluster.pause("core1")
    row = (await other.lcr.connect("c", "a")).owner
    assert row is not None
    assert reason(await stand.get(CLIENT, "c", consistency="local")) == (404, "lcr_no_channel")
    stand.cluster.resume("core1")
    found = await stand.get(CLIENT, "c")
    assert found.status == 200
    assert found.body == {
        "client_id": "c",
        "channel": "a",
        "node": "core2",
        "incarnation": row.incarnation,
        "version": row.version,
        "ticket": row.ticket,
        "supplied": True,
    }


@door
async def test_the_old_registry_is_shown_by_a_node_that_has_not_used_it_yet(stand: Stand) -> None:
    await stand.node.lcr.legacy.connect("c", "a")
    stand.node = await stand.cluster.add("rep1", "replicant")
    found = await stand.get(CLIENT, "c", registry="old")
    assert [row["channel"] for row in found.body["channels"]] == ["a"]


@door
async def test_wrong_parameters_say_what_is_right(stand: Stand) -> None:
    bad = (400, "bad_request")
    for path, query, advice in (
        (CLIENT, {"consistency": "fresh"}, "say linearizable, or local"),
        (CLIENT, {"registry": "new"}, "say linear or old"),
        (CLIENT, {"consistancy": "local"}, "only consistency, registry"),
        ("clients", {"limit": "0"}, f"say 1 to {LIST_MAX}"),
        ("clients", {"limit": "1001"}, f"say 1 to {LIST_MAX}"),
        ("clients", {"limit": "-1"}, "say a number"),
        ("clients", {"limit": "9" * 5000}, "say a number"),
        ("clients", {"limit": "²"}, "say a number"),
        ("mode", {"node": "x"}, "only consistency"),
    ):
        answer = await stand.get(path, "c", **query)
        assert reason(answer) == bad, query
        assert advice in answer.body["error"], answer.body
    for client_id in ("", "c" * 16_384):
        assert reason(await stand.get(CLIENT, client_id)) == bad
        assert reason(await stand.post("kick", client_id)) == bad


@door
async def test_the_list_comes_in_pages(stand: Stand) -> None:
    for number in range(7):
        await stand.cluster.nodes[f"core{number % 2 + 1}"].lcr.connect(f"c{number}", "x")
    first = (await stand.get("clients", limit="3")).body
    assert [row["client_id"] for row in first["channels"]] == ["c0", "c1", "c2"]
    assert (first["next"], first["total"]) == ("c3", 7)
    last = (await stand.get("clients", limit="4", first=first["next"])).body
    assert [row["client_id"] for row in last["channels"]] == ["c3", "c4", "c5", "c6"]
    assert last["next"] is None
    own = (await stand.get("clients", node="core2")).body
    assert [row["client_id"] for row in own["channels"]] == ["c1", "c3", "c5"]


@door
async def test_a_filter_looks_at_a_bounded_number_of_rows(stand: Stand) -> None:
    assert FILTER_ROWS_MAX >= LIST_MAX
    for number in range(5):
        await stand.node.lcr.connect(f"c{number}", "x")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("raftkv_lcr.door.FILTER_ROWS_MAX", 2)
        page = (await stand.get("clients", node="core2")).body
    # Nothing found, and where to go on.
    assert (page["channels"], page["next"]) == ([], "c2")


@door
async def test_channels_of_a_dead_node_are_not_shown(stand: Stand) -> None:
    await stand.cluster.nodes["core2"].lcr.connect("c", "a")
    stand.cluster.lead("core2")  # so that nobody cleans up
    stand.cluster.kill("core2")
    stand.cluster.declare_dead("core2")
    assert (await stand.get("clients")).body["channels"] == []
    assert reason(await stand.get(CLIENT, "c")) == (404, "lcr_no_channel")


@door
async def test_the_mode_names_the_nodes_that_hold_it_up(stand: Stand) -> None:
    before = (await stand.get("mode")).body
    assert (before["mode"], before["epoch"]) == ("disabled", 0)
    await stand.attach()
    after = (await stand.get("mode")).body
    assert (after["mode"], after["effective"], after["old_nodes"]) == ("enabled", "enabled", [])
    assert after["epoch"] > 0
    assert after["nodes"] == [
        {"name": name, "up": True, "protocol": 2, "adopted": True} for name in ("core1", "core2")
    ]
    # In a new life, which it has not announced yet.
    stand.cluster.node_up(stand.cluster.nodes["core2"])
    old = (await stand.get("mode", consistency="local")).body
    assert (old["mode"], old["effective"], old["old_nodes"]) == ("enabled", "migration", ["core2"])
    assert (old["nodes"][1]["protocol"], old["nodes"][1]["adopted"]) == (None, False)
    stand.cluster.kill("core2")
    stand.cluster.declare_dead("core2")
    dead = (await stand.get("mode")).body["nodes"][1]
    assert (dead["up"], dead["adopted"]) == (False, False)


@door
async def test_the_mode_is_switched_by_the_door(stand: Stand) -> None:
    await stand.attach()
    answer = await stand.put_mode({"mode": "disabled", "timeout_s": 5})
    assert (answer.status, answer.body["mode"]) == (200, "disabled")
    assert stand.node.lcr.mode().mode == "disabled"
    for wrong, advice in (
        (b"", "missing required field"),
        (b"\xff", "JSON with mode, timeout_s"),
        (b"[]", "mode is one of disabled"),
        ({"mode": "on"}, "mode is one of disabled"),
        ({"mode": "dual", "timeout": 5}, "unknown field"),
        ({"mode": "dual", "timeout_s": 0}, "more than 0"),
        ({"mode": "dual", "timeout_s": 601}, "at most 600"),
    ):
        answer = await stand.put_mode(wrong)
        assert reason(answer) == (400, "bad_request")
        assert advice in answer.body["error"], answer.body
    assert stand.node.lcr.mode().mode == "disabled"


@door
async def test_kick_and_discard_reach_other_nodes(stand: Stand) -> None:
    await stand.attach()
    broker = stand.brokers["core2"]
    await broker.connect("c", "1")
    kicked = await stand.post("kick", "c", b'{"reason": "bye"}')
    assert (kicked.status, kicked.body) == (200, {"client_id": "c", "kicked": True})
    assert broker.sessions[("c", "1")].closed_for == "bye"
    assert reason(await stand.post("kick", "c")) == (404, "lcr_no_channel")
    await broker.connect("c", "2")
    discarded = await stand.post("discard", "c")
    assert discarded.body == {"client_id": "c", "discarded": True}
    assert broker.sessions[("c", "2")].closed_for == "discarded"
    assert reason(await stand.post("discard", "c")) == (404, "lcr_no_channel")
    for verb, wrong in (
        ("kick", b"no json"),
        ("kick", b'{"reason": 1}'),
        ("kick", b'{"why": "x"}'),
        ("kick", json.dumps({"reason": "x" * 1025}).encode()),
        ("discard", b'{"reason": "x"}'),
    ):
        assert reason(await stand.post(verb, "c", wrong)) == (400, "bad_request"), wrong


@door
async def test_a_channel_that_does_not_answer_is_not_called_gone(stand: Stand) -> None:
    await stand.attach()
    broker = stand.brokers["core2"]
    await broker.connect("c", "1")
    broker.failing[("kick", "1")] = "timeout"
    try:
        answer = await stand.post("kick", "c")
    except ChannelGone:
        raise AssertionError("the door would answer 500") from None
    assert reason(answer) == (504, "lcr_channel_gone")
    assert "look it up" in answer.body["error"]


@door
async def test_without_a_broker_the_door_names_the_node_to_ask(stand: Stand) -> None:
    await stand.cluster.nodes["core2"].lcr.connect("c", "a")
    for verb in ("kick", "discard"):
        answer = await stand.post(verb, "c")
        assert reason(answer) == (409, "lcr_no_broker")
        assert "ask the node core2" in answer.body["error"]


@door
async def test_history_is_kept_for_as_long_as_the_setting_says(stand: Stand) -> None:
    off = await stand.get(f"{CLIENT}/history", "c")
    assert reason(off) == (404, "lcr_no_history")
    assert "history_ms is 0" in off.body["error"]
    stand.cluster.set("history_ms", 1000)
    row = (await stand.node.lcr.connect("c", "a")).owner
    assert row is not None
    assert reason(await stand.get(f"{CLIENT}/history", "c")) == (404, "lcr_no_history")
    await stand.node.lcr.unregister(row)
    kept = await stand.get(f"{CLIENT}/history", "c")
    assert kept.status == 200
    assert (kept.body["channel"]["channel"], kept.body["age_ms"]) == ("a", 0)
    stand.cluster.stamp_ms += 1001
    await stand.node.lcr.connect("another", "x")
    assert reason(await stand.get(f"{CLIENT}/history", "c")) == (404, "lcr_no_history")


@door
async def test_figures_of_the_node_and_of_its_sweeps(stand: Stand) -> None:
    await stand.node.lcr.connect("c", "a")
    figures = (await stand.get("stats")).body
    assert (figures["clients"], figures["held"], figures["registered"]) == (1, 1, 1)
    sweep = (await stand.get("sweep")).body
    assert (sweep["rows_per_s"], sweep["interval_s"]) == (500, 600)
    assert {"runs", "scanned", "deleted_local_dead", "deleted_remote_orphan"} < set(sweep)


# --- for brokers in other languages ---------------------------------------------------------------


async def rows(stand: Stand, verb: str, client_id: str, **body: Any) -> Response:
    return await stand.post(verb, client_id, json.dumps(body).encode())


@door
async def test_item_5_broker_in_another_language_registers_and_unregisters(stand: Stand) -> None:
    answer = (await rows(stand, "register", "c", channel="a")).body
    row = answer["channel"]
    assert answer == {
        "outcome": "ok",
        "channel": (await stand.get(CLIENT, "c")).body,
        "took_over": None,
        "session_present": False,
        "repeated": False,
        "index": answer["index"],
    }
    # An answer that was lost is asked for again.
    again = (await rows(stand, "register", "c", channel="a")).body
    assert (again["outcome"], again["repeated"], again["channel"]) == ("ok", True, row)
    # A stale local read, then the real predecessor.
    restart = (await rows(stand, "register", "c", channel="b")).body
    assert (restart["outcome"], restart["predecessor"]) == ("restart", row)
    ticket = restart["claim"]["ticket"]
    newer = (await rows(stand, "register", "c", channel="b", predecessor=row, ticket=ticket)).body
    assert (newer["outcome"], newer["took_over"]) == ("ok", row)
    first = {"version": row["version"], "ticket": row["ticket"]}
    late = (await rows(stand, "register", "c", channel="a2", **first)).body
    assert (late["outcome"], late["newer"]) == ("outdated_early", newer["channel"])
    # The replaced row deletes nothing, the exact one does.
    assert (await rows(stand, "unregister", "c", row=row)).body["removed"] is False
    gone = await rows(stand, "unregister", "c", row=newer["channel"])
    assert gone.body == {"client_id": "c", "removed": True}
    assert reason(await stand.get(CLIENT, "c")) == (404, "lcr_no_channel")


@door
async def test_item_5_open_compares_the_epoch_of_the_mode(stand: Stand) -> None:
    await stand.node.lcr.switch_mode("enabled", timeout_s=10)
    epoch = (await stand.get("mode")).body["epoch"]
    former = (await rows(stand, "open", "c", channel="a", epoch=0)).body
    assert (former["outcome"], former["mode"], former["epoch"]) == (
        "mode_changed",
        "enabled",
        epoch,
    )
    first = (await rows(stand, "open", "c", channel="a", epoch=epoch)).body
    assert (first["outcome"], first["session_present"]) == ("ok", False)
    row = first["channel"]
    taken = await rows(stand, "open", "c", channel="b", predecessor=row, resume=True, epoch=epoch)
    assert (taken.body["took_over"], taken.body["session_present"]) == (row, True)
    clean = (await rows(stand, "open", "c", channel="d", clean=True, epoch=epoch)).body
    assert (clean["took_over"], clean["session_present"]) == (taken.body["channel"], False)


@door
async def test_item_5_bad_rows_and_bodies_are_refused(stand: Stand) -> None:
    row = (await rows(stand, "register", "c", channel="a")).body["channel"]
    bad = (400, "bad_request")
    for verb, client, body, advice in (
        ("register", "c", {}, "channel"),
        ("register", "c", {"channel": ""}, "channel is empty"),
        ("register", "c", {"channel": "a", "version": -1}, "version"),
        ("register", "c", {"channel": "a", "timeout_s": 0}, "at most 60 seconds"),
        ("register", "other", {"channel": "b", "predecessor": row}, "send a row of the same"),
        ("open", "c", {"channel": "b"}, "epoch"),
        ("open", "c", {"channel": "b", "epoch": 0, "resume": True, "clean": True}, "exclude"),
        ("unregister", "other", {"row": row}, "send a row of the same client"),
        ("unregister", "c", {"row": {**row, "more": 1}}, "more"),
        ("unregister", "c", {"row": {**row, "version": -1}}, "row.version"),
        ("unregister", "c", {"row": {**row, "ticket": 2**63}}, "row.ticket"),
        ("unregister", "c", {"row": {**row, "incarnation": 10**30}}, "row.incarnation"),
        ("unregister", "c", {"row": {**row, "channel": ""}}, "row.channel"),
        ("register", "c", {"channel": "b", "predecessor": {**row, "ticket": -1}}, "ticket"),
        ("open", "c", {"channel": "b", "epoch": -1}, "epoch"),
        ("open", "c", {"channel": "b", "epoch": 10**30}, "epoch"),
    ):
        answer = await rows(stand, verb, client, **body)
        assert reason(answer) == bad, (verb, body)
        assert advice in answer.body["error"], answer.body
    long = await rows(stand, "register", "c", channel="x" * 257)
    assert reason(long) == bad


@door
async def test_item_5_alarms_of_the_node_are_shown(stand: Stand) -> None:
    with stand.node.lcr.long_runs.watched("sweep_slow", 1.0):
        assert (await stand.get("alarms")).body == {"alarms": []}
        await asyncio.sleep(1.5)
        [alarm] = (await stand.get("alarms")).body["alarms"]
        assert (alarm["name"], alarm["limit_s"]) == ("sweep_slow", 1.0)
