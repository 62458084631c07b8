"""Connections without a handshake: bounded, and no address takes the places of the others."""

from __future__ import annotations

from typing import Any

import pytest

from raftkv.raft import transport
from raftkv.raft.transport import Hub
from tests.fakes import FakeRuntime

MAX = 4


class Pending:
    """An accepted link that has said nothing."""

    dialled = None
    wanted = ""

    def __init__(self, source: str) -> None:
        self.source = source
        self.aborted = False

    @property
    def peer_address(self) -> str:
        return f"{self.source}:1"

    def abort(self) -> None:
        self.aborted = True


def test_the_address_with_most_pending_links_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "PENDING_LINKS_MAX", MAX)
    owner: Any = None
    hub = Hub(FakeRuntime(), owner, 1024)
    honest = Pending("10.0.0.1")
    hub.opened(honest)  # type: ignore[arg-type]
    flood = [Pending("10.0.0.9") for _ in range(20)]
    for link in flood:
        hub.opened(link)  # type: ignore[arg-type]
    assert not honest.aborted
    assert [link.aborted for link in flood] == [True] * (20 - MAX + 1) + [False] * (MAX - 1)
    # Among addresses that have equally many the oldest goes.
    late = [Pending(f"10.0.1.{n}") for n in range(MAX)]
    for link in late:
        hub.opened(link)  # type: ignore[arg-type]
    assert sum(not link.aborted for link in (honest, *flood, *late)) == MAX
    assert hub.over_pending_max == 1 + len(flood) + len(late) - MAX
