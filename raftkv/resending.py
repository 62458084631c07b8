"""When commands without an answer are sent again, without a look at all that are under way.

What has left together waits together: a *flight*. All flights of commands with the same number of
attempts wait equally long, so they are due in the order in which they left, and each number of
attempts has one queue. A command costs a step when it leaves and a step when its flight is dropped
or is due; a look costs a step for each attempt, however many commands are under way.

A flight that could not leave is *stalled*: the oldest one is tried again, and the others once that
leaves, so the way being shut costs one attempt at a time. What comes later leaves behind them, or
commands would overtake earlier ones of their session as soon as there is room.

A command may leave again for another reason, or be answered. Then it stays in its former flights
and counts for nothing there: a flight holds what left at its own time only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from .runtime import Runtime

__all__ = ["ATTEMPTS_TOLD", "NOT_SENT", "Resending", "pieces"]

# The pause doubles with every attempt, up to this one.
ATTEMPTS_TOLD: Final = 3
# When a command left that must not be sent again by itself.
NOT_SENT: Final = -1.0


class Sendable(Protocol):
    """A command on its way."""

    encoded: bytes
    #: Copies that have left, and may be applied.
    sends: int
    #: Attempts to send it.
    tries: int
    #: When the last one was made.
    sent_at: float


T = TypeVar("T", bound=Sendable)


class _Flight(Generic[T]):
    """What left at one time."""

    __slots__ = ("items", "left_at", "position")

    def __init__(self, items: list[T], left_at: float) -> None:
        self.items = items
        self.left_at = left_at
        # Those before it are answered, or have left again.
        self.position = 0


class Resending(Generic[T]):
    """The flights of one sender.

    `send` hands encoded commands, `bytes_max` at a time, towards the leader, or gives False.
    `wants(item)`: it has no answer and a caller waits for one. The first pause is twice `resend_s`.
    """

    def __init__(
        self,
        runtime: Runtime,
        resend_s: float,
        bytes_max: int,
        send: Callable[[Sequence[bytes]], bool],
        wants: Callable[[T], bool],
    ) -> None:
        self._monotonic = runtime.monotonic
        self._bytes_max = bytes_max
        self._send = send
        #: Commands that were sent again.
        self.resends = 0
        self._pauses_s = [resend_s * 2**attempt for attempt in range(1, ATTEMPTS_TOLD + 1)]
        self._wants = wants
        self._queues: list[deque[_Flight[T]]] = [deque() for _ in self._pauses_s]
        self._stalled: deque[_Flight[T]] = deque()

    def __len__(self) -> int:
        """Flights that are held."""
        return len(self._stalled) + sum(map(len, self._queues))

    def transmit(self, items: Iterable[T]) -> None:
        """Send in pieces that fit into one message between nodes, until one cannot leave."""
        items = list(items)
        if not items:
            return
        if self._stalled:
            self.retry_stalled()
            if self._stalled:
                for piece in pieces(items, _encoded_size, self._bytes_max):
                    self._stall(piece)
                return
        encoded = [item.encoded for item in items]
        if sum(map(len, encoded)) <= self._bytes_max:
            if self._send(encoded):
                self._left(items)
            else:
                self._stall(items)
            return
        way_open = True
        for piece in pieces(items, _encoded_size, self._bytes_max):
            way_open = way_open and self._transmit(piece)
            if not way_open:
                self._stall(piece)

    def restart(self, items: Iterable[T]) -> None:
        """Send these now, and forget what is due later: what has left before may be lost."""
        self.clear()
        self.transmit(items)

    def _transmit(self, piece: list[T]) -> bool:
        if not self._send([item.encoded for item in piece]):
            return False
        self._left(piece)
        return True

    def _left(self, items: list[T]) -> None:
        """Note which commands have left: only the others may be called not applied."""
        now = self._monotonic()
        before, mixed = items[0].tries, False
        for item in items:
            item.sent_at = now
            tries = item.tries
            if tries != before:
                mixed = True
            if not tries:  # for the first time: most of all
                item.sends = item.tries = 1
                continue
            if item.sends:
                self.resends += 1
            item.sends += 1
            item.tries = tries + 1
        if not mixed:
            self._fly(before + 1, items, now)
            return
        by_attempts: dict[int, list[T]] = {}
        for item in items:
            by_attempts.setdefault(item.tries, []).append(item)
        for tries, some in by_attempts.items():
            self._fly(tries, some, now)

    def _fly(self, tries: int, items: list[T], now: float) -> None:
        queue = self._queues[min(tries, ATTEMPTS_TOLD) - 1]
        while queue and self._is_spent(queue[0]):
            queue.popleft()
        queue.append(_Flight(items, now))

    def _stall(self, items: list[T]) -> None:
        """These could not leave."""
        now = self._monotonic()
        for item in items:
            item.sent_at = now
        self._stalled.append(_Flight(items, now))

    def due(self) -> list[T]:
        """What has waited its time: it is the caller's to `transmit`. The oldest first."""
        now = self._monotonic()
        found: list[T] = []
        for pause_s, queue in zip(reversed(self._pauses_s), reversed(self._queues), strict=True):
            while queue and (now - queue[0].left_at >= pause_s or self._is_spent(queue[0])):
                found += self._held(queue.popleft())
        return found

    def retry_stalled(self) -> None:
        """Try what could not leave, until something fails again."""
        while self._stalled:
            flight = self._stalled[0]
            items = self._held(flight)
            if items and not self._transmit(items):
                return
            self._stalled.popleft()

    def clear(self) -> None:
        """Forget all flights: what is under way is never sent again by itself."""
        for queue in (*self._queues, self._stalled):
            queue.clear()

    def _held(self, flight: _Flight[T]) -> list[T]:
        return [item for item in flight.items if self._is_held(item, flight)]

    def _is_held(self, item: T, flight: _Flight[T]) -> bool:
        return item.sent_at == flight.left_at and self._wants(item)

    def _is_spent(self, flight: _Flight[T]) -> bool:
        items, position, left_at, wants = flight.items, flight.position, flight.left_at, self._wants
        count = len(items)
        while position < count:
            item = items[position]
            if item.sent_at == left_at and wants(item):
                break
            position += 1
        flight.position = position
        return position == len(items)


def _encoded_size(item: Sendable) -> int:
    return len(item.encoded)


def pieces(items: Iterable[T], size_of: Callable[[T], int], limit_bytes: int) -> list[list[T]]:
    """In their order, in parts of at most so many bytes; one that is larger goes alone."""
    found: list[list[T]] = []
    size = 0
    for item in items:
        count = size_of(item)
        if not found or size + count > limit_bytes:
            found.append([])
            size = 0
        found[-1].append(item)
        size += count
    return found
