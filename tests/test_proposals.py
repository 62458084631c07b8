"""proposals.py: a bad command is dropped, counted and reported; those beside it are taken."""

from __future__ import annotations

import logging

import msgspec
import pytest

from raftkv.proposals import Proposals

BYTES_MAX = 200
GOOD = msgspec.msgpack.encode((1, 2, 2, "kv", b"x"))
LARGE = msgspec.msgpack.encode((1, 3, 2, "kv", b"x" * BYTES_MAX))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_what_fits_is_taken_as_it_is() -> None:
    proposals = Proposals(BYTES_MAX, Clock())
    commands = [GOOD, GOOD]
    assert proposals.fit("a", commands) is commands
    assert proposals.rejected == 0


@pytest.mark.parametrize("bad", [b"", b"garbage", b"\x95\x01\x01\x01\xa2kv", LARGE])
def test_a_bad_command_is_dropped_and_the_others_are_not(bad: bytes) -> None:
    proposals = Proposals(BYTES_MAX, Clock())
    assert proposals.fit("a", [GOOD, bad, GOOD]) == [GOOD, GOOD]
    assert proposals.rejected == 1


def test_the_log_names_the_sender_and_the_limit_once_in_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    proposals = Proposals(BYTES_MAX, clock)
    with caplog.at_level(logging.WARNING, "raftkv.proposals"):
        for _ in range(50):
            proposals.fit("b", [LARGE])
        clock.now = 100.0
        proposals.fit("b", [LARGE])
    first, second = (record.getMessage() for record in caplog.records)
    assert "by b" in first
    assert f"limits.command_bytes_max of this node, {BYTES_MAX} bytes" in first
    assert "49 times more" in second
