"""Transactional queues as simply as they can be said: a queue is a list of messages.

It was written from the rules, not from the code beside which it is tested, and shares nothing with
it but the operations and messages. Nothing is staged, there are no spans and no counters: who wants
to know how many messages are available counts them. A refusal is its code.

What the log does later is done by `sweep`, in the order of the rules, for dead letters show it:
what dead sessions held, transactions that are late, large ones that give back what they had
accepted, queues that are overfull.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from raftkv_txqueue.commands import Message, Operation, PublishTo, size_of

OK, RBROLLBACK, RBTIMEOUT, HEURCOM, HEURRB, RDONLY = 0, 1, 2, 4, 5, 7

Key = tuple[int, bytes, bytes]


class No(Exception):
    """Refused, with this code (without the plugin's name)."""


@dataclass(eq=False)
class Item:
    """A message in a queue. `place`: "available", "acquired", "accepted"."""

    seq: int
    message: Message
    at_ms: int
    place: str = "available"
    deliveries: int = 0
    #: The session that holds it, since when, and when it must have settled it (0: whenever).
    session: int = 0
    since: int = 0
    due: int = 0
    #: The rolled back transaction that has yet to give it back, and its session if that is a TX.
    returning: Tx | None = None

    @property
    def size(self) -> int:
        return size_of(self.message)


@dataclass(eq=False)
class Queue:
    name: str
    id: int
    depth_max: int = 0
    bytes_max: int = 0
    overflow: str = "refuse"
    deliveries_max: int = 0
    dead_letter: str = ""
    ack_timeout_ms: int = 0
    ttl_ms: int = 0
    next: int = 1
    items: list[Item] = field(default_factory=list)
    dropped: int = 0
    dead: int = 0
    overfull: bool = False
    deleted: bool = False

    def available(self) -> list[Item]:
        return [item for item in self.items if item.place == "available"]

    def bytes(self) -> int:
        return sum(item.size for item in self.items)

    def is_above(self) -> bool:
        if self.depth_max and len(self.items) > self.depth_max:
            return True
        return bool(self.bytes_max) and self.bytes() > self.bytes_max


@dataclass(eq=False)
class Tx:
    """A TX (`xid` None), or a branch that is not forgotten."""

    number: int
    session: int = 0
    counter: int = 0
    xid: Key | None = None
    state: str = "active"
    deadline: int = 0
    timeout: int = 0
    operations: list[tuple[Queue, Message | Item]] = field(default_factory=list)
    votes: dict[tuple[str, int], bool] = field(default_factory=dict)
    then_commit: bool = False
    #: session -> suspended
    sessions: dict[int, bool] = field(default_factory=dict)
    rollback_only: bool = False
    cause: str = ""

    def queues(self) -> list[Queue]:
        return list(dict.fromkeys(queue for queue, _ in self.operations))

    def published(self, queue: Queue) -> list[Message]:
        return [one for q, one in self.operations if q is queue and isinstance(one, Message)]

    def accepted(self, queue: Queue) -> list[Item]:
        found = [one for q, one in self.operations if q is queue and isinstance(one, Item)]
        return sorted(found, key=lambda item: item.seq)

    def net(self, queue: Queue) -> tuple[int, int]:
        """Messages and bytes that it adds to a queue; 0 if it takes more than it brings."""
        brings, takes = self.published(queue), self.accepted(queue)
        size = sum(map(size_of, brings)) - sum(item.size for item in takes)
        return max(0, len(brings) - len(takes)), max(0, size)


@dataclass(eq=False)
class Session:
    id: int
    node: str
    life: int
    kind: str
    fates: dict[int, str] = field(default_factory=dict)
    #: Its TX with something staged, or the branch that it is attached to.
    tx: Tx | None = None
    ended: int = 0
    #: When its retention begins.
    old: int = 0

    @property
    def decided(self) -> int:
        return len(self.fates)


@dataclass
class Model:
    entry_rows: int
    now: int = 0
    retention: int = 3_600_000
    prepare_timeout: int = 10_000
    transaction_timeout: int = 300_000
    dtx_timeout: int = 60_000
    dtx_timeout_max: int = 3_600_000
    transaction_rows_max: int = 100_000
    #: name -> (life, up)
    nodes: dict[str, tuple[int, bool]] = field(default_factory=dict)
    ended_lives: list[tuple[str, int]] = field(default_factory=list)
    observers: dict[str, int] = field(default_factory=dict)
    queues: dict[str, Queue] = field(default_factory=dict)
    queues_ever: int = 0
    sessions: dict[int, Session] = field(default_factory=dict)
    sessions_ever: int = 0
    numbers: int = 0
    open: dict[int, Tx] = field(default_factory=dict)
    branches: dict[Key, Tx] = field(default_factory=dict)
    decisions: dict[Key, tuple[str, str]] = field(default_factory=dict)
    #: Large transactions that were rolled back and have yet to give back what they accepted.
    returning: list[Tx] = field(default_factory=list)
    #: What the present command has found yet to be given back, and its session may use.
    reclaimed: list[tuple[Queue, Item]] = field(default_factory=list)
    #: Everything as it was before the present command has looked at a branch.
    before: dict[str, Any] | None = None

    def begin(self) -> None:
        """A command begins."""
        self.before = None

    def refused(self) -> None:
        """The command was refused, so it has done nothing."""
        if self.before is not None:
            self.__dict__.update(self.before)

    # --- nodes ---

    def is_up(self, node: str, life: int) -> bool:
        return self.nodes.get(node) == (life, True)

    def node_up(self, name: str) -> None:
        life, up = self.nodes.get(name, (0, False))
        if up:
            self._life_ends(name, life)
        self.nodes[name] = (life + 1, True)

    def node_down(self, name: str) -> None:
        life, _ = self.nodes[name]
        self._life_ends(name, life)
        self.nodes[name] = (life, False)

    def _life_ends(self, name: str, life: int) -> None:
        self.ended_lives.append((name, life))
        if self.observers.get(name) == life:
            del self.observers[name]

    def observe(self, node: str, on: bool) -> None:
        if on:
            self.observers[node] = self.nodes[node][0]
        else:
            self.observers.pop(node, None)

    # --- queues ---

    def declare(self, name: str, **limits: object) -> None:
        queue = self.queues.get(name)
        if limits.get("dead_letter") == name:
            raise No("bad_dead_letter")
        ttl_ms = limits.get("ttl_ms", queue.ttl_ms if queue else 0)
        letters = limits.get("dead_letter", queue.dead_letter if queue else "")
        self._require_no_cycle(name, int(str(ttl_ms)), str(letters))
        if queue is None:
            self.queues_ever += 1
            queue = self.queues[name] = Queue(name, self.queues_ever)
        for what, value in limits.items():
            setattr(queue, what, value)

    def _require_no_cycle(self, name: str, ttl_ms: int, dead_letter: str) -> None:
        """What expires in a queue must not come back to it by queues with times to live alone."""
        seen = []
        while ttl_ms and dead_letter in self.queues and dead_letter not in seen:
            if dead_letter == name:
                raise No("dead_letter_cycle")
            seen.append(dead_letter)
            ttl_ms, dead_letter = self.queues[seen[-1]].ttl_ms, self.queues[seen[-1]].dead_letter
            if ttl_ms and dead_letter == name:
                raise No("dead_letter_cycle")

    def ensure(
        self,
        name: str,
        change: bool,
        ack_timeout_ms: int | None = None,
        ttl_ms: int | None = None,
        **limits: object,
    ) -> None:
        queue = self.queues.get(name)
        named = {what: value for what, value in limits.items() if value is not None}
        letters = named.get("dead_letter")
        if letters == name:
            raise No("bad_dead_letter")
        differs = any(getattr(queue, what, value) != value for what, value in named.items())
        if differs and not change:
            raise No("queue_differs")
        if letters and letters not in self.queues:
            raise No("unknown_dead_letter")
        if ack_timeout_ms is not None:
            if queue is not None and queue.ack_timeout_ms != ack_timeout_ms and not change:
                raise No("queue_differs")
            named["ack_timeout_ms"] = ack_timeout_ms
        if ttl_ms is not None:
            if queue is not None and queue.ttl_ms != ttl_ms and not change:
                raise No("queue_differs")
            named["ttl_ms"] = ttl_ms
        self.declare(name, **named)

    def uses(self, queue: Queue) -> int:
        return sum(queue in tx.queues() for tx in self.open.values())

    def reserved(self, queue: Queue) -> tuple[int, int]:
        closed = [tx for tx in self.open.values() if tx.state in ("preparing", "prepared")]
        nets = [tx.net(queue) for tx in closed]
        return sum(net[0] for net in nets), sum(net[1] for net in nets)

    def delete(self, name: str, if_empty: bool, if_unused: bool) -> int:
        queue = self._queue(name)
        if self.uses(queue):
            raise No("queue_in_use")
        if any(other.dead_letter == name for other in self.queues.values()):
            raise No("dead_letter_in_use")
        if if_empty and queue.items:
            raise No("queue_not_empty")
        if if_unused and len(queue.items) > len(queue.available()):
            raise No("queue_acquired")
        del self.queues[name]
        queue.deleted = True
        return len(queue.items)

    def purge(self, name: str, upto: int) -> int:
        queue = self._queue(name)
        gone = [item for item in queue.available() if item.seq <= upto]
        for item in gone:
            queue.items.remove(item)
        return len(gone)

    def publish(self, name: str, messages: Sequence[Message]) -> tuple[int, int]:
        queue = self._queue(name)
        self._require_room(queue, len(messages), sum(map(size_of, messages)))
        first = queue.next
        dropped = queue.dropped
        self._append(queue, messages)
        return first, queue.dropped - dropped

    def _queue(self, name: str) -> Queue:
        if name not in self.queues:
            raise No("unknown_queue")
        return self.queues[name]

    def _require_room(self, queue: Queue, count: int, size: int) -> None:
        if queue.overflow != "refuse":
            return
        messages, bytes_ = self.reserved(queue)
        if count and queue.depth_max and len(queue.items) + messages + count > queue.depth_max:
            raise No("queue_full")
        if size and queue.bytes_max and queue.bytes() + bytes_ + size > queue.bytes_max:
            raise No("queue_full")

    def _append(self, queue: Queue, messages: Sequence[Message], *, drop: int = 1_000) -> None:
        """`drop`: how many make room at once; the others when it is swept."""
        for message in messages:
            queue.items.append(Item(queue.next, message, self.now))
            queue.next += 1
        if self._make_room(queue, drop):
            queue.overfull = True

    def _make_room(self, queue: Queue, drop: int = 1_000_000) -> bool:
        """Drop the oldest available ones, never the newest; whether it must go on."""
        while queue.overflow == "drop_oldest" and queue.is_above():
            if not drop:
                return True
            drop -= 1
            old = [item for item in queue.available() if item.seq < queue.next - 1]
            if not old:
                return False
            queue.items.remove(old[0])
            queue.dropped += 1
        return False

    def _give_back(self, queue: Queue, item: Item) -> None:
        item.session, item.returning = 0, None
        if queue.deleted:
            return
        if queue.deliveries_max and item.deliveries >= queue.deliveries_max:
            self._bury(queue, item)
        else:
            item.place = "available"

    def _bury(self, queue: Queue, item: Item) -> None:
        queue.items.remove(item)
        queue.dead += 1
        grave = self.queues.get(queue.dead_letter)
        if grave is None:
            return
        own = ("x-raftkv-died-in", "x-raftkv-deliveries")
        headers = [pair for pair in item.message.headers if pair[0] not in own]
        headers += [(own[0], queue.name), (own[1], str(item.deliveries))]
        self._append(grave, [Message(item.message.body, tuple(headers))], drop=2)

    # --- sessions ---

    def live(self, session: Session | None) -> bool:
        if session is None or session.ended:
            return False
        return self.is_up(session.node, session.life)

    def open_session(self, node: str, kind: str) -> int:
        self.sessions_ever += 1
        life = self.nodes[node][0]
        self.sessions[self.sessions_ever] = Session(self.sessions_ever, node, life, kind)
        return self.sessions_ever

    def owned(self, node: str, id: int) -> Session:
        session = self.sessions.get(id)
        if session is None or session.ended:
            raise No("session_ended")
        if session.node != node:
            raise No("not_your_session")
        if session.life != self.nodes[node][0]:
            raise No("session_ended")
        return session

    def close_session(self, node: str, id: int) -> None:
        self._end(self.owned(node, id))

    def end_session(self, id: int) -> None:
        """An operator does, on whatever node it is."""
        session = self.sessions.get(id)
        if session is None or session.ended:
            raise No("session_ended")
        self._end(session)

    def _hold(self, queue: Queue, item: Item, session: int) -> None:
        item.place, item.session, item.since = "acquired", session, self.now
        item.due = self.now + queue.ack_timeout_ms if queue.ack_timeout_ms else 0

    def _end(self, session: Session) -> None:
        session.ended = max(1, self.now)
        tx = session.tx
        if tx is not None and tx.xid is not None:
            tx.sessions.pop(session.id, None)
            tx.rollback_only = True
            session.tx = None
        elif tx is not None and tx.state == "active":
            self._decide(tx, "rolled back", "session")
        for queue, item in self._held(session):
            self._give_back(queue, item)
        self._keep(session)

    def _keep(self, session: Session) -> None:
        """Its retention begins when nothing is left to be done for it."""
        if session.ended and session.tx is None:
            session.old = max(1, self.now)

    def _held(self, session: Session) -> list[tuple[Queue, Item]]:
        found = [
            (queue, item)
            for queue in sorted(self.queues.values(), key=lambda queue: queue.id)
            for item in queue.items
            if item.place == "acquired" and item.session == session.id
        ]
        return sorted(found, key=lambda pair: (pair[0].id, pair[1].seq))

    def acquire(self, node: str, id: int, name: str, count: int, bytes_max: int) -> list[Item]:
        session = self.owned(node, id)
        taken: list[Item] = []
        size = 0
        for item in self._queue(name).available()[:count]:
            size += item.size
            if bytes_max and taken and size > bytes_max:
                break
            taken.append(item)
        for item in taken:
            self._hold(self._queue(name), item, session.id)
            item.deliveries += 1
        return taken

    def settle(
        self, node: str, id: int, name: str, how: str, seqs: Sequence[int]
    ) -> tuple[int, list[int]]:
        session = self.owned(node, id)
        queue = self.queues.get(name)
        items = {item.seq: item for item in queue.items} if queue is not None else {}
        missing = []
        mine = []
        for seq in seqs:
            item = items.get(seq)
            if item is None or not self._may_accept(session, item) or item in mine:
                missing.append(seq)
            else:
                mine.append(item)
        for item in mine:
            assert queue is not None
            item.returning = None
            if how == "accept":
                queue.items.remove(item)
            elif how == "release":
                self._give_back(queue, item)
            elif how == "put_back":
                item.deliveries -= 1
                item.session, item.place = 0, "available"
            else:
                self._bury(queue, item)
        return len(mine), missing

    # --- what is done under a transaction ---

    def _resolve(
        self, session: Session, operations: Sequence[Operation]
    ) -> list[tuple[Queue, Message | Item]]:
        """What the operations are about. What has yet to return to the session has now."""
        found: list[tuple[Queue, Message | Item]] = []
        self.reclaimed = []
        for operation in operations:
            queue = self._queue(operation.queue)
            if isinstance(operation, PublishTo):
                found += [(queue, message) for message in operation.messages]
                continue
            for seq in operation.seqs:
                item = next((item for item in queue.items if item.seq == seq), None)
                if item is None or not self._may_accept(session, item):
                    raise No("not_held")
                if item.returning is not None:
                    self.reclaimed.append((queue, item))
                if any(one is item for _, one in found):
                    raise No("not_held")
                found.append((queue, item))
        self._reclaim()
        return found

    def _reclaim(self) -> None:
        for queue, item in self.reclaimed:
            if item.returning is not None:
                self._hold(queue, item, item.returning.session)
                item.returning = None

    def _may_accept(self, session: Session, item: Item) -> bool:
        if item.returning is not None:
            return item.returning.session == session.id
        return item.place == "acquired" and item.session == session.id

    def _require_size(self, tx: Tx, found: list[tuple[Queue, Message | Item]]) -> None:
        if found and len(tx.operations) + len(found) > self.transaction_rows_max:
            raise No("transaction_too_large")

    def _stage(self, tx: Tx, found: list[tuple[Queue, Message | Item]]) -> None:
        for _, one in found:
            if isinstance(one, Item):
                one.place = "accepted"
        tx.operations += found

    def _opened(self, **more: object) -> Tx:
        self.numbers += 1
        tx = Tx(self.numbers, **more)  # type: ignore[arg-type]
        self.open[tx.number] = tx
        return tx

    def stage(self, node: str, id: int, counter: int, operations: Sequence[Operation]) -> None:
        session = self.owned(node, id)
        tx = self._tx_of(session, counter) if counter else self._branch_of(session)
        found = self._resolve(session, operations)
        self._require_size(tx or Tx(0), found)
        if tx is None:
            deadline = self.now + self.transaction_timeout if self.transaction_timeout else 0
            tx = session.tx = self._opened(session=id, counter=counter, deadline=deadline)
        self._stage(tx, found)

    def _tx_of(self, session: Session, counter: int) -> Tx | None:
        if counter <= session.decided:
            raise No("transaction_over")
        if session.kind != "tx":
            raise No("wrong_kind")
        if counter > session.decided + 1:
            raise No("unknown_transaction")
        if session.tx is not None:
            if session.tx.state != "active":
                raise No("transaction_closed")
            if self._is_late(session.tx):
                raise No("rollback_only")
        return session.tx

    def _branch_of(self, session: Session) -> Tx:
        if session.kind != "dtx":
            raise No("wrong_kind")
        if session.tx is None:
            raise No("not_in_branch")
        tx = session.tx
        if tx.state == "failed" or tx.rollback_only or self._is_late(tx):
            raise No("rollback_only")
        return tx

    def _is_late(self, tx: Tx) -> bool:
        return 0 < tx.deadline <= self.now

    # --- TX ---

    def commit(
        self, node: str, id: int, counter: int, operations: Sequence[Operation]
    ) -> tuple[str, str]:
        """(verdict, cause), or ("voting", "")."""
        known = self.sessions.get(id)
        if known is not None and counter <= known.decided:
            return self._fate(known, counter)
        tx = None if known is None else known.tx
        if tx is not None and (tx.xid, tx.counter, tx.state) == (None, counter, "preparing"):
            return "voting", ""
        session = self._next(node, id, counter)
        tx = session.tx
        if tx is not None and self._is_late(tx):
            return self._roll_back(session, "timeout")
        try:
            found = self._resolve(session, operations)
            whole = Tx(0, operations=[*(tx.operations if tx else ()), *found])
            self._require_size(Tx(0), whole.operations)
            for queue in whole.queues():
                self._require_room(queue, *whole.net(queue))
        except No as refusal:
            self._reclaim()
            return self._roll_back(session, f"txqueue_{refusal}")
        votes = self._participants()
        asked = bool(votes) and (bool(found) or tx is not None)
        if tx is None:
            if asked:
                tx = session.tx = self._opened(session=id, counter=counter)
            else:
                tx = Tx(0, session=id, counter=counter)
        self._stage(tx, found)
        if asked:
            self._close(tx, votes, then_commit=True)
            return "voting", ""
        self._decide(tx, "committed")
        return "committed", ""

    def _next(self, node: str, id: int, counter: int) -> Session:
        session = self.owned(node, id)
        if session.kind != "tx":
            raise No("wrong_kind")
        if counter > session.decided + 1:
            raise No("unknown_transaction")
        return session

    def _fate(self, session: Session, counter: int) -> tuple[str, str]:
        cause = session.fates[counter]
        return ("rolled back", cause) if cause else ("committed", "")

    def rollback(self, node: str, id: int, counter: int) -> tuple[str, str]:
        known = self.sessions.get(id)
        if known is not None and counter <= known.decided:
            return self._fate(known, counter)
        return self._roll_back(self._next(node, id, counter), "rollback")

    def _roll_back(self, session: Session, cause: str) -> tuple[str, str]:
        tx = session.tx or Tx(0, session=session.id, counter=session.decided + 1)
        self._decide(tx, "rolled back", cause)
        return "rolled back", cause

    def outcome(self, id: int, counter: int) -> tuple[str, str]:
        session = self.sessions.get(id)
        if session is None:
            return ("forgotten" if 0 < id <= self.sessions_ever else "unknown"), ""
        if counter <= session.decided:
            return self._fate(session, counter)
        tx = session.tx
        if tx is not None and tx.xid is None and tx.counter == counter:
            if tx.state == "preparing":
                return "preparing", ""
            if self.live(session):
                return "active", ""
        return ("unknown", "") if self.live(session) else ("rolled back", "session")

    # --- deciding ---

    def _participants(self) -> dict[tuple[str, int], bool]:
        return {one: False for one in sorted(self.observers.items()) if self.is_up(*one)}

    def _close(self, tx: Tx, votes: dict[tuple[str, int], bool], then_commit: bool) -> None:
        tx.votes, tx.then_commit = votes, then_commit
        tx.state = "preparing" if votes else "prepared"
        tx.deadline = self.now + self.prepare_timeout if votes else 0

    def _decide(self, tx: Tx, state: str, cause: str = "") -> None:
        """The end of a transaction: its content is visible, or was never there."""
        self.open.pop(tx.number, None)
        # What comes in one Commit is never large: its operations are in that entry.
        large = tx.number > 0 and len(tx.operations) > self.entry_rows
        was, tx.state, tx.cause, tx.deadline = tx.state, state, cause, 0
        assert was in ("active", "preparing", "prepared")
        session = self.sessions.get(tx.session)
        if state in ("committed", "heuristically committed"):
            for queue in tx.queues():
                for item in tx.accepted(queue):
                    queue.items.remove(item)
                if tx.published(queue):
                    self._append(queue, tx.published(queue), drop=0 if large else 1_000)
        elif large:
            for _, one in tx.operations:
                if isinstance(one, Item):
                    one.returning = tx
            self.returning.append(tx)
        else:
            for queue in tx.queues():
                for item in tx.accepted(queue):
                    self._undo(queue, item, session)
        if tx.xid is None and session is not None:
            session.fates[tx.counter] = cause if state == "rolled back" else ""
            session.tx = None
            self._keep(session)

    def _undo(self, queue: Queue, item: Item, session: Session | None) -> None:
        """An accepted message returns to the live session of a TX, or to its queue."""
        if session is not None and self.live(session):
            self._hold(queue, item, session.id)
            item.returning = None
        else:
            self._give_back(queue, item)

    def vote(self, node: str, number: int, yes: bool) -> None:
        tx = self.open.get(number)
        me = (node, self.nodes[node][0])
        if tx is None or tx.state != "preparing" or tx.votes.get(me, True):
            return
        if not yes:
            self._fail(tx, "vote")
            return
        tx.votes[me] = True
        if not all(tx.votes.values()):
            return
        if not tx.then_commit:
            tx.state, tx.deadline = "prepared", 0
        elif tx.xid is None:
            self._decide(tx, "committed")
        else:
            self._complete(tx, "committed", "coordinator")

    def _fail(self, tx: Tx, cause: str) -> None:
        """Rolled back, and nobody has asked for it."""
        if tx.xid is None:
            self._decide(tx, "rolled back", cause)
            return
        self._decide(tx, "failed", cause)
        tx.deadline = self.now + self.retention
        by = {"timeout": "timeout", "session": "session"}.get(cause, "coordinator")
        by = "vote" if cause in ("vote", "participant", "late") else by
        self.decisions[tx.xid] = ("rolled back", by)

    # --- branches ---

    def _known(self, xid: Key) -> Tx:
        if xid not in self.branches:
            raise No("unknown_xid")
        tx = self.branches[xid]
        dead = [id for id in tx.sessions if not self.live(self.sessions.get(id))]
        if dead or (tx.state == "active" and self._is_late(tx)):
            self.before = copy.deepcopy(self.__dict__)
            tx = self.branches[xid]
        for id in dead:
            suspended = tx.sessions.pop(id)
            tx.rollback_only = True
            if id in self.sessions and not suspended:
                self.sessions[id].tx = None
        if tx.state == "active" and self._is_late(tx):
            self._fail(tx, "timeout")
        return tx

    def start(
        self, node: str, id: int, xid: Key, join: bool, resume: bool, timeout: int | None
    ) -> int:
        session = self.owned(node, id)
        if session.kind != "dtx" or (join and resume) or session.tx is not None:
            raise No("command_invalid")
        if not join and not resume:
            if xid in self.branches:
                raise No("not_allowed")
            if timeout is None:
                timeout = self.dtx_timeout
            elif timeout > self.dtx_timeout_max:
                raise No("invalid_argument")
            deadline = self.now + timeout if timeout else 0
            tx = self._opened(xid=xid, timeout=timeout, deadline=deadline, sessions={id: False})
            self.branches[xid] = session.tx = tx
            return OK
        tx = self._known(xid)
        if resume != (id in tx.sessions):
            raise No("command_invalid")
        if tx.state == "failed" or (tx.state == "active" and tx.rollback_only):
            return self._told(tx)
        if tx.state != "active":
            raise No("illegal_state")
        tx.sessions[id] = False
        session.tx = tx
        return OK

    def _told(self, tx: Tx) -> int:
        return RBTIMEOUT if tx.cause == "timeout" else RBROLLBACK

    def end(
        self,
        node: str,
        id: int,
        xid: Key,
        suspend: bool,
        fail: bool,
        operations: Sequence[Operation],
    ) -> int:
        if suspend and fail:
            raise No("command_invalid")
        session = self.owned(node, id)
        if xid not in self.branches:
            raise No("illegal_state")
        tx = self._known(xid)
        if id not in tx.sessions or (suspend and tx.sessions[id]):
            raise No("illegal_state")
        if operations and tx.sessions[id]:
            raise No("command_invalid")
        if not (tx.state == "failed" or tx.rollback_only):
            if operations:
                if session.kind != "dtx":
                    raise No("wrong_kind")
                found = self._resolve(session, operations)
                self._require_size(tx, found)
                self._stage(tx, found)
            tx.rollback_only = fail
        if not tx.sessions.pop(id):
            session.tx = None
        if tx.state == "failed" or tx.rollback_only:
            return self._told(tx)
        if suspend:
            tx.sessions[id] = True
        return OK

    def prepare(self, xid: Key) -> int | str:
        """A status, or "voting"."""
        tx = self._known(xid)
        if tx.state == "prepared":
            return OK
        if tx.state == "preparing" and not tx.then_commit:
            return "voting"
        if tx.state not in ("active", "failed") or tx.sessions:
            raise No("illegal_state")
        if tx.state == "failed":
            if tx.cause == "timeout":
                self._forget(tx)
            return self._told(tx)
        if tx.rollback_only:
            self._fail(tx, "session")
            return RBROLLBACK
        if not tx.operations:
            self._complete(tx, "committed", "read only")
            return RDONLY
        if not self._has_room(tx):
            self._fail(tx, "txqueue_queue_full")
            return RBROLLBACK
        votes = self._participants()
        self._close(tx, votes, then_commit=False)
        return "voting" if votes else OK

    def _has_room(self, tx: Tx) -> bool:
        try:
            for queue in tx.queues():
                self._require_room(queue, *tx.net(queue))
        except No:
            return False
        return True

    def commit_branch(self, xid: Key, one_phase: bool) -> int | str:
        tx = self._known(xid)
        if tx.state.startswith("heuristically"):
            return HEURCOM if tx.state.endswith("committed") else HEURRB
        if tx.state == "preparing" and tx.then_commit and one_phase:
            return "voting"
        if tx.state == "prepared" and not one_phase:
            self._complete(tx, "committed", "coordinator")
            return OK
        if tx.state in ("preparing", "prepared") or tx.sessions:
            raise No("illegal_state")
        if not one_phase and tx.cause != "timeout":
            raise No("illegal_state")
        if tx.state == "failed":
            self._forget(tx)
            return self._told(tx)
        if tx.rollback_only:
            self._complete(tx, "rolled back", "session")
            return RBROLLBACK
        if not self._has_room(tx):
            self._complete(tx, "rolled back", "coordinator")
            return RBROLLBACK
        votes = self._participants()
        if votes and tx.operations:
            self._close(tx, votes, then_commit=True)
            return "voting"
        self._complete(tx, "committed", "coordinator")
        return OK

    def rollback_branch(self, xid: Key) -> int:
        tx = self._known(xid)
        if tx.state.startswith("heuristically"):
            return HEURCOM if tx.state.endswith("committed") else HEURRB
        if tx.sessions:
            raise No("illegal_state")
        if tx.state == "failed":
            self._forget(tx)
            return RBTIMEOUT if tx.cause == "timeout" else OK
        self._complete(tx, "rolled back", "coordinator")
        return OK

    def forget(self, xid: Key) -> int:
        tx = self._known(xid)
        if not tx.state.startswith("heuristically"):
            raise No("illegal_state")
        self._forget(tx)
        return OK

    def set_timeout(self, xid: Key, timeout: int) -> int:
        tx = self._known(xid)
        if tx.state != "active":
            raise No("illegal_state")
        if timeout > self.dtx_timeout_max:
            raise No("invalid_argument")
        tx.timeout, tx.deadline = timeout, self.now + timeout if timeout else 0
        return OK

    def heuristic(self, xid: Key, commit: bool) -> int:
        tx = self._known(xid)
        if tx.state != "prepared":
            raise No("illegal_state")
        verdict = "committed" if commit else "rolled back"
        self._decide(tx, f"heuristically {verdict}")
        self.decisions[xid] = (verdict, "operator")
        return OK

    def _complete(self, tx: Tx, verdict: str, by: str) -> None:
        assert tx.xid is not None
        self._decide(tx, verdict)
        del self.branches[tx.xid]
        self.decisions[tx.xid] = (verdict, by)

    def _forget(self, tx: Tx) -> None:
        assert tx.xid is not None
        del self.branches[tx.xid]

    # --- later ---

    def sweep(self) -> None:
        """All of it."""
        for node, life in sorted(self.ended_lives):
            for session in list(self.sessions.values()):
                if (session.node, session.life) == (node, life) and not session.ended:
                    self._end(session)
        self.ended_lives = []
        self._sweep_late()
        self._sweep_overdue()
        for tx in sorted(self.returning, key=lambda tx: tx.number):
            holder = self.sessions.get(tx.session)
            for queue in sorted(tx.queues(), key=lambda queue: queue.id):
                for item in tx.accepted(queue):
                    if item.returning is tx:
                        self._undo(queue, item, holder)
        self.returning = []
        for queue in self.queues.values():
            if queue.overfull:
                self._make_room(queue)
                queue.overfull = False
        self._forget_sessions()

    def _sweep_late(self) -> None:
        failed = [tx for tx in self.branches.values() if tx.state == "failed"]
        everything = sorted([*self.open.values(), *failed], key=lambda tx: (tx.deadline, tx.number))
        for tx in everything:
            if not tx.deadline:
                continue
            gone = [one for one, voted in tx.votes.items() if not voted and not self.is_up(*one)]
            if tx.state == "failed":
                if self._is_late(tx):
                    for id in tx.sessions:
                        if id in self.sessions and self.sessions[id].tx is tx:
                            self.sessions[id].tx = None
                    self._forget(tx)
            elif tx.state == "preparing" and gone:
                self._fail(tx, "participant")
            elif self._is_late(tx):
                self._fail(tx, "late" if tx.state == "preparing" else "timeout")

    def _sweep_overdue(self) -> None:
        """A session that holds a message for too long ends; a longer time-out counts at once."""
        held = [
            (item.due, item.session, queue.id, item.seq, queue, item)
            for queue in self.queues.values()
            for item in queue.items
            if item.place == "acquired" and item.due and item.due <= self.now
        ]
        for _, id, _, _, queue, item in sorted(held, key=lambda each: each[:4]):
            if item.place != "acquired" or item.session != id:
                continue  # it went back with its session
            later = item.since + queue.ack_timeout_ms
            if not queue.ack_timeout_ms:
                item.due = 0
            elif later > self.now:
                item.due = later
            else:
                self._end(self.sessions[id])

    def _forget_sessions(self) -> None:
        for session in list(self.sessions.values()):
            if session.old and session.old + self.retention <= self.now:
                del self.sessions[session.id]
