"""What transactional queues keep: the rows of their tables, and what these have in common with the
commands (`commands.py`). Everything here is data.

A *message* has the id (queue, seq); the log gives the seq when the message becomes visible, so for
one that is published in a transaction at its commit. From then on it is in exactly one place:

- *fresh*: seq >= Queue.cursor; nobody has ever acquired it;
- `returned`: it was acquired and came back; its seq is below the cursor, so order is kept;
- `locks`: a session holds it (`locks.py`);
- `accepts`: a session accepted it in a transaction that is not decided yet;
- `delayed`: it was published with a delay that is not over.

Fresh and returned ones are *available*. The body stands in `messages` all the while. Where a seq
from the cursor on is not fresh (delayed, expired, or returned to the back) it is in `gaps`.

A *transaction* is named by its session and a counter ("12.7", TX) or by a xid (DTX); inside, each
has a number. What is done under it is *staged* (the seed's tx-queue): `staged` and `accepts`. A
session has one TX at a time and counters are decided in order, so that the one number
`SessionRow.decided`, with the exceptions in `rollbacks`, knows the fate of all of them.

The entry that decides is the only one in which anything becomes visible. When a transaction has
more rows than one entry may touch, its messages are seen through `spans`, its accepted ones are
hidden by its number, and the counters of the queues are already right: `Sweep` moves the rows later
and nobody can tell.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from raftkv.plugin import TableSpec

from .xa import Xid

__all__ = [
    "ACK_TIMEOUT_MS_MAX",
    "ACK_TIMEOUT_MS_MIN",
    "COMMAND_BYTES",
    "ENDINGS_KEPT",
    "FRESH",
    "HEADERS_MAX",
    "INT_MAX",
    "MESSAGE_OVERHEAD",
    "NAME_CHARS_MAX",
    "REASON_CHARS_MAX",
    "ROWS_MAX",
    "TABLES",
    "TIMED_MAX",
    "TRANSACTION_QUEUES_MAX",
    "AcceptOf",
    "Association",
    "Count",
    "Counter",
    "DecisionRow",
    "EndedBy",
    "Ending",
    "Kind",
    "Lock",
    "Message",
    "Meta",
    "Operation",
    "Overflow",
    "Part",
    "Participant",
    "PublishTo",
    "Queue",
    "RollbackRow",
    "Rows",
    "Seq",
    "SessionId",
    "SessionRow",
    "Settling",
    "SettlingVerb",
    "Span",
    "StagedAccept",
    "StagedMessage",
    "State",
    "Stored",
    "TransactionRow",
    "Verdict",
    "size_of",
]

INT_MAX: Final = 2**63 - 1
#: Rows (messages, acquired or accepted ones, ...) of one command: what one entry may touch.
ROWS_MAX: Final = 1_000
#: Bytes of messages in one command, as `size_of` counts them; one message may have more, up to the
#: setting message_bytes_max. Larger batches and transactions go in several commands.
COMMAND_BYTES: Final = 512 * 1024
#: What a message counts besides its body and headers, in bytes.
MESSAGE_OVERHEAD: Final = 64
#: Queues of one transaction.
TRANSACTION_QUEUES_MAX: Final = 64
#: Letters of the name of a queue.
NAME_CHARS_MAX: Final = 255
#: Letters of a reason that are kept; the rest is cut off.
REASON_CHARS_MAX: Final = 500
#: Acknowledgement time-outs that a queue may have, in milliseconds; 0: none.
ACK_TIMEOUT_MS_MIN: Final = 100
ACK_TIMEOUT_MS_MAX: Final = 7 * 24 * 3_600_000
#: Sessions ended by others of which the reason is kept: nodes look at once.
ENDINGS_KEPT: Final = 1_000
#: Headers of one message.
HEADERS_MAX: Final = 64
#: Messages with a time to live or a delay in one transaction: the entry that decides it writes a
#: timer for each.
TIMED_MAX: Final = 1_000

Seq = Annotated[int, msgspec.Meta(ge=1, le=INT_MAX)]
SessionId = Annotated[int, msgspec.Meta(ge=1, le=INT_MAX)]
Counter = Annotated[int, msgspec.Meta(ge=1, le=INT_MAX)]
Count = Annotated[int, msgspec.Meta(ge=0, le=INT_MAX)]
Rows = Annotated[int, msgspec.Meta(ge=1, le=ROWS_MAX)]

Overflow = Literal["refuse", "drop_oldest"]
Kind = Literal["plain", "tx", "dtx"]
Settling = Literal["accept", "release", "reject"]
#: What a program may do with what it holds: `Settling`, put back what it has not looked at, and
#: return it to the back of its queue.
SettlingVerb = Literal["accept", "release", "reject", "put_back", "to_back"]
Verdict = Literal["committed", "rolled back"]
#: Who ended a session that neither its program nor the end of its node's incarnation has ended.
EndedBy = Literal["operator", "ack_timeout"]


# --- parts of commands ----------------------------------------------------------------------------


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a producer says. Headers are pairs of texts, in the producer's order."""

    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


def size_of(message: Message) -> int:
    """What it counts against limits, in bytes."""
    size = MESSAGE_OVERHEAD + len(message.body)
    for name, value in message.headers:
        size += _bytes_of(name) + _bytes_of(value)
    return size


def _bytes_of(text: str) -> int:
    """Of its UTF-8; what is no text at all is for others to refuse."""
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))


class PublishTo(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="publish"):
    """Operation of a transaction: these messages, in this order."""

    queue: str
    messages: tuple[Message, ...]


class AcceptOf(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="accept"):
    """Operation of a transaction: these messages, which the session holds, are done with."""

    queue: str
    seqs: tuple[Seq, ...]


Operation = PublishTo | AcceptOf


# --- rows -----------------------------------------------------------------------------------------


class Queue(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A queue. Its id is never used again, so the rows of a deleted one can be swept later.

    `depth_max` messages and `bytes_max` bytes (0: no limit) count what is in it, acquired ones too,
    plus what prepared and preparing transactions have reserved. `overflow`: what happens to a
    publication beyond them: it is refused, or the oldest available ones make room.
    `deliveries_max` (0: no limit): a message that comes back after that many deliveries, and one
    that is rejected, goes to `dead_letter` ("": it is dropped).

    `next`: the seq of the next message. `cursor`: the first fresh one. `ready`: available ones.
    `depth`, `bytes`: all of them. `reserved`, `reserved_bytes`: room that prepared ones were
    promised. `uses`: undecided transactions that have content of it (it cannot be deleted then).
    `dropped`, `dead`: ever, by overflow, and dead-lettered or dropped by `deliveries_max`/reject.
    """

    id: int
    depth_max: int = 0
    bytes_max: int = 0
    overflow: Overflow = "refuse"
    deliveries_max: int = 0
    dead_letter: str = ""
    next: int = 1
    cursor: int = 1
    ready: int = 0
    depth: int = 0
    bytes: int = 0
    reserved: int = 0
    reserved_bytes: int = 0
    uses: int = 0
    dropped: int = 0
    dead: int = 0


class Stored(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message in its queue. `at_ms`: the log's clock when it became visible."""

    message: Message
    at_ms: int


class StagedMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message of an undecided transaction; `order`: its place among all of its rows, 0, 1, ..."""

    order: int
    message: Message


class StagedAccept(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`session` held it and goes on to hold it if a TX is rolled back; see `StagedMessage`."""

    order: int
    session: int
    deliveries: int
    bytes: int


class Span(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """From the seq of its key on, `count` messages are those of `number`, until they are moved.

    The message `seq` is in `messages`, or else the staged one (number, queue id, seq - first).
    `at_ms`: of the commit.
    """

    number: int
    count: int
    at_ms: int


class Lock(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A session holds a message, delivered `deliveries` times with this one. Format 2.

    `since_ms`: the log's clock when the session acquired it, or got it back from a transaction that
    was rolled back. `due_ms`: when it must have been settled, as long as the queue's time-out
    stands; 0: never.
    """

    deliveries: int
    since_ms: int
    due_ms: int = 0


class Ending(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Why a session was ended by others, for the program that still uses it. Format 2.

    `reason`: the operator's. `queue`, `seq`, `timeout_ms`: which message it held for too long.
    """

    session: int
    by: EndedBy
    at_ms: int
    reason: str = ""
    queue: str = ""
    seq: int = 0
    timeout_ms: int = 0


class SessionRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A session of a program, tied to one life of its node.

    It is *live* while `ended_ms` is 0 and its node is up in that incarnation. `number`: its
    undecided transaction with rows of its own (TX), or the branch that it is attached to (DTX); 0:
    none. `held`: its rows in `locks`. `decided`: its TX up to here are decided; those in
    `rollbacks` were rolled back, those up to `forgotten` are no longer known, the others were
    committed. `ended_ms`: the log's clock when it ended, 0: it has not.
    """

    node: str
    incarnation: int
    kind: Kind = "plain"
    number: int = 0
    held: int = 0
    decided: int = 0
    rolled_back: int = 0
    forgotten: int = 0
    ended_ms: int = 0


class RollbackRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Why a TX was rolled back. `cause`: a word, for programs; `reason`: for people."""

    cause: str
    reason: str
    at_ms: int
    index: int


class Part(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a transaction has staged of one queue.

    `first`: where its span begins, of a large transaction that was committed; 0: it has none.
    """

    queue: int
    publishes: int = 0
    publish_bytes: int = 0
    accepts: int = 0
    accept_bytes: int = 0
    first: int = 0


class Participant(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A node, in that life, which was in when the transaction was closed. `voted`: it said yes."""

    node: str
    incarnation: int
    voted: bool = False


class Association(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A session that works in a branch. Suspended ones have not ended."""

    session: int
    suspended: bool = False


State = Literal[
    "active",  # operations may be staged
    "preparing",  # closed; the participants are asked
    "prepared",  # a promise; nothing but a decision ends it
    "failed",  # rolled back, its content freed; the coordinator has not been told (DTX only)
    "heuristically committed",  # by an operator; kept until it is forgotten (DTX only)
    "heuristically rolled back",
    "committed",  # decided; rows are still being moved
    "rolled back",
]


class TransactionRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A transaction that has rows in the log: a TX with `session` and `counter`, or a DTX.

    `xid` of a DTX, None of a TX. `parts`: per queue, in the order of first use. `rows`, `bytes`:
    of all parts. `then_commit`: the last vote commits (TX, one-phase DTX), else it only prepares.
    `deadline_ms` (0: none): when `Sweep` may roll it back; of a preparing one, when the votes are
    late; never of a prepared one. `timeout_ms`: what get-timeout answers. `rollback_only`: why it
    can only be rolled back, "": it is not. `cause` and `reason` of a failed one, as in
    `RollbackRow`. `unfolding` (committed, rolled back, heuristic ones): rows left to be moved.
    """

    session: int
    counter: int
    xid: Xid | None
    state: State
    opened_ms: int
    deadline_ms: int = 0
    timeout_ms: int = 0
    parts: tuple[Part, ...] = ()
    rows: int = 0
    bytes: int = 0
    participants: tuple[Participant, ...] = ()
    then_commit: bool = False
    associations: tuple[Association, ...] = ()
    rollback_only: str = ""
    cause: str = ""
    reason: str = ""
    unfolding: int = 0


class DecisionRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What became of a branch, kept a while after the xid was forgotten, for those who ask.

    `transaction`: its number, for a xid may be used again.
    `by`: "coordinator", "operator", "timeout", "vote", "session" or "read only".
    """

    xid: Xid
    transaction: int
    verdict: Verdict
    by: str
    reason: str
    at_ms: int
    index: int


class Meta(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The one row of `meta`: the next numbers, what is staged in all, and counters of ever."""

    next_queue: int = 1
    next_session: int = 1
    next_number: int = 1
    next_decision: int = 1
    staged_bytes: int = 0
    transactions: int = 0
    sessions: int = 0
    prepared: int = 0


#: Before the first command.
FRESH: Final = Meta()


# --- tables ---------------------------------------------------------------------------------------

TABLES = (
    TableSpec("queues", str, Queue),
    # queue id -> name
    TableSpec("names", int, str),
    # (queue id, seq)
    TableSpec("messages", tuple[int, int], Stored),
    # (queue id, first seq) -> whose messages they are, while they are not yet in `messages`
    TableSpec("spans", tuple[int, int], Span),
    # (queue id, seq) -> deliveries so far
    TableSpec("returned", tuple[int, int], int),
    # (session, queue id, seq) -> deliveries, this one included (format 1), or the lock
    TableSpec("locks", tuple[int, int, int], int | Lock),
    # queue id -> its acknowledgement time-out in ms, if it has one (format 2)
    TableSpec("ack_timeouts", int, int),
    # (at_ms, session, queue id, seq): deadlines of locks (format 2)
    TableSpec("ack_due", tuple[int, int, int, int], None),
    # 1, 2, 3, ... -> sessions that were ended by others, the oldest are dropped (format 2)
    TableSpec("endings", int, Ending, run=True),
    # (number, queue id, seq)
    TableSpec("accepts", tuple[int, int, int], StagedAccept),
    # (number, queue id, 0, 1, ... in that queue)
    TableSpec("staged", tuple[int, int, int], StagedMessage),
    TableSpec("sessions", int, SessionRow),
    # (node, incarnation, session): live sessions of a node's life
    TableSpec("owners", tuple[str, int, int], None),
    # (session, counter)
    TableSpec("rollbacks", tuple[int, int], RollbackRow),
    # number -> the transaction
    TableSpec("transactions", int, TransactionRow),
    # xid -> number
    TableSpec("branches", tuple[int, bytes, bytes], int),
    # 1, 2, 3, ... -> what became of a branch, the oldest are dropped
    TableSpec("decisions", int, DecisionRow, run=True),
    # xid -> its last decision
    TableSpec("decided", tuple[int, bytes, bytes], int),
    # (at_ms, number): deadlines of active and preparing ones; when failed ones are forgotten
    TableSpec("due", tuple[int, int], None),
    # node -> the incarnation that takes part in transactions
    TableSpec("observers", str, int),
    # what Sweep has to do: (node, incarnation) that ended; sessions that ended and hold rows, or
    # had a transaction; decided transactions with rows left; ids of deleted queues with rows left
    TableSpec("ended_nodes", tuple[str, int], None),
    TableSpec("ended_sessions", int, None),
    TableSpec("unfolding", int, None),
    # (-> the session from which on their locks are looked for; 0: they have none)
    TableSpec("dropped", int, int),
    # lives of nodes that ended while transactions were undecided: those that are being prepared are
    # looked through for it as a participant, from this number on
    TableSpec("left", tuple[str, int], int),
    # queues that have more than their limit allows: drop_oldest ones, after a large commit
    TableSpec("overfull", str, None),
    # (at_ms, session): ended sessions for which nothing is left to be done, kept from then on for
    # those who ask after outcomes
    TableSpec("old_sessions", tuple[int, int], None),
    TableSpec("meta", str, Meta),
    # (queue id, seq) -> when it becomes available, of messages whose delay is not over
    TableSpec("delayed", tuple[int, int], int),
    # (queue id, seq) -> when it expires, of messages with a time to live
    TableSpec("expiring", tuple[int, int], int),
    # (ms, queue id, seq): when a delay is over, or else a time to live
    TableSpec("timers", tuple[int, int, int], None),
    # (queue id, seq >= cursor): not fresh
    TableSpec("gaps", tuple[int, int], None),
    # (number, queue id, place) -> the queue's time to live in ms when it was staged (0: none), of
    # staged messages with a time to live, that or their own, or a delay
    TableSpec("staged_times", tuple[int, int, int], int),
    # queue id -> the time to live of its messages in ms, if it has one (format 2)
    TableSpec("queue_ttls", int, int),
)
