"""`/v1/limbo/...`, handler by handler, on a faked log with real machines."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import random
import re
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from raftkv.plugin import Request, Response
from raftkv_limbo import bodies, door, errors
from raftkv_limbo.options import LimboOptions
from raftkv_limbo.quorum_change import QuorumChange, change_steps, refused_part
from raftkv_limbo.quorum_expression import nodes_needed
from raftkv_limbo.refusals import REFUSALS
from raftkv_limbo.settings import SETTINGS
from tests.metrics_page import documented
from tests.plugins.raftkv_limbo.fakes import Cluster, story, until

BAD = (400, "bad_request")
ROOT = Path(__file__).resolve().parent.parent.parent.parent
# A key and a value: no error and no status may show them.
KEY, VALUE = "k3y", "s3cret"


def b64(data: str | bytes) -> str:
    return base64.b64encode(data.encode() if isinstance(data, str) else data).decode()


def put(key: str, value: str | None, space: str = "s") -> dict[str, Any]:
    return {"space": space, "key": b64(key), "value": None if value is None else b64(value)}


class Stand:
    """A cluster and the doors of all its nodes."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        #: Every text that a door answered with.
        self.said: list[str] = []

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        at: str = "core1",
        params: dict[str, str] | None = None,
        **query: str,
    ) -> tuple[int, Any]:
        """The status and the body as whoever asked gets them."""
        node = self.cluster.nodes[at]
        routes = {(route.method, route.path): route.handler for route in node.service.routes()}
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = Request(params or {}, query, b"" if body is None else data, "")
        response: Response = await routes[method, path](request)
        text = msgspec.json.encode(response.body).decode()
        if response.status >= 400 or path in ("status", "queue", "verdicts", "quorum"):
            self.said.append(text)
        return response.status, json.loads(text)

    async def get(self, path: str, *, at: str = "core1", **query: str) -> Any:
        status, body = await self.ask("GET", path, at=at, **query)
        assert status == 200, body
        return body

    async def post(self, path: str, body: Any = None, *, at: str = "core1") -> tuple[int, Any]:
        return await self.ask("POST", path, {} if body is None else body, at=at)

    async def submit(self, *writes: dict[str, Any], at: str = "core1", **words: Any) -> Any:
        return await self.post("submit", {"writes": writes, **words}, at=at)

    async def value(self, key: str, space: str = "s", view: str = "confirmed") -> str | None:
        status, body = await self.post("get", {"space": space, "key": b64(key), "view": view})
        assert status == 200, body
        row = body["row"]
        return None if row is None else base64.b64decode(row["value"]).decode()

    async def own(self, name: str = "core1") -> None:
        status, body = await self.post("promote", at=name)
        assert (status, body["node"]) == (200, name)


Body = Callable[[Stand], Awaitable[None]]


def doors(*shape: int, **settings: Any) -> Callable[[Body], Callable[[], None]]:
    """A story at the doors of a cluster; in the end, nothing that was said has a user's data."""

    def wrap(body: Body) -> Callable[[], None]:
        async def whole(cluster: Cluster) -> None:
            stand = Stand(cluster)
            await body(stand)
            for text in stand.said:
                for secret in (KEY, VALUE, b64(KEY), b64(VALUE)):
                    assert secret not in text

        whole.__name__ = body.__name__
        whole.__doc__ = body.__doc__
        return story(*shape, **settings)(whole)

    return wrap


def reason(answer: tuple[int, Any]) -> tuple[int, str]:
    """The status and the stable word of an error, which has all that errors of the door have."""
    status, body = answer
    assert body["error"] == body["message"]
    assert isinstance(body["code"], int)
    return status, body["reason"]


# --- transactions ---------------------------------------------------------------------------------


@doors()
async def test_a_transaction_is_confirmed_and_read(stand: Stand) -> None:
    await stand.own()
    status, done = await stand.submit(put(KEY, VALUE), put("b", "2", "a"))
    assert (status, done["state"], done["position"]) == (200, "confirmed", 1)
    assert await stand.value(KEY) == VALUE
    assert await stand.value("b", "a", "linearizable") == "2"
    status, done = await stand.submit(put(KEY, None))
    assert (status, done["position"]) == (200, 2)
    assert await stand.value(KEY) is None
    found = (await stand.get("verdicts", limit="1"))["verdicts"]
    assert [(each["kind"], each["first"], each["last"]) for each in found] == [("confirmed", 1, 2)]


@doors()
async def test_conditions_are_checked(stand: Stand) -> None:
    await stand.own()
    await stand.submit(put(KEY, VALUE))
    on = {"space": "s", "key": b64(KEY)}
    for good in ({"value": b64(VALUE)}, {"position": 1}, {"exists": True}):
        answer = await stand.submit(put("other", "x"), conditions=[{**on, **good}])
        assert answer[0] == 200, good
    for bad in ({"value": b64("no")}, {"value": None}, {"position": 7}, {"exists": False}):
        answer = await stand.submit(put("other", "y"), conditions=[{**on, **bad}])
        assert reason(answer) == (409, "limbo_condition_failed"), bad
        assert (answer[1]["space"], answer[1]["position"]) == ("s", 1)
    for wrong in ({}, {"value": None, "exists": True}, {"position": 1, "exists": True}):
        answer = await stand.submit(put("other", "y"), conditions=[{**on, **wrong}])
        assert reason(answer) == BAD
        assert "one of value, position and exists" in answer[1]["error"]
    assert await stand.value("other") == "x"


@doors(quorum="N")
async def test_what_waits_for_its_quorum_is_told_with_its_position(stand: Stand) -> None:
    await stand.own()
    stand.cluster.isolate("core3")
    status, done = await stand.submit(put(KEY, VALUE), wait="submit")
    assert (status, done["state"], done["position"]) == (202, "pending", 1)
    answer = await stand.submit(put("b", "2"), timeout_s=0.5)
    assert reason(answer) == (504, "limbo_still_pending")
    assert answer[1]["position"] == 2
    status, done = await stand.submit(put("c", "3"), wait="none")
    assert (status, done["state"], done["position"]) == (202, "submitting", 0)
    assert (await stand.post("flush"))[1] == {"node": "core1", "flushed": True}
    assert (await stand.value(KEY), await stand.value(KEY, view="pending")) == (None, VALUE)

    queue = await stand.get("queue")
    assert [each["position"] for each in queue["entries"]] == [1, 2, 3]
    assert queue["entries"][0]["holders"] == ["core1", "core2"]
    assert (queue["head"], queue["pending"], queue["next"]) == (1, 3, 0)
    [lack] = queue["lacks"]
    assert (lack["what"], lack["needed"], lack["have"], lack["missing"]) == (
        "quorum",
        3,
        2,
        ["core3"],
    )
    part = await stand.get("queue", **{"from": "2", "limit": "1"})
    assert ([each["position"] for each in part["entries"]], part["next"]) == ([2], 3)

    late = await stand.ask("GET", "verdicts/{position}", params={"position": "2"}, wait_s="0.5")
    assert reason(late) == (504, "limbo_still_pending")
    waiting = asyncio.ensure_future(
        stand.ask("GET", "verdicts/{position}", params={"position": "2"}, wait_s="60")
    )
    stand.cluster.heal("core3")
    status, verdict = await waiting
    assert (status, verdict["fate"], verdict["position"]) == (200, "confirmed", 2)
    assert await stand.value("c") == "3"
    assert (await stand.get("queue"))["entries"] == []


@doors(quorum="N", queue_entries_max=1)
async def test_a_full_queue_is_told_to_who_does_not_wait(stand: Stand) -> None:
    await stand.own()
    stand.cluster.isolate("core3")
    await stand.submit(put(KEY, VALUE), wait="submit")
    answer = await stand.submit(put(KEY, "2"), wait="none")
    assert reason(answer) == (409, "limbo_queue_full")
    assert answer[1]["limit"] == 1
    answer = await stand.submit(put(KEY, "3"), timeout_s=0.5)
    assert reason(answer) == (504, "limbo_not_submitted")
    waiting = asyncio.ensure_future(stand.submit(put(KEY, "4"), wait="submit", timeout_s=60))
    await asyncio.sleep(0.1)
    assert (await stand.get("status"))["queue"]["waiting_for_room"] == 1
    answer = await stand.post("flush", {"timeout_s": 0.2})
    assert reason(answer) == (504, "limbo_not_flushed")
    stand.cluster.heal("core3")
    assert (await waiting)[0] == 202
    await until(lambda: stand.cluster.state.pending == 0)
    assert await stand.value(KEY) == "4"


@doors(quorum="N")
async def test_a_rolled_back_transaction_is_told_why(stand: Stand) -> None:
    await stand.own()
    stand.cluster.isolate("core3")
    waiting = asyncio.ensure_future(stand.submit(put(KEY, VALUE), timeout_s=60))
    await until(lambda: stand.cluster.state.pending == 1)
    body = {"position": 1, "term": 1, "reason": "core3 is lost"}
    status, done = await stand.post("rollback", body, at="core2")
    assert (status, done) == (200, {"first": 1, "last": 1, "entries": 1})
    answer = await waiting
    assert reason(answer) == (409, "limbo_rolled_back")
    assert (answer[1]["why"], answer[1]["by"], answer[1]["position"]) == (
        "core3 is lost",
        "core2",
        1,
    )
    [run] = (await stand.get("verdicts"))["verdicts"]
    assert (run["kind"], run["reason"], run["node"]) == ("rolled back", "core3 is lost", "core2")
    status, verdict = await stand.ask("GET", "verdicts/{position}", params={"position": "1"})
    assert (verdict["fate"], verdict["by"]) == ("rolled back", "core2")
    settled, unknown = (409, "limbo_already_rolled_back"), (404, "limbo_unknown_position")
    assert reason(await stand.post("rollback", {"position": 1})) == settled
    assert reason(await stand.post("rollback", {"position": 9})) == unknown
    assert reason(await stand.post("rollback", {"position": 1, "term": 7})) == (
        409,
        "limbo_stale_term",
    )
    status, verdict = await stand.ask("GET", "verdicts/{position}", params={"position": "9"})
    assert (status, verdict["fate"]) == (200, "unknown")
    stand.cluster.heal("core3")


@doors()
async def test_what_is_wrong_with_a_transaction_is_400(stand: Stand) -> None:
    await stand.own()
    many = [put(str(number), "x") for number in range(129)]
    for writes, words, expected in (
        ([], {}, (400, "limbo_empty_transaction")),
        ([put(KEY, "1"), put(KEY, "2")], {}, (400, "limbo_duplicate_write")),
        ([put("k" * 1025, "1")], {}, (400, "limbo_key_too_large")),
        ([put(KEY, "1")], {"order": "independent"}, (400, "limbo_independent_sync")),
        (many, {}, (400, "limbo_transaction_too_large")),
        ([put(KEY, "1", "nowhere")], {}, (404, "limbo_unknown_space")),
        ([put(KEY, "1", "größe")], {}, BAD),
        ([put(KEY, "1")], {"order": "sideways"}, BAD),
        ([put(KEY, "1")], {"wait": "forever"}, BAD),
        ([put(KEY, "1")], {"timeout_s": 0}, BAD),
        ([put(KEY, "1")], {"colour": "red"}, BAD),
        ([{"space": "s", "key": b64(KEY)}], {}, BAD),
        ([{"space": "s", "key": "?", "value": None}], {}, BAD),
    ):
        assert reason(await stand.submit(*writes, **words)) == expected, (writes, words)
    assert reason(await stand.post("submit", b"[")) == BAD
    assert stand.cluster.state.last == 0


@doors()
async def test_a_range_comes_in_pages_both_ways(stand: Stand) -> None:
    await stand.own()
    keys = ["a", "b", "c" * 1024, "d"]
    for key in keys:
        await stand.submit(put(key, "x"))
    for reverse in (False, True):
        found: list[str] = []
        body: dict[str, Any] = {"space": "s", "limit": 1, "reverse": reverse}
        for _ in range(10):
            status, page = await stand.post("range", body)
            assert status == 200, page
            found += [base64.b64decode(each["key"]).decode() for each in page["rows"]]
            if page["next"] is None:
                break
            body["end" if reverse else "start"] = page["next"]
        assert found == (keys[::-1] if reverse else keys)
    page = (await stand.post("range", {"space": "s", "start": b64("b"), "end": b64("d")}))[1]
    assert [base64.b64decode(each["key"])[:1] for each in page["rows"]] == [b"b", b"c"]
    assert page["rows"][0]["position"] == 2
    assert reason(await stand.post("range", {"space": "none"})) == (404, "limbo_unknown_space")
    assert reason(await stand.post("range", {"space": "s", "limit": 0})) == BAD
    assert reason(await stand.post("get", {"space": "s", "key": b64("a"), "view": "x"})) == BAD


def test_a_page_ends_before_it_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "RANGE_BYTES_MAX", 100)

    @doors()
    async def told(stand: Stand) -> None:
        await stand.own()
        for key, size in (("a", 200), ("b", 60), ("c", 60)):
            await stand.submit(put(key, "x" * size))
        pages = []
        start: str | None = ""
        while start is not None:
            page = (await stand.post("range", {"space": "s", "start": start}))[1]
            pages.append(len(page["rows"]))
            start = page["next"]
        # One that is too large alone is there nevertheless.
        assert pages == [1, 1, 1]

    told()


def test_the_next_key_is_the_lowest_possible_one() -> None:
    longest = b"\xff" * door.KEY_BYTES_MAX
    assert door._behind(b"a") == b"a\0"
    assert door._behind(longest[:-1]) == longest[:-1] + b"\0"
    assert door._behind(b"a" + longest[1:]) == b"b"
    assert door._behind(longest[:-1] + b"a") == longest[:-1] + b"b"


# --- the owner ------------------------------------------------------------------------------------


@doors()
async def test_the_owner_is_promoted_and_demoted_by_itself(stand: Stand) -> None:
    answer = await stand.submit(put(KEY, VALUE))
    assert reason(answer) == (409, "limbo_unclaimed")
    assert (await stand.submit(put("x", "1", "a")))[0] == 200
    status, done = await stand.post("promote", {"node": "core1", "rest": "wait"})
    assert (status, done["term"], done["node"]) == (200, 1, "core1")
    answer = await stand.submit(put(KEY, VALUE), at="core2")
    assert reason(answer) == (409, "limbo_foreign_owner")
    assert (answer[1]["owner"], answer[1]["term"]) == ("core1", 1)
    answer = await stand.post("promote", {"node": "core2"})
    assert reason(answer) == BAD
    assert "this is core1" in answer[1]["error"]
    assert reason(await stand.post("demote", at="core2")) == (409, "limbo_not_owner")
    status, done = await stand.post("demote")
    assert (status, done["term"]) == (200, 2)
    assert (await stand.get("status"))["owner"] == ""


@doors(quorum="N")
async def test_a_promotion_waits_or_gives_up_what_is_pending(stand: Stand) -> None:
    await stand.own()
    stand.cluster.isolate("core3")
    await stand.submit(put(KEY, VALUE), wait="submit")
    answer = await stand.post("promote", {"timeout_s": 0.5}, at="core2")
    assert reason(answer) == (504, "limbo_promote_timed_out")
    assert (answer[1]["term"], answer[1]["head"]) == (1, 1)
    assert stand.cluster.state.owner == "core1"
    waiting = asyncio.ensure_future(stand.post("promote", {"timeout_s": 60}, at="core2"))
    await asyncio.sleep(0.1)
    answer = await stand.post("promote", {"rest": "roll back"}, at="core2")
    assert reason(answer) == (409, "limbo_in_another_promote")
    status, done = await stand.post("demote", {"rest": "roll back"})
    assert (status, done["rolled_back"]) == (200, 1)
    assert reason(await waiting) == (409, "limbo_interfering_promote")
    stand.cluster.heal("core3")


# --- looking --------------------------------------------------------------------------------------


@doors(2, 1, zones={"core2": "eu"}, quorum="N", quorum_zones={"us": 1})
async def test_the_status_says_what_is_there_and_what_to_do(stand: Stand) -> None:
    found = await stand.get("status")
    assert (found["node"], found["owner"], found["mine"], found["last"]) == ("core1", "", False, 0)
    assert any("promote NODE" in line for line in found["advice"])
    await stand.own()
    await until(lambda: bool(stand.cluster.limbo("core1").status().nodes[1].zone))
    await stand.submit(put(KEY, VALUE), wait="submit")
    await asyncio.sleep(0.1)
    found = await stand.get("status", consistency="local")
    assert (found["owner"], found["mine"], found["live"]) == ("core1", True, True)
    assert found["queue"]["len"] == 1
    nodes = {node["name"]: node for node in found["nodes"]}
    assert list(nodes) == ["core1", "core2", "rep1"]
    assert (nodes["core2"]["zone"], nodes["rep1"]["counts"]) == ("eu", False)
    assert [(space["name"], space["pending"]) for space in found["spaces"]] == [("a", 0), ("s", 1)]
    assert (
        "1 nodes of zone us are needed, and there are 0: nothing gets its quorum"
        in (found["advice"])
    )
    assert "position 1 has 0 of 1 acknowledgements from zone us" in found["advice"]
    status, _ = await stand.ask("PUT", "quorum", {"zones": {}})
    assert status == 200
    await until(lambda: stand.cluster.state.pending == 0)
    assert (await stand.get("status"))["advice"] == []
    stand.cluster.isolate("core1")
    stand.cluster.declare_dead("core1")
    found = await stand.get("status", at="core2")
    assert not found["live"]
    assert any("has ended the life" in line for line in found["advice"])
    stand.cluster.rejoin("core1")


@doors(quorum="N", quorum_validators={"audit": 2})
async def test_a_validator_that_is_missing_is_named(stand: Stand) -> None:
    await stand.own()
    for name in ("core1", "core2"):
        stand.cluster.limbo(name).validator("audit", lambda proposal: None)
    await asyncio.sleep(3)
    await stand.submit(put(KEY, VALUE))
    stand.cluster.isolate("core2")
    await stand.submit(put(KEY, "2"), wait="submit")
    await asyncio.sleep(1)
    lacks = {lack["what"]: lack for lack in (await stand.get("queue"))["lacks"]}
    assert (lacks["quorum"]["have"], lacks["quorum"]["missing"]) == (2, ["core2"])
    assert (lacks["validator"]["have"], lacks["validator"]["missing"]) == (1, ["core2"])
    stand.cluster.heal("core2")


@doors()
async def test_parameters_are_checked(stand: Stand) -> None:
    for path, query in (
        ("status", {"consistency": "fresh"}),
        ("status", {"limit": "1"}),
        ("queue", {"limit": "0"}),
        ("queue", {"limit": "1001"}),
        ("queue", {"from": "-1"}),
        ("verdicts", {"limit": "x"}),
        ("quorum", {"all": "true"}),
    ):
        assert reason(await stand.ask("GET", path, **query)) == BAD, (path, query)
    for position in ("0", "x", "9" * 30):
        params = {"position": position}
        assert reason(await stand.ask("GET", "verdicts/{position}", params=params)) == BAD
    params = {"position": "1"}
    assert reason(await stand.ask("GET", "verdicts/{position}", params=params, wait_s="-1")) == BAD
    for body in ({"position": 0}, {"position": "1"}, {}):
        assert reason(await stand.post("rollback", body)) == BAD
    assert reason(await stand.post("flush", {"timeout_s": 601})) == BAD


# --- quorum, settings, spaces ---------------------------------------------------------------------


@doors()
async def test_the_quorum_is_shown_and_changed(stand: Stand) -> None:
    found = await stand.get("quorum")
    assert (found["quorum"]["quorum"], found["quorum"]["n"], found["quorum"]["fast"]) == (
        2,
        3,
        True,
    )
    assert [1, 1] in found["results"]
    assert [7, 4] in found["results"]
    status, found = await stand.ask("PUT", "quorum", {"quorum": 3, "over": "members"})
    assert (status, found["quorum"]["quorum"], found["quorum"]["over"]) == (200, 3, "members")
    assert not found["quorum"]["fast"]
    status, found = await stand.ask("PUT", "quorum", {"quorum": "N * 2", "zones": {"eu": 1}})
    # One part is bad, so none is set.
    assert (status, found["reason"]) == (400, "invalid_setting")
    assert "is 32 for 16 nodes" in found["error"]
    assert (await stand.get("quorum"))["quorum"]["zones"] == []
    for bad in (
        {},
        {"quorum": 1.5},
        {"colour": 1},
    ):
        assert reason(await stand.ask("PUT", "quorum", bad)) == BAD, bad
    for refused in (
        {"quorum": "N - 1"},
        {"quorum": "__import__('os')"},
        {"over": "all"},
        {"zones": {"eu": 0}},
        {"validators": {"": 1}},
    ):
        answer = await stand.ask("PUT", "quorum", refused)
        assert reason(answer) == (400, "invalid_setting"), refused
    status, found = await stand.ask("PUT", "quorum", {"quorum": "4", "validators": {"audit": 1}})
    assert [line.split(",")[0] for line in found["warnings"]] == [
        "4 members are needed",
        "1 nodes with validator audit are needed",
    ]


@doors(quorum="N", quorum_over="members", quorum_zones={"eu": 1})
async def test_what_waits_is_never_judged_by_less_than_both(stand: Stand) -> None:
    """Two settings change; between them nothing may be confirmed that neither quorum would."""
    await stand.own()
    # In no zone: the old quorum cannot be had. The new one asks for a validator that nobody has.
    await stand.submit(put(KEY, VALUE), wait="submit")
    body = {"quorum": "2", "over": "cores", "zones": {}, "validators": {"audit": 1}}
    status, _ = await stand.ask("PUT", "quorum", body)
    assert status == 200
    await asyncio.sleep(3)
    assert stand.cluster.state.pending == 1
    settings = stand.cluster.witness.view("limbo").settings
    assert (settings["quorum"], settings["quorum_over"]) == ("2", "cores")
    assert (settings["quorum_zones"], settings["quorum_validators"]) == ({}, {"audit": 1})


def test_every_order_of_a_change_is_at_least_as_hard_as_one_of_its_ends() -> None:
    """Changes between some quorums, in clusters of several shapes."""
    numbers = ("1", "2", "3", "N", "N / 2 + 1", "max(2, N / 3)")
    places: tuple[dict[str, int], ...] = ({}, {"eu": 1}, {"eu": 2, "us": 1}, {"us": 3})
    ends = list(itertools.product(numbers, ("cores", "members"), places, places))
    rng = random.Random(7)
    bridges = 0
    for _ in range(3_000):
        old, new = rng.choice(ends), rng.choice(ends)
        cores, replicants = rng.randint(1, 7), rng.randint(0, 4)
        n = {"cores": cores, "members": cores + replicants}

        def needed(settings: Mapping[str, Any], n: dict[str, int] = n) -> int:
            return nodes_needed(settings["quorum"], n[settings["quorum_over"]])

        settings = _settings(old)
        wanted = _settings(new)
        before, after = _hardness(settings, needed), _hardness(wanted, needed)
        steps = change_steps(settings, QuorumChange(*new), needed)
        bridges += [key for key, _ in steps].count("quorum") > 1
        for step in steps:
            settings = {**settings, step[0]: step[1]}
            now = _hardness(settings, needed)
            assert _at_least(now, before) or _at_least(now, after), (old, new, n, step)
        assert settings == wanted
    assert bridges, "no change needed a number between: the case is not tested"


def _settings(end: tuple[str, str, dict[str, int], dict[str, int]]) -> dict[str, Any]:
    keys = ("quorum", "quorum_over", "quorum_zones", "quorum_validators")
    return dict(zip(keys, end, strict=True))


Hardness = tuple[str, int, dict[str, int], dict[str, int]]


def _hardness(settings: dict[str, Any], needed: Callable[[Mapping[str, Any]], int]) -> Hardness:
    over = settings["quorum_over"]
    return over, needed(settings), settings["quorum_zones"], settings["quorum_validators"]


def _at_least(one: Hardness, other: Hardness) -> bool:
    """Whether what satisfies `one` satisfies `other`."""
    named = all(
        mine.get(name, 0) >= count
        for mine, theirs in zip(one[2:], other[2:], strict=True)
        for name, count in theirs.items()
    )
    # So many cores are as many members, but not the other way round.
    return named and one[1] >= other[1] and (one[0] == other[0] or one[0] == "cores")


def test_a_part_that_would_be_refused_is_found_before() -> None:
    assert refused_part(QuorumChange("N", "members", {"eu": 1}, {"audit": 2})) is None
    assert "quorum_over 'some'" in (refused_part(QuorumChange(over="some")) or "")


@doors()
async def test_settings_are_shown_and_changed(stand: Stand) -> None:
    found = (await stand.get("settings"))["settings"]
    assert (found["leader_promotes"], found["queue_entries_max"]) == (False, 1_000)

    async def set_to(key: str, value: Any) -> tuple[int, Any]:
        return await stand.ask("PUT", "settings/{key}", {"value": value}, params={"key": key})

    status, found = await set_to("queue_entries_max", 5)
    assert (status, found["settings"]["queue_entries_max"]) == (200, 5)
    status, found = await set_to("queue_entries_max", None)
    assert found["settings"]["queue_entries_max"] == 1_000
    assert reason(await set_to("queue_entries_max", 0)) == (400, "invalid_setting")
    assert reason(await set_to("queue_entries_max", "many")) == (400, "invalid_setting")
    assert reason(await set_to("queue_entries_max", 10**30)) == BAD
    assert reason(await set_to("quorum_zones", {"eu": 10**30})) == BAD
    assert reason(await set_to("colour", 1)) == BAD
    answer = await stand.ask("PUT", "settings/{key}", {}, params={"key": "quorum"})
    assert reason(answer) == BAD


@doors(quorum="N")
async def test_spaces_are_made_changed_and_dropped(stand: Stand) -> None:
    await stand.own()
    assert (await stand.post("spaces", {"name": "new", "sync": True}))[0] == 200
    again = await stand.post("spaces", {"name": "new", "sync": True})
    assert reason(again) == (409, "limbo_space_exists")
    assert reason(await stand.post("spaces", {"name": "no/such", "sync": True})) == (
        400,
        "limbo_bad_space_name",
    )
    assert reason(await stand.post("spaces", {"name": "half"})) == BAD
    stand.cluster.isolate("core3")
    await stand.submit(put(KEY, VALUE, "new"), wait="submit")
    busy = await stand.ask("DELETE", "spaces/{space}", params={"space": "new"})
    assert reason(busy) == (409, "limbo_space_busy")
    assert (busy[1]["space"], busy[1]["position"]) == ("new", 1)
    stand.cluster.heal("core3")
    await until(lambda: stand.cluster.state.pending == 0)
    status, _ = await stand.ask("PUT", "spaces/{space}", {"sync": False}, params={"space": "new"})
    assert status == 200
    spaces = {space["name"]: space for space in (await stand.get("spaces"))["spaces"]}
    assert (spaces["new"]["sync"], spaces["new"]["keys"]) == (False, 1)
    assert (await stand.ask("DELETE", "spaces/{space}", params={"space": "new"}))[0] == 200
    gone = await stand.ask("DELETE", "spaces/{space}", params={"space": "new"})
    assert reason(gone) == (404, "limbo_unknown_space")


# --- the page -------------------------------------------------------------------------------------


@doors()
async def test_every_route_and_limit_is_in_the_page(stand: Stand) -> None:
    text = (ROOT / "docs" / "limbo.md").read_text(encoding="utf-8")
    for route in stand.cluster.nodes["core1"].service.routes():
        path = re.sub(r"\{\w+\}", "...", route.path)
        written = re.sub(r"\{\w+\}", "...", text)
        assert f"`{route.method} {path}`" in written, route.path
        assert route.doc.endswith(".")
    assert bodies.LIST_MAX == 1_000
    assert door.RANGE_BYTES_MAX == 4 * 1024 * 1024
    for shown in ("1,000", "4 MiB", "600 s"):
        assert shown in text, shown


@doors()
async def test_every_figure_is_explained_in_the_docs_and_no_other(stand: Stand) -> None:
    shown = set()
    for metric in stand.cluster.nodes["core1"].service.metrics():
        name = metric.name.removesuffix("_total")
        ending = "_total" if metric.kind == "counter" else ""
        shown.add((f"raftkv_limbo_{name}{ending}", metric.kind))
    assert shown == set(documented("raftkv_limbo_").items())


def test_every_setting_is_in_the_page() -> None:
    page = (ROOT / "docs" / "limbo.md").read_text("utf-8")
    for setting in SETTINGS:
        assert f"`{setting.key}`" in page, setting.key
    options = LimboOptions.__struct_fields__
    assert [name for name in options if name not in page] == []


def test_every_refusal_and_error_is_in_the_page_or_needs_no_word() -> None:
    page = (ROOT / "docs" / "limbo.md").read_text("utf-8")
    told = set(re.findall(r"`([A-Z]\w+)", page))
    kinds = {kind.__name__ for kind in (*REFUSALS, *_own_errors())}
    # Their own words are enough: they name what is wrong with the call.
    plain = {"NotAMember", "BadDeclaration", "BatchTooLarge", "SpaceExists", "UnknownSpace",
             "BadSpaceName", "TooManySpaces", "UnknownPosition", "NotAValidator"}  # fmt: skip
    assert kinds - told == plain


def _own_errors() -> list[type[Exception]]:
    return [getattr(errors, name) for name in errors.__all__ if name[0].isupper()]
