"""`client.call`: requests to the routes of plugins, their answers, and when they are repeated."""

from __future__ import annotations

from typing import Any

import pytest

from raftkv import Client
from raftkv.errors import ConfigError, NotApplied, Overloaded, PeerUnreachable, Timeout
from raftkv.testing.local_cluster import free_ports
from tests.client.fake_door import HANG_UP, SILENCE, FakeDoor, Say, error, in_loop


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
        Client([first.url, second.url], timeout_s=2.0) as client,
    ):
        with pytest.raises(Timeout):
            await client.call("POST", "/v1/toy/x", {}, timeout_s=0.5)
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
        Client(door.url, timeout_s=0.3) as client,
    ):
        with pytest.raises(NotApplied, match="no_leader"):
            await client.call("POST", "/v1/toy/x", {})
    async with FakeDoor(lambda asked: Say(b"<html>")) as door, Client(door.url) as client:
        with pytest.raises(Timeout, match="is not JSON"):
            await client.call("GET", "/v1/toy/x")
