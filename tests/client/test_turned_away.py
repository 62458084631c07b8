"""A node that turns a request away by its host has not looked at the write: the next is asked."""

from __future__ import annotations

from typing import Any

from raftkv import Client

from .fake_door import FakeDoor, Say, error, in_loop

UNKNOWN = Say(
    {"error": "the host is not known", "code": 7, "reason": "unknown_host", "detail": "add it"}, 421
)
OK = Say({"header": {"revision": "5"}})


@in_loop
async def test_a_write_without_a_session_goes_to_the_next_endpoint() -> None:
    async with FakeDoor(lambda asked: UNKNOWN) as bad, FakeDoor(lambda asked: OK) as good:
        urls = [bad.url, good.url]
        async with Client(urls, timeout_s=3, exactly_once=False) as client:
            assert (await client.kv.put(b"k", b"v")).revision == 5


@in_loop
async def test_a_write_that_was_turned_away_goes_on_under_a_new_session() -> None:
    opened = 0

    def answer(asked: Any) -> Say:
        nonlocal opened
        if asked.path == "/v1/sessions":
            opened += 1
            return Say({"session": f"{opened}-ab"})
        if asked.headers["raftkv-session"].startswith("1-"):
            return error("session_expired", 409, args=["gone"])
        return OK

    async with FakeDoor(lambda asked: UNKNOWN) as bad, FakeDoor(answer) as good:
        async with Client([bad.url, good.url], timeout_s=3) as client:
            caller = client._caller
            caller._current = 1
            await caller.sessions.current(caller.deadline(None))
            caller._current = 0
            caller._places[0].rests_until = 0.0
            assert (await client.kv.put(b"k", b"v")).revision == 5
