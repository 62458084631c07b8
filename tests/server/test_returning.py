"""When memory that was held for clients is returned to the system."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from raftkv.server import door
from raftkv.server.returning import FALL_BYTES, PAUSE_S, Returning
from tests.server.conftest import Served
from tests.server.test_tls import until


def test_it_is_returned_after_a_fall_and_not_again_and_again() -> None:
    returning = Returning()
    assert not returning.is_due(3 * FALL_BYTES, 0.0)
    assert not returning.is_due(2 * FALL_BYTES + 1, 1.0)
    assert returning.is_due(2 * FALL_BYTES, 2.0)
    # Less is held once more, and soon after.
    assert not returning.is_due(0, 3.0)
    assert returning.is_due(0, 2.0 + PAUSE_S)
    assert not returning.is_due(0, 2.0 + 2 * PAUSE_S)


def test_it_is_returned_in_a_thread_whose_delay_hinders_no_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Slow clients are cut off by the same task, and the program may use up the loop's threads."""
    begun, gate = list[Any](), threading.Event()

    def wait() -> None:
        begun.append(1)
        gate.wait(10)

    monkeypatch.setattr(door, "trim", wait)
    monkeypatch.setattr(door, "CHECK_S", 0.01)
    server = Served()
    server.start()
    try:

        async def moved(size: int) -> None:
            server.app.outgoing.moved(size)

        server.run(moved(FALL_BYTES))
        until(server, lambda _: server.door._returning._most == FALL_BYTES)
        assert not begun
        server.run(moved(-FALL_BYTES))
        until(server, lambda _: begun)
        server.run(moved(5))
        until(server, lambda _: server.door._returning._most == 5)
    finally:
        gate.set()
        server.stop()
