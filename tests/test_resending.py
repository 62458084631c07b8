"""resending.py: what is due, and that a look costs no step for each command under way."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from raftkv.resending import NOT_SENT, Resending, pieces
from tests.fakes import FakeRuntime

RESEND_S = 1.0


class Item:
    def __init__(self, number: int) -> None:
        self.encoded = b"%03d" % number
        self.sends = self.tries = 0
        self.sent_at = NOT_SENT
        self.looks = 0
        self.is_answered = False

    @property
    def answered(self) -> bool:
        self.looks += 1
        return self.is_answered


class Sender:
    """Messages of at most two commands, over a way that is open or shut."""

    def __init__(self) -> None:
        self.runtime = FakeRuntime(now=0.0)
        self.way_open = True
        self.tried: list[list[bytes]] = []
        self.resending: Resending[Item] = Resending(
            self.runtime,  # type: ignore[arg-type]
            RESEND_S,
            6,
            self.send,
            lambda item: not item.answered,
        )

    def send(self, commands: Sequence[bytes]) -> bool:
        self.tried.append(list(commands))
        return self.way_open

    def due_at(self, now: float) -> list[bytes]:
        self.runtime.now = now
        return [item.encoded for item in self.resending.due()]


def items(count: int) -> list[Item]:
    return [Item(number) for number in range(count)]


def test_the_pause_doubles_up_to_eight_times() -> None:
    sender, some = Sender(), items(1)
    now, pauses = 0.0, []
    for _ in range(5):
        sender.resending.transmit(some)
        left_at = now
        while not sender.due_at(now):
            now += 0.25
        pauses.append(now - left_at)
    assert pauses == [2.0, 4.0, 8.0, 8.0, 8.0]
    assert sender.resending.resends == 4


def test_what_is_answered_or_has_left_again_is_not_due() -> None:
    sender, (first, second, third) = Sender(), items(3)
    sender.resending.transmit([first, second, third])
    first.is_answered = True
    sender.runtime.now = 1.0
    sender.resending.transmit([second])
    assert sender.due_at(2.0) == [third.encoded]
    assert sender.due_at(4.9) == []
    assert sender.due_at(5.0) == [second.encoded]


def test_what_leaves_together_after_different_numbers_of_attempts_waits_its_own_time() -> None:
    sender, (once, twice) = Sender(), items(2)
    sender.resending.transmit([twice])
    sender.runtime.now = 1.0
    sender.resending.transmit([once, twice])
    assert sender.due_at(3.0) == [once.encoded]
    assert sender.due_at(5.0) == [twice.encoded]


def test_a_way_that_is_shut_costs_one_attempt_at_a_time() -> None:
    sender, some = Sender(), items(200)
    sender.way_open = False
    sender.resending.transmit(some)
    for _ in range(10):
        sender.resending.retry_stalled()
    assert sender.tried == [[b"000", b"001"]] * 11
    assert not any(item.sends for item in some)
    sender.way_open = True
    sender.runtime.now = 1.0
    sender.resending.retry_stalled()
    assert [item.sends for item in some] == [1] * 200
    assert sender.due_at(3.0) == [item.encoded for item in some]
    sender.tried.clear()
    sender.resending.retry_stalled()
    assert sender.tried == []


def test_what_comes_later_does_not_overtake_what_could_not_leave() -> None:
    """A leader that had no room for one message has room for the next one."""
    sender, (first, second, third) = Sender(), items(3)
    sender.way_open = False
    sender.resending.transmit([first])
    sender.resending.transmit([second])
    sender.way_open = True
    sender.tried.clear()
    sender.resending.transmit([third])
    assert sender.tried == [[b"000"], [b"001"], [b"002"]]
    assert [item.sends for item in (first, second, third)] == [1, 1, 1]


def test_flights_that_are_answered_are_dropped_before_they_are_due() -> None:
    sender = Sender()
    for number in range(1000):
        some = items(3)
        sender.runtime.now = number / 1000
        sender.resending.transmit(some)
        for item in some:
            item.is_answered = True
    assert len(sender.resending) <= 2


def test_only_the_oldest_command_is_looked_at_again() -> None:
    sender, some = Sender(), items(500)
    sender.resending.transmit(some)
    for look in range(1000):
        assert sender.due_at(1.0 + look / 1000) == []
    assert sorted(item.looks for item in some)[-2] <= 5


def test_nothing_is_due_after_everything_was_forgotten() -> None:
    sender, (left, stalled) = Sender(), items(2)
    sender.resending.transmit([left])
    sender.way_open = False
    sender.resending.transmit([stalled])
    sender.resending.clear()
    assert sender.due_at(100.0) == []
    sender.tried.clear()
    sender.resending.retry_stalled()
    assert sender.tried == []


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([5, 5], [[5, 5]]),
        ([5, 6], [[5], [6]]),
        ([40, 1, 40], [[40], [1], [40]]),
    ],
)
def test_pieces_fit_into_the_limit(sizes: list[int], expected: list[list[int]]) -> None:
    assert pieces(sizes, lambda size: size, 10) == expected
