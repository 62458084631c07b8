"""What transactional queues say through the log: the commands with their results.

Everything here is data. The rows are in `rows.py`, whose words are meant here too, and are exported
again; the refusals in `refusals.py`, XA's names and codes in `xa.py`. Who decides what:

- `queues.py`, `delivering.py`, `settling.py`: queues, and messages outside any transaction;
- `sessions.py`, `ending.py`: sessions;
- `transactions.py` (TX), `branches.py` (DTX), over `staging.py`, `closing.py`, `deciding.py`;
- `sweeping.py`: what is due, and what was left for later.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

import msgspec

from .rows import (
    ACK_TIMEOUT_MS_MAX,
    ACK_TIMEOUT_MS_MIN,
    COMMAND_BYTES,
    ENDINGS_KEPT,
    FRESH,
    HEADERS_MAX,
    INT_MAX,
    MESSAGE_OVERHEAD,
    NAME_CHARS_MAX,
    REASON_CHARS_MAX,
    ROWS_MAX,
    TABLES,
    TIMED_MAX,
    TRANSACTION_QUEUES_MAX,
    AcceptOf,
    Association,
    Count,
    Counter,
    DecisionRow,
    EndedBy,
    Ending,
    Kind,
    Lock,
    Message,
    Meta,
    Operation,
    Overflow,
    Part,
    Participant,
    PublishTo,
    Queue,
    RollbackRow,
    Rows,
    Seq,
    SessionId,
    SessionRow,
    Settling,
    SettlingVerb,
    Span,
    StagedAccept,
    StagedMessage,
    State,
    Stored,
    TransactionRow,
    Verdict,
    size_of,
)
from .xa import Xid

__all__ = [
    "ACK_TIMEOUT_MS_MAX",
    "ACK_TIMEOUT_MS_MIN",
    "COMMAND_BYTES",
    "ENDINGS_KEPT",
    "FORMAT_DEAD_LETTERS",
    "FORMAT_END_SESSION",
    "FORMAT_ENSURE",
    "FORMAT_HELD_SINCE",
    "FORMAT_PUT_BACK",
    "FORMAT_TIMES",
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
    "Acquire",
    "Acquired",
    "Answered",
    "Association",
    "CloseSession",
    "Commit",
    "CommitBranch",
    "Count",
    "Counter",
    "Decided",
    "DecidedNow",
    "DecisionRow",
    "DeclareQueue",
    "Declared",
    "DeleteQueue",
    "Deleted",
    "End",
    "EndSession",
    "EndedBy",
    "Ending",
    "EnsureQueue",
    "ForgetBranch",
    "Heuristic",
    "Kind",
    "Lock",
    "Message",
    "Meta",
    "Observe",
    "OpenSession",
    "Operation",
    "Overflow",
    "Part",
    "Participant",
    "PrepareBranch",
    "Publish",
    "PublishTo",
    "Published",
    "Purge",
    "Purged",
    "PutBack",
    "Queue",
    "Rollback",
    "RollbackBranch",
    "RollbackRow",
    "Rows",
    "Select",
    "Seq",
    "SessionClosed",
    "SessionId",
    "SessionOpened",
    "SessionRow",
    "SetTimeout",
    "Settle",
    "Settled",
    "Settling",
    "SettlingVerb",
    "Span",
    "Stage",
    "Staged",
    "StagedAccept",
    "StagedMessage",
    "Start",
    "State",
    "Stored",
    "Sweep",
    "Swept",
    "ToBack",
    "TransactionRow",
    "Verdict",
    "Vote",
    "Voting",
    "size_of",
]

#: The formats of the commands that introduced `PutBack`, `EnsureQueue`, `EndSession`, and rows of
#: `locks` with the time at which they were put.
FORMAT_PUT_BACK: Final = 2
FORMAT_ENSURE: Final = 2
FORMAT_END_SESSION: Final = 2
FORMAT_HELD_SINCE: Final = 2
#: The format from which on a queue that takes the dead letters of others cannot be deleted.
FORMAT_DEAD_LETTERS: Final = 2
#: The format from which on times to live and delays count, and which introduced `ToBack`.
FORMAT_TIMES: Final = 2

# --- results --------------------------------------------------------------------------------------


class Declared(msgspec.Struct, frozen=True, array_like=True):
    """`created`: it was not there; `changed`: its limits were otherwise."""

    id: int
    created: bool
    changed: bool


class Deleted(msgspec.Struct, frozen=True, array_like=True):
    """`messages` were in it."""

    messages: int


class Purged(msgspec.Struct, frozen=True, array_like=True):
    """`messages` available ones were removed; `more`: propose it again."""

    messages: int
    more: bool


class Published(msgspec.Struct, frozen=True, array_like=True):
    """They have the seqs `first` to `last`. `dropped`: older ones that made room."""

    first: int
    last: int
    dropped: int = 0


class SessionOpened(msgspec.Struct, frozen=True, array_like=True):
    session: int


class SessionClosed(msgspec.Struct, frozen=True, array_like=True):
    """`held` messages go back; `rolled_back`: it had an undecided transaction, which ended."""

    held: int
    rolled_back: bool


class Acquired(msgspec.Struct, frozen=True, array_like=True):
    """In order, oldest first; the bodies are read from the tables of this node.

    `deliveries`: per message, this one included. `ready`: available ones that are left.
    """

    seqs: tuple[int, ...]
    deliveries: tuple[int, ...]
    ready: int


class Settled(msgspec.Struct, frozen=True, array_like=True):
    """`missing`: those that the session does not hold (any longer); nothing was done to them."""

    done: int
    missing: tuple[int, ...] = ()


class Staged(msgspec.Struct, frozen=True, array_like=True):
    """`rows` are staged in the transaction now."""

    number: int
    rows: int


class Decided(msgspec.Struct, frozen=True, array_like=True):
    """The fate of a TX, final. A repeated question gets the same; `index` 0: not known any longer.

    `spans`: for a commit, what it published: (queue, first seq, last seq), in order of first use;
    empty when it was decided before.
    """

    verdict: Verdict
    cause: str = ""
    reason: str = ""
    index: int = 0
    spans: tuple[tuple[str, int, int], ...] = ()


class Voting(msgspec.Struct, frozen=True, array_like=True, tag="voting"):
    """The participants are asked; the last vote decides. Wait for the transaction `number`."""

    number: int


class DecidedNow(Decided, frozen=True, array_like=True, tag="decided"):
    """See `Decided`."""


class Answered(msgspec.Struct, frozen=True, array_like=True, tag="answered"):
    """`status`: of `XaStatus`."""

    status: int


class Swept(msgspec.Struct, frozen=True, array_like=True):
    """`rows` were touched; `more`: there is more that is due now, propose it again."""

    rows: int
    more: bool


# --- commands: queues -----------------------------------------------------------------------------


class DeclareQueue(msgspec.Struct, frozen=True, array_like=True, tag="declare"):
    """Make a queue, or give an existing one these limits (nothing in it is touched)."""

    Result: ClassVar[Any] = Declared
    queue: str
    depth_max: Count = 0
    bytes_max: Count = 0
    overflow: Overflow = "refuse"
    deliveries_max: Count = 0
    dead_letter: str = ""


class EnsureQueue(msgspec.Struct, frozen=True, array_like=True, tag="ensure"):
    """Make a queue with these limits, None: the default. Of one that exists, what is None stays as
    it is, and what differs is refused (`QueueDiffers`) unless `change`. `dead_letter` must exist.
    `ack_timeout_ms`: how long a session may hold a message of it, 0: as long as it likes.
    `ttl_ms`: the longest time to live of the messages that are given to it from now on, 0: none.
    Format 2."""

    Result: ClassVar[Any] = Declared
    queue: str
    depth_max: Count | None = None
    bytes_max: Count | None = None
    overflow: Overflow | None = None
    deliveries_max: Count | None = None
    dead_letter: str | None = None
    change: bool = False
    ack_timeout_ms: Count | None = None
    ttl_ms: Count | None = None


class DeleteQueue(msgspec.Struct, frozen=True, array_like=True, tag="delete"):
    """`if_empty`: only with no message in it. `if_unused`: only with none acquired."""

    Result: ClassVar[Any] = Deleted
    queue: str
    if_empty: bool = False
    if_unused: bool = False


class Purge(msgspec.Struct, frozen=True, array_like=True, tag="purge"):
    """Remove available messages up to `upto`, the oldest first, `rows_max` at most."""

    Result: ClassVar[Any] = Purged
    queue: str
    upto: Seq
    rows_max: Rows = ROWS_MAX


class Publish(msgspec.Struct, frozen=True, array_like=True, tag="publish"):
    """Outside any transaction. All of them or, refused, none."""

    Result: ClassVar[Any] = Published
    queue: str
    messages: tuple[Message, ...]


# --- commands: sessions ---------------------------------------------------------------------------


class OpenSession(msgspec.Struct, frozen=True, array_like=True, tag="open"):
    """A session of `ctx.origin`, in its present life."""

    Result: ClassVar[Any] = SessionOpened
    kind: Kind = "plain"


class CloseSession(msgspec.Struct, frozen=True, array_like=True, tag="close"):
    """What it holds goes back, its TX and the branch that it works in are rolled back."""

    Result: ClassVar[Any] = SessionClosed
    session: SessionId


class EndSession(msgspec.Struct, frozen=True, array_like=True, tag="end_session"):
    """An operator ends a session of whatever node, as its `CloseSession` would. Format 2."""

    Result: ClassVar[Any] = SessionClosed
    session: SessionId
    reason: str = ""


class Select(msgspec.Struct, frozen=True, array_like=True, tag="select"):
    """tx.select, dtx.select. Refused while the session is in a transaction."""

    Result: ClassVar[Any] = None
    session: SessionId
    kind: Kind


class Acquire(msgspec.Struct, frozen=True, array_like=True, tag="acquire"):
    """The oldest available ones, `count` and `bytes_max` at most (one always), are the session's.

    `bytes_max` 0: no bound.
    """

    Result: ClassVar[Any] = Acquired
    session: SessionId
    queue: str
    count: Rows
    bytes_max: Count = 0


class Settle(msgspec.Struct, frozen=True, array_like=True, tag="settle"):
    """Outside any transaction: accept, release (it goes back) or reject (to the dead letters)."""

    Result: ClassVar[Any] = Settled
    session: SessionId
    queue: str
    settling: Settling
    seqs: tuple[Seq, ...]


class PutBack(msgspec.Struct, frozen=True, array_like=True, tag="put_back"):
    """These were acquired ahead and never delivered to a program: each is available again in its
    old place, and this acquisition is not counted as a delivery. Format 2."""

    Result: ClassVar[Any] = Settled
    session: SessionId
    queue: str
    seqs: tuple[Seq, ...]


class ToBack(msgspec.Struct, frozen=True, array_like=True, tag="to_back"):
    """Each becomes the last message of its queue, under a new seq, and keeps its deliveries. One
    that was delivered too often, or has expired, dies. Format 2."""

    Result: ClassVar[Any] = Settled
    session: SessionId
    queue: str
    seqs: tuple[Seq, ...]


# --- commands: transactions -----------------------------------------------------------------------


class Observe(msgspec.Struct, frozen=True, array_like=True, tag="observe"):
    """This node, in its present life, takes part in transactions (or no longer does)."""

    Result: ClassVar[Any] = None
    on: bool


class Stage(msgspec.Struct, frozen=True, array_like=True, tag="stage"):
    """Operations of the session's transaction. `counter`: of its TX; 0: its branch (DTX).

    The first one of a TX begins it: `counter` is then `decided` + 1.
    """

    Result: ClassVar[Any] = Staged
    session: SessionId
    counter: Count
    operations: tuple[Operation, ...]


class Commit(msgspec.Struct, frozen=True, array_like=True, tag="commit"):
    """Commit the TX, with these operations as its last; a small one has no others.

    What cannot be done (no room, a message not held, no such queue) rolls it back: a result. The
    same `counter` again: the same answer, and nothing is done.
    """

    Result: ClassVar[Any] = DecidedNow | Voting
    session: SessionId
    counter: Counter
    operations: tuple[Operation, ...] = ()


class Rollback(msgspec.Struct, frozen=True, array_like=True, tag="rollback"):
    """Roll the TX back; one that is decided answers what it is."""

    Result: ClassVar[Any] = Decided
    session: SessionId
    counter: Counter
    reason: str = ""


class Vote(msgspec.Struct, frozen=True, array_like=True, tag="vote"):
    """`ctx.origin`, a participant, could (or could not) prepare. The last yes decides."""

    Result: ClassVar[Any] = None
    number: Count
    yes: bool
    reason: str = ""


# --- commands: branches ---------------------------------------------------------------------------


class Start(msgspec.Struct, frozen=True, array_like=True, tag="start"):
    """dtx.start: attach the session to a new branch, to a known one (join), or again (resume)."""

    Result: ClassVar[Any] = Answered
    session: SessionId
    xid: Xid
    join: bool = False
    resume: bool = False
    timeout_ms: Count | None = None


class End(msgspec.Struct, frozen=True, array_like=True, tag="end"):
    """dtx.end, with the last operations: detach, suspend, or detach and mark it as failed."""

    Result: ClassVar[Any] = Answered
    session: SessionId
    xid: Xid
    suspend: bool = False
    fail: bool = False
    operations: tuple[Operation, ...] = ()


class PrepareBranch(msgspec.Struct, frozen=True, array_like=True, tag="dtx_prepare"):
    Result: ClassVar[Any] = Answered | Voting
    xid: Xid


class CommitBranch(msgspec.Struct, frozen=True, array_like=True, tag="dtx_commit"):
    Result: ClassVar[Any] = Answered | Voting
    xid: Xid
    one_phase: bool = False


class RollbackBranch(msgspec.Struct, frozen=True, array_like=True, tag="dtx_rollback"):
    Result: ClassVar[Any] = Answered
    xid: Xid


class ForgetBranch(msgspec.Struct, frozen=True, array_like=True, tag="dtx_forget"):
    """Only of one that an operator has decided."""

    Result: ClassVar[Any] = Answered
    xid: Xid


class SetTimeout(msgspec.Struct, frozen=True, array_like=True, tag="dtx_set_timeout"):
    """From now on; 0: none."""

    Result: ClassVar[Any] = Answered
    xid: Xid
    timeout_ms: Count


class Heuristic(msgspec.Struct, frozen=True, array_like=True, tag="heuristic"):
    """An operator decides a prepared branch; the coordinator is told when it comes back."""

    Result: ClassVar[Any] = Answered
    xid: Xid
    commit: bool
    reason: str = ""


class Sweep(msgspec.Struct, frozen=True, array_like=True, tag="sweep"):
    """Whatever is due: sessions of nodes that ended, what ended sessions hold, rows of decided
    transactions, transactions past their deadline or with a participant that is gone, sessions that
    hold a message for too long, rows of deleted queues, overflow, outcomes past their retention.
    Everything is compared again here."""

    Result: ClassVar[Any] = Swept
    rows_max: Rows = ROWS_MAX
