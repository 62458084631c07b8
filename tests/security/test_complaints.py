"""complaints.py: hostile peers get a line each, and not the disk."""

from __future__ import annotations

from raftkv.raft.complaints import BURST_LINES, Complaints
from raftkv.repeats import REPEAT_S


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


def test_each_accepted_connection_gets_its_line_until_it_is_a_flood() -> None:
    clock = Clock()
    complaints = Complaints(clock)
    lines = [complaints.line(f"10.0.0.1:{n}", "", "no TLS") for n in range(BURST_LINES + 50)]
    said = [line for line in lines if line is not None]
    assert len(said) == BURST_LINES
    assert said[3] == "closing a connection from 10.0.0.1:3: no TLS"
    assert lines[BURST_LINES:] == [None] * 50
    clock.now += 2.5
    first = complaints.line("10.0.0.2:1", "", "no TLS")
    assert first is not None
    assert "50 more connections were closed" in first
    assert complaints.line("10.0.0.2:2", "", "no TLS") is not None
    assert complaints.line("10.0.0.2:3", "", "no TLS") is None


def test_a_dialled_node_is_named_when_the_reason_is_new_and_once_in_a_while() -> None:
    clock = Clock()
    complaints = Complaints(clock)
    line = complaints.line("h:1", "core2", "expired")
    assert line == "closing the connection to core2 at h:1: expired"
    assert complaints.line("h:1", "core2", "expired") is None
    assert complaints.line("h:1", "core3", "expired") is not None
    assert complaints.line("h:1", "core2", "another name") is not None
    clock.now += REPEAT_S
    assert complaints.line("h:1", "core2", "another name") is not None
