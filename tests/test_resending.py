"""resending.py: what is due, and that a look costs no step for each command under way."""

from __future__ import annotations

import pytest

from raftkv.resending import NOT_SENT, Resending, pieces

RESEND_S = 1.0


class Item:
    def __init__(self, name: str) -> None:
        self.name = name
        self.tries = 0
        self.sent_at = NOT_SENT
        self.looks = 0
        self._answered = False

    @property
    def answered(self) -> bool:
        self.looks += 1
        return self._answered

    @answered.setter
    def answered(self, value: bool) -> None:
        self._answered = value

    def __repr__(self) -> str:
        return self.name


def resending() -> Resending[Item]:
    return Resending(RESEND_S, lambda item: not item.answered)


def items(count: int) -> list[Item]:
    return [Item(f"i{number}") for number in range(count)]


def test_the_pause_doubles_up_to_eight_times() -> None:
    sent, (item,) = resending(), items(1)
    now, pauses = 0.0, []
    for _ in range(5):
        sent.left([item], now)
        left_at = now
        while not sent.due(now):
            now += 0.25
        pauses.append(now - left_at)
    assert pauses == [2.0, 4.0, 8.0, 8.0, 8.0]


def test_what_is_answered_or_has_left_again_is_not_due() -> None:
    sent, (first, second, third) = resending(), items(3)
    sent.left([first, second, third], 0.0)
    first.answered = True
    sent.left([second], 1.0)
    assert sent.due(2.0) == [third]
    assert sent.due(4.9) == []
    assert sent.due(5.0) == [second]


def test_what_leaves_together_after_different_numbers_of_attempts_waits_its_own_time() -> None:
    sent, (once, twice) = resending(), items(2)
    sent.left([twice], 0.0)
    sent.left([once, twice], 1.0)
    assert sent.due(3.0) == [once]
    assert sent.due(5.0) == [twice]


def test_a_way_that_is_shut_costs_one_attempt_at_a_time() -> None:
    sent = resending()
    flights = [items(2) for _ in range(100)]
    for flight in flights:
        sent.stalled(flight, 0.0)
    tried: list[list[Item]] = []

    def fail(some: list[Item]) -> bool:
        tried.append(some)
        return False

    for _ in range(10):
        sent.retry_stalled(fail)
    assert tried == [flights[0]] * 10

    def leave(some: list[Item]) -> bool:
        sent.left(some, 1.0)
        return True

    sent.retry_stalled(leave)
    assert sent.due(3.0) == [item for flight in flights for item in flight]
    sent.retry_stalled(fail)
    assert len(tried) == 10


def test_flights_that_are_answered_are_dropped_before_they_are_due() -> None:
    sent = resending()
    for number in range(1000):
        flight = items(3)
        sent.left(flight, number / 1000)
        for item in flight:
            item.answered = True
    assert len(sent) <= 2


def test_each_command_is_looked_at_a_constant_number_of_times() -> None:
    sent, flights = resending(), [items(50) for _ in range(100)]
    for number, flight in enumerate(flights):
        sent.left(flight, number / 1000)
        sent.due(number / 1000)
    for look in range(1000):
        assert sent.due(1.0 + look / 1000) == []
    everything = [item for flight in flights for item in flight]
    looks = sorted(item.looks for item in everything)
    assert looks[-2] <= 5, "only the oldest is looked at again"


def test_nothing_is_due_after_everything_was_forgotten() -> None:
    sent, (left, stalled) = resending(), items(2)
    sent.left([left], 0.0)
    sent.stalled([stalled], 0.0)
    sent.clear()
    assert sent.due(100.0) == []
    sent.retry_stalled(lambda some: pytest.fail("it was forgotten"))


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
