"""What is known of every message, session and transaction of a storm, for ever.

The plugin forgets: rows are swept, outcomes grow old, xids are free again. The `Ledger` does not,
so that what a program was told can be compared with what was decided long ago.

Rules of this file. It is a second implementation of the queues, as simple as can be: dicts that are
scanned, no spans, no cursors, no sweeping. It is told what a step does (`storm_check.py` and
`storm_deciding.py` find that by the rules), and does it here. Of the plugin's tables it takes
nothing.

A message is known by its *tag*, which stands at the beginning of its body: nobody publishes the
same one twice, so a tag that enters twice is a message that was doubled.

*Loose* items are those which an ended session held, or a transaction that was rolled back: they
come back whenever Sweep gets to them, and until then nobody may see them as available.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from raftkv.plugin import Member
from raftkv_txqueue.commands import AcceptOf, Message, Operation, PublishTo, size_of

__all__ = [
    "CLOSED",
    "UNDECIDED",
    "Book",
    "Item",
    "Ledger",
    "Life",
    "Step",
    "Work",
    "tag_of",
]

TTL, DELAY = "x-raftkv-ttl-ms", "x-raftkv-delay-ms"
#: States in which a transaction is neither committed nor rolled back.
UNDECIDED = ("active", "preparing", "prepared")
#: Of these: nothing more may be staged.
CLOSED = ("preparing", "prepared")


def tag_of(message: Message) -> bytes:
    """What tells the message from all others."""
    return message.body.partition(b"/")[0]


@dataclass(slots=True)
class Item:
    """A message in a queue. `holder`: the session that acquired it, at `since_ms` of the log's
    clock, and must have settled it at `due_ms` (0: whenever); `work`: who accepted it.

    `comes_ms`: when its delay is over; `expires_ms`: when its time to live is, 0: never.
    `returned_version`: the plugin's format when a rolled back transaction had given it back; 0: it
    has not yet.
    """

    message: Message
    state: str = "available"
    deliveries: int = 0
    holder: int = 0
    work: Work | None = None
    loose: bool = False
    since_ms: int = 0
    due_ms: int = 0
    comes_ms: int = 0
    expires_ms: int = 0
    returned_version: int = 0


def _timed_item(message: Message, now: int, ttl_max_ms: int) -> Item:
    """A message that becomes visible now, in a queue that bounds times to live (0: or not)."""
    headers = dict(message.headers)
    delay_ms, ttl_ms = int(headers.get(DELAY, 0)), int(headers.get(TTL, 0))
    ttl_ms = min((each for each in (ttl_ms, ttl_max_ms) if each), default=0)
    due_ms = now + delay_ms
    return Item(
        message,
        state="delayed" if delay_ms else "available",
        comes_ms=due_ms if delay_ms else 0,
        expires_ms=due_ms + ttl_ms if ttl_ms else 0,
    )


@dataclass(slots=True)
class Book:
    """A queue, with all that is in it by seq."""

    id: int
    name: str
    depth_max: int = 0
    bytes_max: int = 0
    overflow: str = "refuse"
    deliveries_max: int = 0
    dead_letter: str = ""
    ack_timeout_ms: int = 0
    ttl_ms: int = 0
    items: dict[int, Item] = field(default_factory=dict)
    next: int = 1
    dropped: int = 0
    dead: int = 0
    deleted: bool = False

    @property
    def bytes(self) -> int:
        return sum(size_of(each.message) for each in self.items.values())

    def available(self) -> list[int]:
        """Seqs, the oldest first."""
        return [seq for seq, each in self.items.items() if each.state == "available"]

    def hold(self, seq: int, session: int, since_ms: int) -> None:
        """The session has it; 0: since format 1, which did not note the time."""
        item = self.items[seq]
        item.state, item.holder, item.since_ms = "acquired", session, since_ms
        item.due_ms = since_ms + self.ack_timeout_ms if self.ack_timeout_ms and since_ms else 0

    def overdue(self, session: int, now_ms: int) -> list[int]:
        """What the session has held for longer than it may."""
        return [
            seq
            for seq, each in self.items.items()
            if each.state == "acquired" and each.holder == session and not each.loose
            if 0 < each.due_ms <= now_ms and self.ack_timeout_ms > 0
            if each.since_ms + self.ack_timeout_ms <= now_ms
        ]

    def held_by(self, session: int) -> list[int]:
        """What the session acquired and may settle.

        What a transaction of it had accepted that was rolled back is its own again at once.
        """
        return [
            seq
            for seq, each in self.items.items()
            if each.holder == session
            and (each.work is not None if each.loose else each.state == "acquired")
        ]


@dataclass(slots=True)
class Life:
    """A session. `fates`: counter -> its TX, decided or not."""

    id: int
    node: str
    incarnation: int
    kind: str
    ended: bool = False
    # "operator", "ack_timeout"; "": its program, or the end of its node's life.
    ended_by: str = ""
    decided: int = 0
    fates: dict[int, Work] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Work:
    """A transaction, for ever. `operations`: (kind, queue id, message or seq), in order."""

    session: int
    counter: int
    xid: Any
    number: int = 0
    state: str = "active"
    deadline_ms: int = 0
    then_commit: bool = False
    operations: list[tuple[str, int, Any]] = field(default_factory=list)
    # What the queue of each of them had as its time to live when it was staged.
    ttls: list[int] = field(default_factory=list)
    votes: dict[tuple[str, int], bool] = field(default_factory=dict)
    refused_by: str = ""
    # session -> suspended
    associations: dict[int, bool] = field(default_factory=dict)
    doomed: bool = False
    # It has been prepared: a promise from then on, whatever became of it.
    promised: int = 0
    decided: int = 0
    cause: str = ""
    reason: str = ""
    # (queue, first, last) of what it published.
    spans: list[tuple[str, int, int]] = field(default_factory=list)
    # queue id -> (messages, bytes) that were promised room when it was closed.
    reserved: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """As people write it."""
        return f"{self.session}.{self.counter}" if self.xid is None else str(self.xid)

    @property
    def is_open(self) -> bool:
        """Neither committed nor rolled back."""
        return self.state in UNDECIDED

    @property
    def tags(self) -> list[bytes]:
        """Of the messages that it publishes, in order."""
        return [tag_of(what) for kind, _, what in self.operations if kind == "publish"]

    def __str__(self) -> str:
        because = f", {self.cause}: {self.reason}" if self.cause else ""
        return f"transaction {self.name} ({self.state}, {len(self.operations)} operations{because})"


@dataclass(frozen=True, slots=True)
class Step:
    """One command, or a change of members, as it was first applied anywhere.

    `tables` are the plugin's after it; valid in this step only.
    """

    index: int
    serial: int
    now: int
    command: Any
    # (node, incarnation) of the session that sent it; None for a change.
    origin: tuple[str, int] | None
    members: Mapping[str, Member]
    settings: Mapping[str, Any]
    tables: Any
    result: Any = None
    refusal: Exception | None = None

    def lives(self, node: str, incarnation: int) -> bool:
        """Whether that life of the node goes on."""
        member = self.members.get(node)
        return member is not None and member.up and member.incarnation == incarnation

    @property
    def version(self) -> int:
        """The format of the plugin that is active."""
        return int(self.tables.version)

    def live(self, life: Life) -> bool:
        """Whether the session does."""
        return not life.ended and self.lives(life.node, life.incarnation)


class Ledger:
    """What the steps did, in order."""

    def __init__(self) -> None:
        self.queues: dict[str, Book] = {}
        self.by_id: dict[int, Book] = {}
        self.sessions: dict[int, Life] = {}
        # Undecided ones, and decided ones whose xid is not forgotten.
        self.open: list[Work] = []
        self.branches: dict[Any, Work] = {}
        # Everything that ever was: of a xid that was used again the last one counts.
        self.works: list[Work] = []
        self.by_xid: dict[Any, list[Work]] = {}
        # tag -> (queue id, seq, index) where it entered.
        self.entered: dict[bytes, list[tuple[int, int, int]]] = {}
        # (queue id, seq) -> tag, of every message that ever stood there.
        self.placed: dict[tuple[int, int], bytes] = {}
        # tag -> what became of it: "accepted", "purged", "dropped", "dead", "deleted".
        self.gone: dict[bytes, str] = {}
        # (session, queue id, seq) -> deliveries, at any time.
        self.acquired: dict[tuple[int, int, int], int] = {}
        self.accepted: dict[tuple[int, int], int] = {}
        self.observers: dict[str, int] = {}
        # queue id -> what closed transactions have reserved, as its row said after the last step.
        self.reserved: dict[int, tuple[int, int]] = {}
        self.rows: dict[str, Any] = {}
        self.depths: dict[int, int] = {}
        # Decided transactions whose rows are still to be moved, after the last step.
        self.unfolding = 0
        # What the step under judgement has touched, by queue id.
        self.touched: dict[int, None] = {}
        # Of the same step: transactions that changed, messages that died, and that came back.
        self.moved: list[Work] = []
        self.buried = 0
        self.returned = 0
        self.lost_sessions = 0
        self.timed_out = 0
        # Messages whose delay was over; that had expired, of these by their queue; that were sent
        # to the back.
        self.came = self.expired = self.aged = self.sent_back = 0
        self.now = 0
        # queue id -> the first seq that it gave.
        self.appended: dict[int, int] = {}
        # Dead letters that are to be found at the end of their queue: name -> messages.
        self.letters: dict[str, list[Message]] = {}

    def begin_step(self, now: int) -> None:
        """Nothing was touched yet. `now`: the log's clock."""
        self.now, self.came, self.expired, self.aged, self.sent_back = now, 0, 0, 0, 0
        self.touched, self.letters, self.appended = {}, {}, {}
        self.moved, self.buried, self.returned, self.lost_sessions = [], 0, 0, 0
        self.timed_out = 0

    # --- looking ---

    def book(self, name: str) -> Book | None:
        return self.queues.get(name)

    def tx(self, session: int, counter: int) -> Work | None:
        """A TX that has begun."""
        life = self.sessions.get(session)
        return None if life is None else life.fates.get(counter)

    def is_decided(self, txid: str) -> bool:
        """Whether the TX of that name is committed or rolled back."""
        session, _, counter = txid.partition(".")
        life = self.sessions.get(int(session))
        return life is not None and int(counter) <= life.decided

    def attached(self, session: int) -> Work | None:
        """The branch that the session works in now."""
        for work in self.branches.values():
            if work.associations.get(session) is False:
                return work
        return None

    def in_flight(self, session: int) -> Work | None:
        """Its undecided TX."""
        for work in self.open:
            if work.xid is None and work.session == session:
                return work
        return None

    def live_observers(self, step: Step) -> dict[tuple[str, int], bool]:
        """Who takes part if a transaction is closed now."""
        return {
            (node, life): False for node, life in self.observers.items() if step.lives(node, life)
        }

    def net(self, work: Work) -> dict[int, tuple[int, int]]:
        """(messages, bytes) by which each queue grows, by its id, when the work is committed."""
        grows: dict[int, tuple[int, int]] = {}
        for kind, id_, what in work.operations:
            count, size = grows.get(id_, (0, 0))
            if kind == "publish":
                grows[id_] = (count + 1, size + size_of(what))
            else:
                item = self.by_id[id_].items[what]
                grows[id_] = (count - 1, size - size_of(item.message))
        return grows

    # --- messages ---

    def append(self, book: Book, message: Message, index: int, ttl_ms: int | None = None) -> int:
        """It becomes visible; its seq. `ttl_ms`: what the queue had; None: what it has now."""
        seq, book.next = book.next, book.next + 1
        ttl_ms = book.ttl_ms if ttl_ms is None else ttl_ms
        book.items[seq] = _timed_item(message, self.now, ttl_ms)
        self.appended.setdefault(book.id, seq)
        self.placed[(book.id, seq)] = tag_of(message)
        self.touched[book.id] = None
        self.entered.setdefault(tag_of(message), []).append((book.id, seq, index))
        return seq

    def remove(self, book: Book, seq: int, why: str) -> Item:
        """It leaves the queue."""
        item = book.items.pop(seq)
        self.gone[tag_of(item.message)] = why
        self.touched[book.id] = None
        return item

    def bury(self, book: Book, seq: int) -> None:
        """To the dead letters, if there is such a queue."""
        item = self.remove(book, seq, "dead")
        book.dead += 1
        self.buried += 1
        if book.dead_letter in self.queues:
            headers = tuple(pair for pair in item.message.headers if pair[0] not in (TTL, DELAY))
            letter = Message(item.message.body, headers)
            self.letters.setdefault(book.dead_letter, []).append(letter)
            self.touched[self.queues[book.dead_letter].id] = None

    def give_back(self, book: Book, seq: int) -> None:
        """It comes back, or has come back too often."""
        item = book.items[seq]
        self.touched[book.id] = None
        self.returned += 1
        if self.has_expired(item):
            self.expire(book, seq)
        elif 0 < book.deliveries_max <= item.deliveries:
            self.bury(book, seq)
        else:
            item.state, item.holder, item.work, item.loose = "available", 0, None, False

    def put_back(self, book: Book, seq: int) -> None:
        """It comes back, and this delivery was none."""
        item = book.items[seq]
        self.touched[book.id] = None
        self.returned += 1
        item.deliveries -= 1
        if self.has_expired(item):
            self.expire(book, seq)
        else:
            item.state, item.holder, item.work, item.loose = "available", 0, None, False

    def to_back(self, book: Book, seq: int) -> None:
        """It comes back behind all others, unless it is dead."""
        self.give_back(book, seq)
        if seq not in book.items:
            return
        new, book.next = book.next, book.next + 1
        book.items[new] = book.items.pop(seq)
        self.appended.setdefault(book.id, new)
        self.placed[(book.id, new)] = tag_of(book.items[new].message)
        self.sent_back += 1

    # --- times ---

    def has_expired(self, item: Item) -> bool:
        """Whether it is dead for its age."""
        return 0 < item.expires_ms <= self.now

    def come(self, book: Book, seq: int) -> None:
        """Its delay is over."""
        book.items[seq].state = "available"
        self.touched[book.id] = None
        self.came += 1

    def expire(self, book: Book, seq: int) -> None:
        """Its time to live is over, and it is available."""
        self.expired += 1
        self.aged += TTL not in dict(book.items[seq].message.headers)
        self.bury(book, seq)

    def fire(self) -> None:
        """Whatever time is over is over in all queues."""
        for book in list(self.queues.values()):
            for seq, item in list(book.items.items()):
                if item.state == "delayed" and item.comes_ms <= self.now:
                    self.come(book, seq)
                if item.state == "available" and not item.loose and self.has_expired(item):
                    self.expire(book, seq)

    # --- transactions ---

    def begin(self, work: Work) -> Work:
        self.open.append(work)
        self.works.append(work)
        if work.xid is None:
            self.sessions[work.session].fates[work.counter] = work
        else:
            self.branches[work.xid] = work
            self.by_xid.setdefault(work.xid, []).append(work)
        return work

    def problems(self, session: int, operations: tuple[Operation, ...]) -> list[str]:
        """Why these cannot be staged, by kind."""
        found: list[str] = []
        taken: set[tuple[str, int]] = set()
        for each in operations:
            book = self.queues.get(each.queue)
            if book is None:
                found.append("UnknownQueue")
            elif isinstance(each, AcceptOf):
                held = set(book.held_by(session))
                for seq in each.seqs:
                    if seq not in held or (each.queue, seq) in taken:
                        found.append("NotHeld")
                    taken.add((each.queue, seq))
        return found

    def stage(self, work: Work, operations: tuple[Operation, ...]) -> None:
        """They are a part of it now."""
        for each in operations:
            book = self.queues[each.queue]
            if isinstance(each, PublishTo):
                work.operations += [("publish", book.id, message) for message in each.messages]
                work.ttls += [book.ttl_ms] * len(each.messages)
                continue
            for seq in each.seqs:
                item = book.items[seq]
                item.state, item.work, item.loose = "accepted", work, False
                work.operations.append(("accept", book.id, seq))
                work.ttls.append(0)
                self.touched[book.id] = None

    def commit(self, work: Work, step: Step, state: str = "committed") -> None:
        """Everything of it becomes visible, and what it accepted is gone."""
        ranges: dict[str, tuple[int, int]] = {}
        for (kind, id_, what), ttl_ms in zip(work.operations, work.ttls, strict=True):
            book = self.by_id[id_]
            if kind == "accept":
                self.accepted[(id_, what)] = work.session
                self.remove(book, what, "accepted")
                continue
            seq = self.append(book, what, step.index, ttl_ms)
            ranges[book.name] = (ranges.get(book.name, (seq, seq))[0], seq)
        # In the order in which the queues were first used, for whatever.
        used = dict.fromkeys(self.by_id[id_].name for _, id_, _ in work.operations)
        work.spans = [(name, *ranges[name]) for name in used if name in ranges]
        self._decide(work, state, step)

    def roll_back(self, work: Work, step: Step, state: str = "rolled back") -> None:
        """What it accepted goes back to the session (TX), or to the queue."""
        life = self.sessions.get(work.session)
        keeps = work.xid is None and life is not None and step.live(life)
        for seq, book in self.accepts(work):
            item = book.items[seq]
            item.loose, item.work, item.returned_version = True, work, 0
            if keeps:
                item.holder = work.session
            else:
                item.holder = 0
            self.touched[book.id] = None
        self._decide(work, state, step)

    def accepts(self, work: Work) -> Iterator[tuple[int, Book]]:
        """What is accepted in it, and not gone."""
        for kind, id_, what in work.operations:
            if kind == "accept":
                yield what, self.by_id[id_]

    def _decide(self, work: Work, state: str, step: Step) -> None:
        work.state, work.decided = state, step.index
        self.open.remove(work)
        if work.xid is None:
            life = self.sessions[work.session]
            life.decided = max(life.decided, work.counter)
