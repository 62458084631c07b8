"""`client.call`: requests to the routes of plugins, their answers, and when they are repeated."""

from __future__ import annotations

from typing import Any

import pytest

from raftkv import Client
from raftkv.errors import ConfigError, NotApplied, Overloaded, PeerUnreachable, Timeout
from raftkv.testing.local_cluster import free_ports
from tests.client.fake_door import (
    HANG_UP,
    SILENCE,
    Asked,
    FakeDoor,
    Say,
    error,
    in_loop,
    out_of_time,
)
from tests.clocks import LONG_S


@in_loop
async def test_the_answer_comes_as_it_is_a_refusal_too() -> None:
    said: list[Any] = [Say({"a": [1]}), error("toy_no", 409, why="so"), error("toy_late", 504)]
    async with FakeDoor(lambda asked: said.pop(0)) as door, Client(door.url) as client:
        good = await client.call("POST", "/v1/toy/x%2Fy?z=1", {"b": 2})
        assert (good.status, good.body, good.good) == (200, {"a": [1]}, True)
        refused = await client.call("GET", "/v1/toy/x")
        assert (refused.status, refused.body["why"], refused.good) == (409, "so", False)
        # A plugin's own word for what is not known is an answer: it says more than `Timeout`.
        late = await client.call("POST", "/v1/toy/x", {}, repeat=True)
        assert (late.status, late.body["reason"]) == (504, "toy_late")
        assert [(each.method, each.path, each.body) for each in door.asked] == [
            ("POST", "/v1/toy/x%2Fy?z=1", {"b": 2}),
            ("GET", "/v1/toy/x", None),
            ("POST", "/v1/toy/x", {}),
        ]


@pytest.mark.parametrize("broken", [HANG_UP, SILENCE, error("timeout", 504), Say(b"?", 502)])
@in_loop
async def test_what_may_have_been_carried_out_is_repeated_only_if_that_is_safe(broken: Any) -> None:
    async with (
        FakeDoor(lambda asked: broken) as first,
        FakeDoor(lambda asked: Say({"ok": 1})) as second,
        Client([first.url, second.url]) as client,
    ):
        doing = client.call("POST", "/v1/toy/x", {}, timeout_s=LONG_S)
        with pytest.raises(Timeout):
            await out_of_time(doing, lambda: first.asked and broken == SILENCE)
        assert second.asked == []
    async with (
        FakeDoor(lambda asked: broken) as first,
        FakeDoor(lambda asked: Say({"ok": 1})) as second,
        Client([first.url, second.url], timeout_s=2.0) as client,
    ):
        assert (await client.call("POST", "/v1/toy/x", {}, repeat=True)).good
        assert len(first.asked) == len(second.asked) == 1


@in_loop
async def test_what_was_not_carried_out_goes_to_the_next_endpoint() -> None:
    nobody = f"http://127.0.0.1:{free_ports(1)[0]}"
    async with (
        FakeDoor(lambda asked: error("no_leader", 503)) as first,
        FakeDoor(lambda asked: Say({"ok": 1})) as second,
        Client([nobody, first.url, second.url]) as client,
    ):
        assert (await client.call("POST", "/v1/toy/x", {})).good
        assert (len(first.asked), len(second.asked)) == (1, 1)


@in_loop
async def test_one_endpoint_is_asked_once() -> None:
    nobody = f"http://127.0.0.1:{free_ports(1)[0]}"
    async with (
        FakeDoor(lambda asked: error("overloaded", 429)) as first,
        FakeDoor(lambda asked: Say({"ok": 1})) as second,
        Client([first.url, second.url, nobody]) as client,
    ):
        with pytest.raises(Overloaded):
            await client.call("POST", "/v1/toy/x", {}, at=first.url, repeat=True)
        with pytest.raises(PeerUnreachable):
            await client.call("GET", "/v1/toy/x", at=nobody)
        assert (await client.call("GET", "/v1/toy/x", at=second.url + "/")).good
        with pytest.raises(ConfigError, match="not an endpoint of this client"):
            await client.call("GET", "/v1/toy/x", at="http://127.0.0.1:1")
        assert (len(first.asked), len(second.asked)) == (1, 1)


@in_loop
async def test_without_an_answer_the_last_reason_is_told() -> None:
    async with (
        FakeDoor(lambda asked: error("no_leader", 503)) as door,
        Client(door.url, timeout_s=LONG_S) as client,
    ):
        with pytest.raises(NotApplied, match="no_leader"):
            await out_of_time(client.call("POST", "/v1/toy/x", {}), lambda: client.retries)
    async with FakeDoor(lambda asked: Say(b"<html>")) as door, Client(door.url) as client:
        with pytest.raises(Timeout, match="is not JSON"):
            await client.call("GET", "/v1/toy/x")


# Under a number -----------------------------------------------------------------------------------

SESSION = Say({"session": "7-abc"})


def verdict(body: Any, status: int = 200) -> Say:
    return Say(body, status, numbered=True)


def numbered(*said: Any) -> Any:
    """What a door with sessions answers: these to what is numbered, one after the other."""
    left = list(said)

    def answer(asked: Asked) -> Any:
        if asked.path == "/v1/sessions":
            return SESSION
        if asked.path.startswith("/v1/outcome"):
            return Say({"verdict": "applied"})
        return left.pop(0)

    return answer


@pytest.mark.parametrize("broken", [HANG_UP, SILENCE, error("timeout", 504), Say(b"?", 502)])
@in_loop
async def test_what_is_done_once_is_sent_until_it_is_answered(broken: Any) -> None:
    async with (
        FakeDoor(numbered(broken)) as first,
        FakeDoor(numbered(verdict({"n": 1}, 201), verdict({"reason": "toy_no"}, 409))) as second,
        Client([first.url, second.url], timeout_s=3.0) as client,
    ):
        done = await client.call("POST", "/v1/toy/x", {"b": 2}, once=True)
        assert (done.status, done.body) == (201, {"n": 1})
        refused = await client.call("PUT", "/v1/toy/y", once=True)
        assert (refused.status, refused.body["reason"]) == (409, "toy_no")
        sent = [each for door in (first, second) for each in door.asked if "toy" in each.path]
        assert [(each.method, each.path, each.body) for each in sent] == [
            ("POST", "/v1/toy/x", {"b": 2}),
            ("POST", "/v1/toy/x", {"b": 2}),
            ("PUT", "/v1/toy/y", None),
        ]
        assert [each.numbers for each in sent] == [
            ("7-abc", 1, 1),
            ("7-abc", 1, 1),
            ("7-abc", 2, 2),
        ]


@in_loop
async def test_what_became_of_it_can_be_asked_and_its_answer_with_it() -> None:
    async with FakeDoor(numbered(SILENCE, verdict({"n": 1}))) as door:
        async with Client(door.url, timeout_s=LONG_S) as client:
            deleting = client.call("DELETE", "/v1/toy/x", once=True)
            with pytest.raises(Timeout) as late:
                await out_of_time(deleting, lambda: "/v1/toy/x" in door.paths())
            assert (late.value.session, late.value.seq) == (7, 1)
            outcome = await client.outcome(7, 1)
            assert outcome.verdict == "applied"
            assert outcome.result.body == {"n": 1}
            assert {(each.method, each.numbers) for each in door.asked if "toy" in each.path} == {
                ("DELETE", ("7-abc", 1, 1))
            }


@pytest.mark.parametrize(
    "said",
    [
        Say({"n": 1}),  # of a node that does not know numbers there
        Say({"error": "no such page"}, 404),
        error("not_found", 404),
        error("bad_request", 400),
        error("method_not_allowed", 405),
        error("Forbidden", 403),
        error("unimplemented", 501),
        error("too_large", 413),
    ],
)
@in_loop
async def test_what_is_no_verdict_is_an_answer_only_if_nothing_was_delivered(said: Say) -> None:
    async with FakeDoor(numbered(said)) as door, Client(door.url) as client:
        assert (await client.call("POST", "/v1/toy/x", {}, once=True)).status == said.status
    async with FakeDoor(numbered(HANG_UP, said, said)) as door, Client(door.url) as client:
        with pytest.raises(Timeout) as late:
            await client.call("POST", "/v1/toy/x", {}, once=True)
        assert late.value.seq == 1
        assert (await client.outcome(7, 1)).result is None


@in_loop
async def test_a_defect_behind_a_number_may_have_come_too_late() -> None:
    """The handler may have proposed before it failed: the number is asked again."""
    async with FakeDoor(numbered(error("internal", 500), verdict({}))) as door:
        async with Client(door.url) as client:
            assert (await client.call("POST", "/v1/toy/x", {}, once=True)).good
            assert [each.numbers[1] for each in door.asked if "toy" in each.path] == [1, 1]


@in_loop
async def test_a_session_that_has_ended_is_replaced_if_nothing_was_delivered() -> None:
    ended = verdict({"reason": "session_expired", "error": "it ended"}, 409)
    async with FakeDoor(numbered(ended, verdict({}))) as door, Client(door.url) as client:
        assert (await client.call("POST", "/v1/toy/x", {}, once=True)).good
        assert [each.path for each in door.asked].count("/v1/sessions") == 2
    async with FakeDoor(numbered(HANG_UP, ended)) as door, Client(door.url) as client:
        with pytest.raises(Timeout):
            await client.call("POST", "/v1/toy/x", {}, once=True)


@in_loop
async def test_a_plugins_refusal_is_told_by_its_code_and_text() -> None:
    refusal = {"verdict": "refused", "reason": "toy_no", "detail": "not today", "args": ["x"]}

    def answer(asked: Asked) -> Any:
        if asked.path == "/v1/sessions":
            return SESSION
        return Say(refusal) if asked.path.startswith("/v1/outcome") else HANG_UP

    async with FakeDoor(answer) as door, Client(door.url, timeout_s=LONG_S) as client:
        doing = client.call("POST", "/v1/toy/x", {}, once=True)
        with pytest.raises(Timeout):
            await out_of_time(doing, lambda: client.retries)
        outcome = await client.outcome(7, 1)
        assert outcome.verdict == "refused"
        assert str(outcome.result) == "toy_no: not today"


@in_loop
async def test_what_cannot_be_done_once_is_refused_at_once() -> None:
    async with FakeDoor(numbered()) as door, Client(door.url) as client:
        for method, more in (("GET", {}), ("POST", {"at": door.url}), ("POST", {"repeat": True})):
            with pytest.raises(ValueError, match="once is for what changes something"):
                await client.call(method, "/v1/toy/x", once=True, **more)  # type: ignore[arg-type]
        assert door.asked == []
