"""Whatever is lost on the way: what the client says of a write agrees with what was done.

A model of the cluster stands behind a fake door: it keeps one answer per (session, number), as
raftkv/state/sessions.py does, and counts how often each write takes effect. Hypothesis chooses what
happens to each delivery.
"""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from raftkv import Client
from raftkv.client import calls
from raftkv.client.sessions import NUMBERS_MAX, Numbered, Session
from raftkv.errors import NotApplied, Timeout
from tests.client.fake_door import HANG_UP, Asked, FakeDoor, Say, error

# What happens to a delivery: served; lost on the way in; applied, and the answer lost; refused by
# a node without a leader; the outcome unknown to the node; the session ended before it.
FATES = ("ok", "ok", "lost", "silent", "no_leader", "unknown", "expired")


class ModelCluster:
    """Applies each number of an open session once."""

    def __init__(self, fates: list[str]) -> None:
        self.fates = fates
        self.effects: dict[str, int] = {}
        self.revision = 1
        self._sessions: dict[str, dict[int, int]] = {}
        self._serial = 0

    def answer(self, asked: Asked) -> Any:
        if asked.path == "/v1/sessions":
            self._serial += 1
            handle = f"{self._serial}-5ec7e7"
            self._sessions[handle] = {}
            return Say({"session": handle})
        fate = self.fates.pop(0) if self.fates else "ok"
        if fate == "lost":
            return HANG_UP
        if fate == "no_leader":
            return error("no_leader", 503)
        if fate == "expired":
            self._sessions.clear()
        revision = self._apply(asked)
        if fate == "silent":
            return HANG_UP
        if fate == "unknown":
            return error("timeout", 504)
        if revision is None:
            return error("session_expired", 412)
        return Say({"header": {"revision": str(revision)}})

    def _apply(self, asked: Asked) -> int | None:
        session, seq, floor = asked.numbers
        assert floor <= seq
        answers = self._sessions.get(session)
        if answers is None:
            return None
        for number in [number for number in answers if number < floor]:
            del answers[number]
        if seq not in answers:
            self.revision += 1
            value = asked.body["value"]
            self.effects[value] = self.effects.get(value, 0) + 1
            answers[seq] = self.revision
        return answers[seq]


async def judge(fates: list[str], writes: int, together: bool) -> None:
    cluster = ModelCluster(list(fates))
    async with (
        FakeDoor(cluster.answer) as first,
        FakeDoor(cluster.answer) as second,
        Client([first.url, second.url], timeout_s=2.0) as client,
    ):

        async def write(number: int) -> tuple[str, int]:
            try:
                done = await client.kv.put(b"k", b"%d" % number)
            except Timeout:
                return "unknown", 0
            except NotApplied:
                return "not applied", 0
            return "applied", done.revision

        if together:
            told = list(await asyncio.gather(*(write(number) for number in range(writes))))
        else:
            told = [await write(number) for number in range(writes)]
    bodies = {
        asked.body["value"]
        for door in (first, second)
        for asked in door.asked
        if asked.path == "/v3/kv/put"
    }
    assert all(cluster.effects.get(body, 0) <= 1 for body in bodies), fates
    applied = [revision for verdict, revision in told if verdict == "applied"]
    assert len(set(applied)) == len(applied)
    unknown = sum(verdict == "unknown" for verdict, _ in told)
    effects = sum(cluster.effects.values())
    assert len(applied) <= effects <= len(applied) + unknown
    if "expired" not in fates:
        assert len(applied) == writes  # the faults end before the deadline


@settings(max_examples=60)
@given(
    fates=st.lists(st.sampled_from(FATES), max_size=6),
    writes=st.integers(1, 4),
    together=st.booleans(),
)
def test_no_write_takes_effect_twice_and_none_is_called_what_it_is_not(
    fates: list[str], writes: int, together: bool
) -> None:
    shortest, calls.REST_S_MIN = calls.REST_S_MIN, 0.001  # type: ignore[misc]
    try:
        asyncio.run(judge(fates, writes, together))
    finally:
        calls.REST_S_MIN = shortest  # type: ignore[misc]


@given(st.lists(st.tuples(st.sampled_from(("take", "done", "give up", "wait")), st.integers(0, 9))))
def test_the_floor_never_falls_and_never_passes_a_number_that_waits(
    steps: list[tuple[str, int]],
) -> None:
    now = [0.0]
    session = Session("5-ab", lambda: now[0])
    waiting: list[int] = []
    given_up: dict[int, float] = {}
    floor = session.floor
    for step, which in steps:
        if step == "take":
            waiting.append(session.take())
        elif step == "wait":
            now[0] += which * 5.0
        elif waiting:
            seq = waiting.pop(which % len(waiting))
            if step == "done":
                session.done(seq)
            else:
                session.give_up(seq, Numbered(b"POST", b"/path", b"body"))
                given_up[seq] = now[0] + 30.0
        assert floor <= session.floor
        floor = session.floor
        assert all(floor <= seq for seq in waiting)
        for seq, until in given_up.items():
            assert (session.given_up(seq) is not None) or until <= now[0] or seq < floor
    assert not session.full
    assert NUMBERS_MAX < 65_536
    assert session.headers(session.take()).startswith(b"raftkv-session: 5-ab\r\nraftkv-seq: ")
