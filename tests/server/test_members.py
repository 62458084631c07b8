"""The door's verbs on members: what they pass on, and what their errors look like."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from raftkv.errors import ChangePending, MembershipRefused, NoLeader, Timeout
from raftkv.plugin import Request, Response
from raftkv.server.members import member_routes
from raftkv.server.routes import RouteTable, answer_to


class FakeVerbs:
    """Notes what it is asked for; `trouble` is raised instead."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.trouble: Exception | None = None

    async def survey(self) -> msgspec.Struct:
        return Request({}, {}, b"", "somebody")

    async def add(self, name: str, *, address: str | None = None, timeout_s: float = 60.0) -> None:
        self._note("add", name, address, timeout_s)

    async def promote(self, name: str, *, timeout_s: float = 60.0) -> None:
        self._note("promote", name, timeout_s)

    async def remove(self, name: str, *, force: bool = False, timeout_s: float = 60.0) -> None:
        self._note("remove", name, force, timeout_s)

    def _note(self, *call: Any) -> None:
        self.calls.append(call)
        if self.trouble is not None:
            raise self.trouble


class FakeNode:
    def __init__(self) -> None:
        self.membership = FakeVerbs()


def ask(node: FakeNode, method: str, path: str, body: bytes = b"") -> Response:
    found = RouteTable({"members": member_routes(node)}).find(method, path)
    assert not isinstance(found, bool), f"no route for {method} {path}"
    route, params = found
    scope = {"query_string": b"", "client": ("127.0.0.1", 1)}
    return asyncio.run(answer_to(route, scope, params, body))


def reason(response: Response) -> str:
    answer: str = json.loads(response.body)["reason"]
    return answer


def test_the_verbs_pass_on_what_they_are_given() -> None:
    node = FakeNode()
    assert ask(node, "GET", "/v1/members").body.peer == "somebody"
    body = b'{"name": "d", "address": "h:1", "timeout_s": 2}'
    assert ask(node, "POST", "/v1/members/add", body).body == {"name": "d"}
    ask(node, "POST", "/v1/members/promote", b'{"name": "d"}')
    ask(node, "POST", "/v1/members/remove", b'{"name": "d", "force": true}')
    assert node.membership.calls == [
        ("add", "d", "h:1", 2.0),
        ("promote", "d", 60.0),
        ("remove", "d", True, 60.0),
    ]


@pytest.mark.parametrize(
    ("error", "status"),
    [(MembershipRefused("wait"), 409), (NoLeader("none"), 503), (Timeout("late"), 504)],
)
def test_errors_have_their_status_and_reason(error: Any, status: int) -> None:
    node = FakeNode()
    node.membership.trouble = error
    response = ask(node, "POST", "/v1/members/add", b'{"name": "d"}')
    assert (response.status, reason(response)) == (status, error.code)
    assert str(error) in response.body.decode()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"nam": "d"}',
        b'{"name": 5}',
        b'{"name": "d", "timeout_s": 0}',
        b"[" * 9999,
    ],
)
def test_a_body_that_says_nothing_is_refused(body: bytes) -> None:
    node = FakeNode()
    response = ask(node, "POST", "/v1/members/remove", body)
    assert (response.status, reason(response)) == (400, "bad_request")
    assert not node.membership.calls


def test_other_methods_are_not_allowed() -> None:
    table = RouteTable({"members": member_routes(FakeNode())})
    assert table.find("POST", "/v1/members") is True
    assert table.find("GET", "/v1/members/add") is True
    assert table.find("GET", "/v1/members/nothing") is False


def test_a_pending_change_is_an_answer_of_its_own() -> None:
    node = FakeNode()
    node.membership.trouble = ChangePending("entry 7 is not committed")
    response = ask(node, "POST", "/v1/members/remove", b'{"name": "d"}')
    assert (response.status, reason(response)) == (504, "change_pending")
    assert json.loads(response.body)["error"] == "entry 7 is not committed"
