"""What goes into the next entry: the leader's choice among the commands that wait.

Whatever stands in an entry is applied before all that comes behind it, on every node. So a leader
that took commands as they come would let a few costly ones hold up all others. `Composition` keeps
the commands by origin (the session under which they were numbered) and chooses:

1. Commands of one session keep their order.
2. Costly commands, by an estimate of their rows, are a bounded part of one entry, and stand behind
   the cheap ones of other sessions in it. Those that are appended and not applied yet are bounded,
   too: else they would wait in the log instead, ahead of whatever comes.
3. Origins take turns, for cheap and for costly commands alike.
4. What is held back, costly commands and those behind one of their session, is bounded in bytes:
   else it would use up the room of all that may wait. What finds no room is dropped, as if it had
   been lost on its way; its origin sends it again.
5. None starves. A costly command that is more than the bounds goes alone, once no other is on its
   way; one that found no room is the first to be looked at for the next entry.

The common case costs a search in the joined bytes: if all that waits fits into one entry and no
command in it may be costly, it is taken as it came.

Pure: the estimate is a function that is given. It decides nothing but this order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

__all__ = ["BURST", "COSTLY_ROWS", "FLIGHT_ROWS", "HELD_BYTES", "SHARE_ROWS", "Composition"]

#: Rows from which on a command is costly: about 5 ms of work.
COSTLY_ROWS: Final = 2_000
#: Rows of costly commands in one entry, and likewise of cheap ones: about 50 ms each.
SHARE_ROWS: Final = 20_000
#: Rows of costly commands that are appended and not applied. Two shares, so that the next entry is
#: on its way while one is applied.
FLIGHT_ROWS: Final = 2 * SHARE_ROWS
#: Commands that one origin gets into an entry at its turn.
BURST: Final = 16
#: Bytes of commands that are held back: half of the default for all that may be uncommitted.
HELD_BYTES: Final = 32 * 1024 * 1024
# So many bytes of a command hold its session, numbers, plugin and tag.
_HEAD_BYTES: Final = 96
# Lengths of a msgpack unsigned integer by its first byte, if that is not the number itself.
_INT_BYTES: Final = {0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9}

# Commands with their rows, and whether they are held back.
Waiting = deque[tuple[bytes, int, bool]]


def _origin(command: bytes) -> bytes:
    """The encoded session, with the header of the array before it."""
    return command[: 1 + _INT_BYTES.get(command[1], 1)] if len(command) > 1 else command


class Composition:
    """The commands that wait on one leader. `estimate` gives the rows of an encoded command."""

    def __init__(self, estimate: Callable[[bytes], int], held_bytes_max: int = HELD_BYTES) -> None:
        self._estimate = estimate
        self._held_bytes_max = held_bytes_max
        self._held_bytes = 0
        #: Commands that found no room among those that are held back, since it was last set to 0.
        self.dropped = 0
        #: Commands that wait, and their bytes.
        self.commands = self.bytes = 0
        #: The rows of the costly commands among those that were taken last.
        self.taken_rows = 0
        # As they came, not looked at yet.
        self._fresh: list[bytes] = []
        # By origin, each with its rows. An origin stands in one of the two rings, by its first.
        self._waiting: dict[bytes, Waiting] = {}
        self._cheap: deque[bytes] = deque()
        self._costly: deque[bytes] = deque()

    def add(self, commands: Sequence[bytes]) -> None:
        """Take commands up, behind those of their sessions."""
        self._fresh += commands
        self.commands += len(commands)
        self.bytes += sum(map(len, commands))

    def take(
        self, bytes_max: int, commands_max: int, flight_rows: int, marks: Sequence[bytes]
    ) -> list[bytes]:
        """The commands of the next entry, at most so many. Empty if all that wait are held back.

        A command larger than `bytes_max` goes alone. `flight_rows`: of the costly commands that
        were appended and are not applied. `marks`: what stands in each command that may be costly.
        """
        fresh = self._fresh
        suspicious = self._is_suspicious(fresh, marks)
        if (
            not suspicious
            and not self._waiting
            and len(fresh) <= commands_max
            and (self.bytes <= bytes_max or len(fresh) == 1)
        ):
            self._fresh = []
            self.commands = self.bytes = self.taken_rows = 0
            return fresh
        self._fresh = []
        self._sort(fresh, suspicious)
        taken = _Taken(bytes_max, commands_max)
        closed = self._take_costly(taken, flight_rows)
        self.taken_rows = taken.costly_rows
        self._take_cheap(taken)
        self._cheap.extend(closed)
        self.commands -= taken.commands
        self.bytes -= taken.bytes
        return taken.cheap + taken.costly

    @staticmethod
    def _is_suspicious(fresh: Sequence[bytes], marks: Sequence[bytes]) -> bool:
        """Whether any of the commands may be costly."""
        if not marks or not fresh:
            return False
        heads = b"".join([command[:_HEAD_BYTES] for command in fresh])
        for mark in marks:  # noqa: SIM110  # for every entry: a generator is slower
            if mark in heads:
                return True
        return False

    def _sort(self, fresh: Sequence[bytes], suspicious: bool) -> None:
        """Put commands behind those of their origins."""
        estimate = self._estimate
        origin: bytes | None = None
        queue: Waiting = deque()
        for command in fresh:
            if origin is None or not command.startswith(origin):
                origin = _origin(command)
                queue = self._waiting.get(origin) or self._open(origin)
            rows = estimate(command) if suspicious else 1
            held = rows > COSTLY_ROWS or (len(queue) > 0 and queue[-1][2])
            if held and not self._hold(command):
                if not queue:
                    del self._waiting[origin]
                origin = None
                continue
            queue.append((command, rows, held))
            if len(queue) == 1:
                self._ring(rows).append(origin)

    def _hold(self, command: bytes) -> bool:
        """Whether there is room for one more that is held back. If not, it is dropped."""
        if 0 < self._held_bytes > self._held_bytes_max - len(command):
            self.commands -= 1
            self.bytes -= len(command)
            self.dropped += 1
            return False
        self._held_bytes += len(command)
        return True

    def _take_first(self, queue: Waiting) -> None:
        command, _, held = queue.popleft()
        if held:
            self._held_bytes -= len(command)

    def _open(self, origin: bytes) -> Waiting:
        queue = self._waiting[origin] = deque()
        return queue

    def _ring(self, rows: int) -> deque[bytes]:
        return self._costly if rows > COSTLY_ROWS else self._cheap

    def _take_costly(self, taken: _Taken, flight_rows: int) -> list[bytes]:
        """Up to the bounds, from one origin after the other; at most half of the entry's room.

        Returns the origins whose next command is cheap: it must not stand before its costly one.
        """
        closed: list[bytes] = []
        ring = self._costly
        while ring:
            origin = ring[0]
            queue = self._waiting[origin]
            command, rows, _ = queue[0]
            left = min(SHARE_ROWS - taken.costly_rows, FLIGHT_ROWS - flight_rows)
            alone = flight_rows == 0 == taken.costly_rows
            if not (rows <= left or alone) or not taken.has_half(command):
                break
            ring.popleft()
            self._take_first(queue)
            taken.take_costly(command, rows)
            flight_rows += rows
            if not queue:
                del self._waiting[origin]
            elif queue[0][1] > COSTLY_ROWS:
                ring.append(origin)
            else:
                closed.append(origin)
        return closed

    def _take_cheap(self, taken: _Taken) -> None:
        ring = self._cheap
        while ring:
            origin = ring.popleft()
            queue = self._waiting[origin]
            for _ in range(BURST):
                command, rows, _ = queue[0]
                if rows > COSTLY_ROWS:
                    break
                if not taken.has_room(command, rows):
                    ring.appendleft(origin)
                    return
                self._take_first(queue)
                taken.take_cheap(command, rows)
                if not queue:
                    del self._waiting[origin]
                    break
            if queue:
                self._ring(queue[0][1]).append(origin)


class _Taken:
    """The entry that is being composed."""

    def __init__(self, bytes_max: int, commands_max: int) -> None:
        self._bytes_max = bytes_max
        self._commands_max = commands_max
        self.cheap: list[bytes] = []
        self.costly: list[bytes] = []
        self.commands = self.bytes = self.costly_rows = self._cheap_rows = 0

    def has_room(self, command: bytes, rows: int) -> bool:
        return not self.commands or (
            self.commands < self._commands_max
            and self.bytes + len(command) <= self._bytes_max
            and self._cheap_rows + rows <= SHARE_ROWS
        )

    def has_half(self, command: bytes) -> bool:
        return not self.commands or (
            2 * self.commands < self._commands_max
            and 2 * (self.bytes + len(command)) <= self._bytes_max
        )

    def take_cheap(self, command: bytes, rows: int) -> None:
        self.cheap.append(command)
        self._cheap_rows += rows
        self._count(command)

    def take_costly(self, command: bytes, rows: int) -> None:
        self.costly.append(command)
        self.costly_rows += rows
        self._count(command)

    def _count(self, command: bytes) -> None:
        self.commands += 1
        self.bytes += len(command)
