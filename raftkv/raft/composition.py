"""What goes into the next entry: the leader's choice among the commands that wait.

Whatever stands in an entry is applied before all that comes behind it, on every node. So a leader
that took commands as they come would let a few costly ones hold up all others. `Composition` keeps
the commands by origin, the node that has sent them, and by the session under which they were
numbered, and chooses:

1. Commands of one session from one origin keep their order. There is no other order: what two nodes
   send under one client's session has none.
2. Costly commands, by an estimate of their rows, are a bounded part of one entry, and stand behind
   the cheap ones of other sessions in it. Those that are appended and not applied yet are bounded,
   too: else they would wait in the log instead, ahead of whatever comes.
3. Origins have equal shares, however many sessions each has opened: of cheap commands each gets
   BURST at its turn, of costly ones the next is of the origin that has got the fewest rows.
   Inside an origin its sessions take turns.
4. What is held back, costly commands and those behind one of their session, is bounded in bytes:
   else it would use up the room of all that may wait. An origin may hold as much as is left free,
   so that there is always room for another one. What finds no room is dropped, as if it had been
   lost on its way; its origin sends it again.
5. None starves. A costly command that is more than the bounds goes alone, once no other is on its
   way; an origin that found no room for even one is the first for the next entry, and if that
   entry holds costly commands only, the cheap ones choose first for the one behind it.

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
# Lengths of a msgpack unsigned integer by its first byte, if that is not the number itself.
_INT_BYTES: Final = {0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9}

# Commands with their rows, and whether they are held back.
Waiting = deque[tuple[bytes, int, bool]]


def _session(command: bytes) -> bytes:
    """The encoded session, with the header of the array before it."""
    return command[: 1 + _INT_BYTES.get(command[1], 1)] if len(command) > 1 else command


class _Origin:
    """What one node has sent. Each of its sessions stands in one of the rings, by its first."""

    def __init__(self) -> None:
        self.sessions: dict[bytes, Waiting] = {}
        self.cheap: deque[bytes] = deque()
        self.costly: deque[bytes] = deque()
        #: Bytes of its commands that wait, and of those that are held back.
        self.bytes = 0
        self.held_bytes = 0
        #: Rows of costly commands that it has got, from the level of the others when it began.
        self.rows = 0


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
        # As they came, not looked at yet; and how many of them came from which origin.
        self._fresh: list[bytes] = []
        self._runs: list[tuple[str, int]] = []
        self._fresh_bytes: dict[str, int] = {}
        # An origin is kept while it has commands, or more rows than the level.
        self._origins: dict[str, _Origin] = {}
        # Those with a session in the ring of that kind.
        self._cheap: deque[_Origin] = deque()
        self._costly: deque[_Origin] = deque()
        # The rows of the origin that came last, when it came: no one that waits has fewer.
        self._level = 0
        # No cheap command found room in the last entry, although some wait.
        self._cheap_first = False

    def add(self, commands: Sequence[bytes], origin: str = "") -> None:
        """Take commands up, behind those of their sessions. `origin`: the node that sent them."""
        self._fresh += commands
        self._runs.append((origin, len(commands)))
        self.commands += len(commands)
        size = sum(map(len, commands))
        self.bytes += size
        self._fresh_bytes[origin] = self._fresh_bytes.get(origin, 0) + size

    def bytes_of(self, origin: str) -> int:
        """Bytes of the commands that wait and came from one node."""
        sorted_in = self._origins.get(origin)
        fresh = self._fresh_bytes.get(origin, 0)
        return fresh if sorted_in is None else fresh + sorted_in.bytes

    def take(
        self,
        bytes_max: int,
        commands_max: int,
        flight_rows: int,
        marks: Sequence[bytes],
        reach: int,
    ) -> list[bytes]:
        """The commands of the next entry, at most so many. Empty if all that wait are held back.

        A command larger than `bytes_max` goes alone. `flight_rows`: of the costly commands that
        were appended and are not applied. `marks`: one of them stands within the first `reach`
        bytes of each command that may be costly.
        """
        fresh, runs = self._fresh, self._runs
        suspicious = self._is_suspicious(fresh, marks, reach)
        self._fresh, self._runs = [], []
        self._fresh_bytes.clear()
        if (
            not suspicious
            and not self._cheap
            and not self._costly
            and len(fresh) <= commands_max
            and (self.bytes <= bytes_max or len(fresh) == 1)
        ):
            self.commands = self.bytes = self.taken_rows = 0
            return fresh
        begin = 0
        for origin, count in runs:
            self._sort(origin, fresh[begin : begin + count], suspicious)
            begin += count
        taken = self._taken(_Taken(bytes_max, commands_max), flight_rows)
        self.taken_rows = taken.costly_rows
        self.commands -= taken.commands
        self.bytes -= taken.bytes
        self._forget(flight_rows)
        return taken.cheap + taken.costly

    @staticmethod
    def _is_suspicious(fresh: Sequence[bytes], marks: Sequence[bytes], reach: int) -> bool:
        """Whether any of the commands may be costly."""
        if not marks or not fresh:
            return False
        heads = b"".join([command[:reach] for command in fresh])
        for mark in marks:  # noqa: SIM110  # for every entry: a generator is slower
            if mark in heads:
                return True
        return False

    # -- what waits

    def _sort(self, name: str, fresh: Sequence[bytes], suspicious: bool) -> None:
        """Put commands of one origin behind those of their sessions."""
        estimate = self._estimate
        origin = self._origins.get(name)
        if origin is None:
            origin = self._origins[name] = _Origin()
        session: bytes | None = None
        queue: Waiting = deque()
        for command in fresh:
            if session is None or not command.startswith(session):
                session = _session(command)
                queue = origin.sessions.get(session) or deque()
            rows = estimate(command) if suspicious else 1
            held = rows > COSTLY_ROWS or (len(queue) > 0 and queue[-1][2])
            if held and not self._hold(origin, command):
                session = None
                continue
            queue.append((command, rows, held))
            origin.bytes += len(command)
            if len(queue) == 1:
                origin.sessions[session] = queue
                self._ring(origin, session, rows)

    def _hold(self, origin: _Origin, command: bytes) -> bool:
        """Whether there is room for one more that is held back. If not, it is dropped."""
        size = len(command)
        left = self._held_bytes_max - self._held_bytes
        if self._held_bytes and origin.held_bytes + size > left:
            self.commands -= 1
            self.bytes -= size
            self.dropped += 1
            return False
        self._held_bytes += size
        origin.held_bytes += size
        return True

    def _pop(self, origin: _Origin, session: bytes) -> Waiting:
        """Remove the next command of a session; those that it has behind it."""
        queue = origin.sessions[session]
        command, _, held = queue.popleft()
        origin.bytes -= len(command)
        if held:
            self._held_bytes -= len(command)
            origin.held_bytes -= len(command)
        if not queue:
            del origin.sessions[session]
        return queue

    def _ring(self, origin: _Origin, session: bytes, rows: int) -> None:
        """Give the session a place behind the others of its origin, and that one a place."""
        if rows > COSTLY_ROWS:
            if not origin.costly:
                origin.rows = max(origin.rows, self._level)
                self._costly.append(origin)
            origin.costly.append(session)
        else:
            if not origin.cheap:
                self._cheap.append(origin)
            origin.cheap.append(session)

    def _forget(self, flight_rows: int) -> None:
        """Drop the origins about which nothing is to be known any more."""
        if not self._costly and not flight_rows and not self.taken_rows:
            self._level = max((each.rows for each in self._origins.values()), default=0)
        over = [
            name
            for name, each in self._origins.items()
            if not each.sessions and each.rows <= self._level
        ]
        for name in over:
            del self._origins[name]

    # -- what is taken

    def _taken(self, taken: _Taken, flight_rows: int) -> _Taken:
        if self._cheap_first:
            self._take_cheap(taken)
        closed = self._take_costly(taken, flight_rows)
        if not self._cheap_first:
            self._take_cheap(taken)
        self._cheap_first = bool(self._cheap) and not taken.cheap
        for origin, session in closed:
            self._ring(origin, session, 1)
        return taken

    def _take_costly(self, taken: _Taken, flight_rows: int) -> list[tuple[_Origin, bytes]]:
        """Up to the bounds, of the origin with the fewest rows; at most half of the entry's room.

        Returns the sessions whose next command is cheap: it must not stand before its costly one.
        """
        closed: list[tuple[_Origin, bytes]] = []
        ring = self._costly
        while ring:
            origin = min(ring, key=_rows)
            session = origin.costly[0]
            command, rows, _ = origin.sessions[session][0]
            left = min(SHARE_ROWS - taken.costly_rows, FLIGHT_ROWS - flight_rows)
            alone = flight_rows == 0 == taken.costly_rows
            if not (rows <= left or alone) or not taken.has_half(command):
                break
            ring.remove(origin)
            origin.costly.popleft()
            queue = self._pop(origin, session)
            taken.take_costly(command, rows)
            flight_rows += rows
            self._level = origin.rows
            origin.rows += rows
            if queue and queue[0][1] > COSTLY_ROWS:
                origin.costly.append(session)
            elif queue:
                closed.append((origin, session))
            if origin.costly:
                ring.append(origin)
        return closed

    def _take_cheap(self, taken: _Taken) -> None:
        """Of one origin after the other. The last one is the next one again if it got nothing."""
        ring = self._cheap
        while ring:
            origin = ring.popleft()
            count = self._take_turn(origin, taken)
            if origin.cheap:
                if count:
                    ring.append(origin)
                else:
                    ring.appendleft(origin)
            if count < BURST and origin.cheap:
                return  # no room

    def _take_turn(self, origin: _Origin, taken: _Taken) -> int:
        """At most BURST commands of one origin, of one session after the other; how many."""
        count = 0
        while origin.cheap and count < BURST:
            session = origin.cheap[0]
            command, rows, _ = origin.sessions[session][0]
            if not taken.has_room(command, rows):
                break
            queue = self._pop(origin, session)
            taken.take_cheap(command, rows)
            count += 1
            if not queue:
                origin.cheap.popleft()
            elif queue[0][1] > COSTLY_ROWS:
                origin.cheap.popleft()
                self._ring(origin, session, queue[0][1])
            elif count == BURST:
                origin.cheap.rotate(-1)
        return count


def _rows(origin: _Origin) -> int:
    return origin.rows


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
