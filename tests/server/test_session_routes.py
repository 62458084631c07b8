"""Opening client sessions over HTTP: bounded for each address, refused when there is no room."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from raftkv.errors import TooManySessions
from raftkv.server.peer_rate import BURST_S, PeerRate
from raftkv.server.sessions import Sessions
from tests.server.conftest import Served


class Opener:
    """The part of a node that opens sessions."""

    def __init__(self) -> None:
        self.opened = 0
        self.full = False

    async def open_session(self, timeout_s: float | None = None) -> str:
        if self.full:
            raise TooManySessions
        self.opened += 1
        return f"{self.opened}-00000000000000aa"


@pytest.fixture
def stand() -> Iterator[tuple[Served, Opener, PeerRate]]:
    opener = Opener()
    node: Any = SimpleNamespace(foreign=opener)
    rate = PeerRate(1, lambda: 5.0)
    server = Served(routes=Sessions(node, rate=rate).routes())
    server.start()
    yield server, opener, rate
    server.stop()


def test_one_address_cannot_open_sessions_without_end(
    stand: tuple[Served, Opener, PeerRate],
) -> None:
    server, opener, rate = stand
    answers = [server.ask("POST", "/v1/sessions") for _ in range(BURST_S + 2)]
    assert [status for status, _, _ in answers] == [200] * BURST_S + [429] * 2
    assert (opener.opened, rate.refused) == (BURST_S, 2)
    _, headers, body = answers[-1]
    assert headers["retry-after"] == "1"
    answer = json.loads(body)
    assert answer["reason"] == "overloaded"
    assert "http.sessions_per_s_max" in answer["error"]


def test_without_room_a_session_is_refused_and_none_is_ended(
    stand: tuple[Served, Opener, PeerRate],
) -> None:
    server, opener, _ = stand
    opener.full = True
    status, headers, body = server.ask("POST", "/v1/sessions")
    assert (status, headers["retry-after"]) == (429, "1")
    assert "in use: open one again" in json.loads(body)["error"]


@pytest.mark.parametrize(
    "handle", ["1-0x1f", "1-+1f", "1--1f", "1-1_f", "1-%201f", "1-", "-1f", "1", "%2B1-1f", "1-1g"]
)
def test_a_handle_is_digits_and_nothing_else(
    stand: tuple[Served, Opener, PeerRate], handle: str
) -> None:
    status, _, body = stand[0].ask("GET", f"/v1/outcome?session={handle}&seq=1")
    assert (status, json.loads(body)["reason"]) == (400, "bad_request")
