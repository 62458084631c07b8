"""Exactly-once: which commands have taken effect, and what was answered.

Theory. A caller that hears nothing sends its command again, so the log may hold it many times, in
any order. Each command carries (session, seq). Per session this table keeps the outcome of every
seq at or above a *floor*; the caller raises the floor when it has received all answers below it.
The first appearance of a seq is applied, every further one gets the first outcome.

Rules of this file
1. A session is opened through the log and its number is the serial of the command that opened it,
   so numbers never repeat, and a restarted node never meets the answers of its former life.
2. An unknown session is refused, never created. It ended, or it never was.
3. Refusals are outcomes like others. What says "not judged" (below the floor, beyond the window,
   unknown session) is not kept, because it depends on when the command arrived.
4. Work is bounded. Raising the floor costs what it drops, each outcome is dropped once; a session
   holds at most SESSION_WINDOW outcomes; ending a session drops one dict.
5. Everything here is a function of the log, and is part of the snapshot and the digest.
6. The outcomes of a client's session are bounded in bytes, from core format 2 on: beyond
   OUTCOME_BYTES_MAX those of the lowest numbers are replaced by DROPPED, which answers
   `OutcomeExpired`. Their commands are never executed again. The outcome of the command that was
   applied last is always kept. Which are dropped depends on numbers and sizes only, so a node that
   was restored from a snapshot drops the same ones. The bytes are counted in every format: what is
   dropped after a raise must not depend on which node was restored before it.
7. So are those of all clients together, from core format 2 on: beyond OUTCOMES_BYTES_MAX the
   sessions that keep most lose theirs, of equal ones the least recently used first, until an eighth
   of the limit is free. So no client evicts the outcomes of sessions that keep less than its own.
   Their floors are raised above every number that they have judged: what is sent again under one of
   these, or under one that they have skipped, is `OutcomeExpired` and is not executed. The session
   that is in use keeps its own. Order and sizes are functions of the log, so every node drops the
   same. One drop looks at each client's session once, CLIENTS_MAX at most.
8. While a snapshot's walk is under way, `keep` comes before whatever changes a session: it saves
   the session as it was, once. So a freeze costs a list of at most CLIENTS_MAX sessions and some
   nodes', and no step of a walk more than one session's outcomes.

Two kinds of sessions. A *node's* session lives as long as the incarnation of its member and is
ended by the NodeUp or NodeDown that ends it. A *client's* session (the network door) has no such
event: it ends when it was idle for CLIENT_IDLE_MS on the log's clock, or to make room when
CLIENTS_MAX are open. Its next command is then refused with `SessionExpired`: older answers are
lost, an explicit unknown rather than a silent second execution. From core format 2 on room is made
by the oldest session that never wrote, and if all did by the least recently used one, but not
within CLIENT_KEPT_MS of its last write: until then a new session is refused. So no client ends the
session of another one that still retries. In format 1 the least recently used one makes room.

What is not pretty: the machine's hot path reads `floor` and `done` itself; a method call per
command would cost more than the check it makes.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec

from raftkv.errors import OutcomeExpired, Refused, SequenceTooFar, SessionExpired
from raftkv.waste import Waste

from .tables import ABSENT

__all__ = [
    "ABANDONED",
    "CLIENTS_MAX",
    "CLIENT_IDLE_MS",
    "CLIENT_KEPT_MS",
    "DROPPED",
    "OUTCOMES_BYTES_MAX",
    "OUTCOME_BYTES_MAX",
    "SESSION_WINDOW",
    "Clients",
    "FrozenSessions",
    "RestoredResult",
    "Session",
    "Sessions",
]

# Outcomes that one session may hold: the outbox bound of a node (config.Limits), so that a node
# within its own limit is never refused by this one.
SESSION_WINDOW: Final = 65_536
# Encoded bytes of the outcomes that one client session may hold, besides the newest one: a client
# that repeats a call at once finds its answer, and small requests for large answers do not fill
# the snapshots. Several times what a client has in flight.
OUTCOME_BYTES_MAX: Final = 1024 * 1024
# The same of all client sessions together, each outcome with OUTCOME_KEPT_BYTES more: what they may
# take of every node's memory and, nearly, of its snapshots. 64 sessions may be full.
OUTCOMES_BYTES_MAX: Final = 64 * 1024 * 1024
# About what Python needs for an entry of a dict; in a snapshot an outcome needs a tenth of it.
OUTCOME_KEPT_BYTES: Final = 128
# Client sessions in the whole cluster. One costs about 1 KB when little is kept in it.
CLIENTS_MAX: Final = 10_000
# Longer than any sensible retry of one call, short enough that abandoned clients do not pile up.
CLIENT_IDLE_MS: Final = 3_600_000
# For so long after its last write, by the log's clock, no other session takes the place of one:
# longer than clients retry.
CLIENT_KEPT_MS: Final = 600_000
# Idle sessions ended per batch, so that no batch pays for many.
_EXPIRED_PER_BATCH: Final = 16

#: The outcome of a number that was asked for before its command arrived: it can never apply.
ABANDONED: Final = OutcomeExpired(
    "this number was settled as not applied before the command arrived; send it under a new number"
)


#: What is left of an outcome that was dropped because the session kept too many bytes.
DROPPED: Final = OutcomeExpired(
    "the command was applied or refused, and its outcome was dropped because the session kept too "
    "many bytes of outcomes: read what it has changed, and confirm answers sooner"
)


class RestoredResult(msgspec.Struct, frozen=True, gc=False):
    """A result from a snapshot, still encoded: its type is known when its command comes again."""

    data: bytes


class Session:
    """One opened session. `node` is empty for a client's session."""

    __slots__ = (
        "_by_number",
        "_sizes",
        "bytes",
        "counted",
        "done",
        "floor",
        "id",
        "node",
        "nonce",
        "used_ms",
        "used_serial",
    )

    def __init__(self, id: int, node: str, nonce: int, used_ms: int) -> None:
        self.id = id
        self.node = node
        self.nonce = nonce
        self.floor = 0
        self.done: dict[int, Any] = {}
        self.used_ms = used_ms
        self.used_serial = id
        # Of a client's session: encoded bytes of the outcomes in `done`, by number and in all, and
        # a heap of those numbers, some of which may be gone.
        self.bytes = 0
        self._sizes: dict[int, int] = {}
        self._by_number: list[int] = []
        # What it has been counted with in `Sessions.outcome_bytes`.
        self.counted = 0

    def copy(self) -> Session:
        """The same, as it is now."""
        twin = Session(self.id, self.node, self.nonce, self.used_ms)
        twin.floor, twin.used_serial, twin.done = self.floor, self.used_serial, self.done.copy()
        return twin

    def weigh(self, seq: int, size: int) -> None:
        """Count the encoded bytes of the outcome of `seq`, which is in `done`."""
        self._sizes[seq] = size
        self.bytes += size
        heapq.heappush(self._by_number, seq)

    def drop_beyond(self, bytes_max: int, newest: int) -> None:
        """Drop outcomes, lowest numbers first, until the others have that many bytes at most."""
        sizes, numbers = self._sizes, self._by_number
        while self.bytes > bytes_max and len(sizes) > 1:
            seq = heapq.heappop(numbers)
            if seq == newest:
                # The lowest of all: the next one goes in its place.
                seq = heapq.heapreplace(numbers, newest)
            size = sizes.pop(seq, None)
            if size is not None:
                self.bytes -= size
                self.done[seq] = DROPPED

    def drop_all(self) -> dict[int, Any]:
        """Forget what was judged, and judge none of it again. Gives what was kept."""
        done, self.done = self.done, {}
        if done:
            self.floor = max(self.floor, max(done) + 1)
        self.bytes = 0
        self._sizes, self._by_number = {}, []
        return done

    def _forget_sizes(self, floor: int) -> None:
        """Those of the numbers below `floor` are gone."""
        numbers = self._by_number
        while numbers and numbers[0] < floor:
            self.bytes -= self._sizes.pop(heapq.heappop(numbers), 0)

    def raise_floor(self, floor: int) -> None:
        """Drop the outcomes below `floor`: their caller has them. It never goes down."""
        done = self.done
        if floor <= self.floor:
            return
        if floor - self.floor <= len(done):
            pop = done.pop
            for seq in range(self.floor, floor):
                pop(seq, None)
        else:
            self.done = {seq: outcome for seq, outcome in done.items() if seq >= floor}
        self.floor = floor
        if self._by_number:
            self._forget_sizes(floor)

    def recall(self, seq: int, window: int) -> Any:
        """The kept outcome, a refusal that says why there cannot be one, or ABSENT: not seen."""
        if seq < self.floor:
            return OutcomeExpired(f"seq {seq} lies below the floor {self.floor} of the session")
        outcome = self.done.get(seq, ABSENT)
        if outcome is ABSENT and seq >= self.floor + window:
            return SequenceTooFar(
                f"seq {seq} is {seq - self.floor} above the floor of the session, the limit is "
                f"{window}: wait for earlier answers first"
            )
        return outcome


class Clients(NamedTuple):
    """The client sessions: how many are open, how many may be, and how long one is kept."""

    open: int
    max: int
    kept_ms: int


class FrozenSessions:
    """The sessions at the moment of the freeze, to be taken one by one, in the order of ids."""

    __slots__ = ("_last", "_owner", "_saved", "_todo")

    def __init__(self, owner: Sessions, sessions: list[Session]) -> None:
        sessions.reverse()
        self._owner = owner
        self._todo = sessions  # the next one is the last: what has been taken is let go
        self._last = sessions[0].id if sessions else -1
        self._saved: dict[int, Session] = {}

    def keep(self, session: Session) -> None:
        """The session is about to change: save it if the walk has yet to take it."""
        id = session.id
        if id not in self._saved and self._todo and self._todo[-1].id <= id <= self._last:
            self._saved[id] = session.copy()

    def next(self) -> Session | None:
        """The next session, the caller's to keep; None after the last one."""
        if not self._todo:
            self.close()
            return None
        session = self._todo.pop()
        saved = self._saved.pop(session.id, None)
        return session.copy() if saved is None else saved

    def close(self) -> None:
        """Stop saving sessions. Idempotent."""
        self._owner.detach(self)
        self._owner.waste.add(self._todo)
        self._owner.waste.add(self._saved)
        self._todo, self._saved = [], {}


class Sessions:
    """All open sessions of the cluster."""

    def __init__(
        self,
        window: int | None = None,
        clients_max: int = CLIENTS_MAX,
        client_idle_ms: int = CLIENT_IDLE_MS,
        bytes_max: int = OUTCOMES_BYTES_MAX,
    ) -> None:
        self.window = SESSION_WINDOW if window is None else window
        self.waste = Waste()
        self.walks: tuple[FrozenSessions, ...] = ()
        self.bytes_max = bytes_max
        self._clients_max = clients_max
        self._client_idle_ms = client_idle_ms
        self.by_id: dict[int, Session] = {}
        self._by_node: dict[str, int] = {}
        self._clients: OrderedDict[int, Session] = OrderedDict()  # least recently used first
        # Those of them that never wrote, the oldest first: no serial is that of its opening twice.
        self._unused: dict[int, Session] = {}
        self._by_nonce: dict[int, int] = {}  # of client sessions
        #: What the outcomes of all client sessions count, see OUTCOMES_BYTES_MAX.
        self.outcome_bytes = 0
        # For the metrics of the node; no part of the state.
        self.evicted = 0
        self.expired = 0

    def __len__(self) -> int:
        return len(self.by_id)

    def freeze(self) -> FrozenSessions:
        """The sessions as they are now, to be taken while further commands are applied."""
        frozen = FrozenSessions(self, [self.by_id[id] for id in sorted(self.by_id)])
        self.walks = (*self.walks, frozen)
        return frozen

    def keep(self, session: Session) -> None:
        """Comes before every change of a session while there are `walks`."""
        for walk in self.walks:
            walk.keep(session)

    def detach(self, frozen: FrozenSessions) -> None:
        self.walks = tuple(other for other in self.walks if other is not frozen)

    def open_node(self, id: int, node: str, nonce: int, now: int) -> None:
        """Open the session of a node's new incarnation, in place of an older one."""
        self.end_node(node)
        self._add(Session(id, node, nonce, now))

    def end_node(self, node: str) -> None:
        """End the session of a node, if it has one."""
        id = self._by_node.pop(node, None)
        if id is not None:
            del self.by_id[id]

    def clients(self, kept_ms: int) -> Clients:
        """The client sessions in figures."""
        return Clients(len(self._clients), self._clients_max, kept_ms)

    def has_room(self, now: int) -> bool:
        """Whether a client's session may be opened that ends none within CLIENT_KEPT_MS."""
        return len(self._clients) < self._clients_max or self._spare(now) is not None

    def _spare(self, now: int) -> Session | None:
        """The client session that makes room, from core format 2 on."""
        for session in self._unused.values():
            return session
        oldest = next(iter(self._clients.values()))
        return oldest if now - oldest.used_ms > CLIENT_KEPT_MS else None

    def open_client(self, id: int, nonce: int, now: int, *, keeps: bool) -> None:
        """Open a client's session; another one makes room when there are many.

        `keeps`: as from core format 2 on, and `has_room` was asked. Else that is the least recently
        used one.
        """
        while len(self._clients) >= self._clients_max:
            spare = self._spare(now) if keeps else next(iter(self._clients.values()))
            assert spare is not None, "it is refused without room"
            self.evicted += 1
            self._end_client(spare)
        self._add(Session(id, "", nonce, now))

    def client_of(self, nonce: int) -> int | None:
        """The open client session that was opened under `nonce`."""
        return self._by_nonce.get(nonce)

    def touch(self, session: Session, now: int, serial: int) -> None:
        """Note that a client's session was used."""
        if session.used_serial == session.id:
            self._unused.pop(session.id, None)
        session.used_ms = now
        session.used_serial = serial
        self._clients.move_to_end(session.id)

    def count(self, session: Session) -> None:
        """Comes after every change of the outcomes of a client's session."""
        size = session.bytes + OUTCOME_KEPT_BYTES * len(session.done)
        self.outcome_bytes += size - session.counted
        session.counted = size

    def bound_each(self, bytes_max: int) -> None:
        """Apply the bound of one session to all of them, as it comes into force.

        Which outcome came last is not known any more: that of the highest number is kept.
        """
        for session in self._clients.values():
            if session.bytes > bytes_max:
                if self.walks:
                    self.keep(session)
                session.drop_beyond(bytes_max, max(session.done))
                self.count(session)

    def drop_beyond(self, bytes_max: int, current: Session | None) -> None:
        """Drop the outcomes of those that keep most; `current` is the session in use, if one is."""
        least = bytes_max - bytes_max // 8
        most = [
            (-session.counted, session.used_serial, session)
            for session in self._clients.values()
            if session.done and session is not current
        ]
        # Serials differ, so that sessions are never compared.
        heapq.heapify(most)
        while most and self.outcome_bytes > least:
            session = heapq.heappop(most)[2]
            if self.walks:
                self.keep(session)
            self.waste.add(session.drop_all())
            self.count(session)

    def expire(self, now: int) -> None:
        """End some of the client sessions that were idle for too long."""
        for _ in range(min(_EXPIRED_PER_BATCH, len(self._clients))):
            oldest = next(iter(self._clients.values()))
            if now - oldest.used_ms <= self._client_idle_ms:
                return
            self.expired += 1
            self._end_client(oldest)

    def recall(self, id: int, seq: int) -> Any:
        """As `Session.recall`; SessionExpired when the session is not open."""
        session = self.by_id.get(id)
        if session is None:
            return unknown_session(id)
        return session.recall(seq, self.window)

    def abandon(self, id: int, seq: int) -> None:
        """Make sure that a number which was not seen yet can never apply."""
        session = self.by_id[id]
        if self.walks:
            self.keep(session)
        session.done.setdefault(seq, ABANDONED)
        if not session.node:
            self.count(session)

    def replace_all(self, sessions: Iterable[Session]) -> None:
        """Take over the sessions of a snapshot. A walk that is under way goes on over the old."""
        if not self.walks:
            # A walk lets go of them one by one.
            for session in self.by_id.values():
                self.waste.add(session.done)
            self.waste.add(list(self.by_id.values()))
        self.walks = ()
        self.by_id = {}
        self._by_node.clear()
        self._clients.clear()
        self._unused.clear()
        self._by_nonce.clear()
        self.outcome_bytes = 0
        for session in sorted(sessions, key=lambda session: session.used_serial):
            self._add(session)

    def _add(self, session: Session) -> None:
        self.by_id[session.id] = session
        if session.node:
            self._by_node[session.node] = session.id
        else:
            self._clients[session.id] = session
            if session.used_serial == session.id:
                self._unused[session.id] = session
            self._by_nonce[session.nonce] = session.id
            self.count(session)

    def _end_client(self, session: Session) -> None:
        del self.by_id[session.id]
        del self._clients[session.id]
        self._unused.pop(session.id, None)
        del self._by_nonce[session.nonce]
        self.outcome_bytes -= session.counted


def unknown_session(id: int) -> Refused:
    return SessionExpired(f"session {id} is not open: it ended, or it was never opened")
