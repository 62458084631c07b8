"""The end of a link: what was sent before leaves first, but not for ever."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from raftkv.raft import wire
from raftkv.raft.link import CLOSE_TIMEOUT_S, Link
from raftkv.raft.transport import Hub
from tests.fakes import FakeRuntime

HELLO = wire.Hello(wire.PROTOCOL_VERSION, "raft", "c", "c1", "core1-aa", "core", "core1:1")


class Owner:
    """Greets."""

    def hello(self, purpose: str, wanted: str = "") -> wire.Hello:
        return HELLO


class SlowTransport(asyncio.Transport):
    """A socket whose peer reads only with `read_all`. It ends as asyncio's does."""

    def __init__(self, link: Link, runtime: FakeRuntime) -> None:
        super().__init__()
        self.waiting = b""
        self.aborted = False
        self._link = link
        self._runtime = runtime
        self._closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.waiting += bytes(data)

    def get_write_buffer_size(self) -> int:
        return len(self.waiting)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._closing = True
        if not self.waiting:
            self._runtime.call_soon(self._link.connection_lost, None)

    def abort(self) -> None:
        self.waiting, self.aborted, self._closing = b"", True, True
        self._runtime.call_soon(self._link.connection_lost, None)

    def read_all(self) -> None:
        """The peer takes what waits."""
        self.waiting = b""
        if self._closing:
            self._runtime.call_soon(self._link.connection_lost, None)


def closed_link() -> tuple[FakeRuntime, Hub, Link, SlowTransport]:
    """A link that is closed while its Hello waits for the peer."""
    runtime = FakeRuntime()
    hub = Hub(cast(Any, runtime), cast(Any, Owner()), 1 << 20)
    link = Link(hub, "core2:1", "raft", "core2")
    transport = SlowTransport(link, runtime)
    link.connection_made(transport)
    assert transport.waiting
    link.close()
    runtime.run()
    return runtime, hub, link, transport


def test_a_closed_link_whose_peer_reads_nothing_ends_after_a_while() -> None:
    runtime, hub, link, transport = closed_link()
    runtime.advance(CLOSE_TIMEOUT_S - 0.1)
    assert not link.closed.done(), "the peer may still take it"
    assert hub.link_count == 1
    runtime.advance(0.2)
    assert transport.aborted
    assert link.closed.done()
    assert hub.link_count == 0
    assert hub.closed_for_cause == 0, "the peer has broken no rule"


def test_a_closed_link_whose_peer_reads_is_not_cut() -> None:
    runtime, hub, link, transport = closed_link()
    transport.read_all()
    runtime.run()
    assert link.closed.done()
    runtime.advance(2 * CLOSE_TIMEOUT_S)
    assert not transport.aborted
    assert hub.link_count == 0
