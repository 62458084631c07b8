"""The verdicts of transactional queues that write nothing. What must be remembered is a result.

A refused command writes nothing at all: of a batch that is refused nothing is published, of a
`Stage` that is refused nothing is staged. A `Commit` that cannot be done is no refusal, for the
transaction is over then, and that has to be kept: its result bears the `code` of the refusal that
it would have been, as its cause, and its text, as the reason.

The refusals of distributed transactions carry the code that XA gives them, in `xa`. The text of
each says what to do next. None shows a body or a header of a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from raftkv.errors import Refused

from .rows import ACK_TIMEOUT_MS_MAX, ACK_TIMEOUT_MS_MIN
from .xa import XaError

__all__ = [
    "REFUSALS",
    "BadAckTimeout",
    "BadDeadLetter",
    "BadHeaders",
    "BadQueueName",
    "BadQueueTtl",
    "BadTime",
    "BatchTooLarge",
    "BranchRefused",
    "CommandInvalid",
    "DeadLetterCycle",
    "DeadLetterInUse",
    "EmptyBatch",
    "IllegalState",
    "InTransaction",
    "InvalidArgument",
    "MessageTooLarge",
    "NotAMember",
    "NotAllowed",
    "NotHeld",
    "NotInBranch",
    "NotYourSession",
    "OutcomeForgotten",
    "QueueAcquired",
    "QueueFull",
    "QueueInUse",
    "QueueNotEmpty",
    "RollbackOnly",
    "SessionEnded",
    "StagedFull",
    "TooManyAcquired",
    "TooManyQueues",
    "TooManySessions",
    "TooManyTimed",
    "TooManyTransactions",
    "TransactionClosed",
    "TransactionOver",
    "TransactionTooLarge",
    "UnknownQueue",
    "UnknownTransaction",
    "UnknownXid",
    "WrongKind",
]


# --- queues ---------------------------------------------------------------------------------------


class UnknownQueue(Refused):
    """There is no queue of that name (any longer)."""

    code = "txqueue_unknown_queue"

    def __init__(self, queue: str) -> None:
        super().__init__(queue)
        self.queue = queue

    def __str__(self) -> str:
        return f"there is no queue {self.queue!r}: declare it first"


class BadQueueName(Refused):
    """The name of a queue goes into paths and tables."""

    code = "txqueue_bad_queue_name"

    def __init__(self, queue: str) -> None:
        super().__init__(queue)
        self.queue = queue

    def __str__(self) -> str:
        return (
            f"{self.queue!r} cannot be the name of a queue: take 1 to 255 of the characters "
            "A-Z a-z 0-9 _ . : - with one of the first four kinds in front"
        )


class BadDeadLetter(Refused):
    """A queue cannot be its own dead letter queue: what died would come back for ever."""

    code = "txqueue_bad_dead_letter"

    def __init__(self, queue: str) -> None:
        super().__init__(queue)
        self.queue = queue

    def __str__(self) -> str:
        return f"{self.queue!r} cannot take its own dead letters: name another queue"


class UnknownDeadLetter(Refused):
    """The queue that dead letters are to go to does not exist: they would be lost."""

    code = "txqueue_unknown_dead_letter"

    def __init__(self, queue: str, dead_letter: str) -> None:
        super().__init__(queue, dead_letter)
        self.queue = queue
        self.dead_letter = dead_letter

    def __str__(self) -> str:
        return (
            f"the dead letters of {self.queue!r} cannot go to {self.dead_letter!r}, which does not "
            "exist: declare that queue first"
        )


class BadAckTimeout(Refused):
    """The acknowledgement time-out of a queue is out of its bounds."""

    code = "txqueue_bad_ack_timeout"

    def __init__(self, queue: str, timeout_ms: int) -> None:
        super().__init__(queue, timeout_ms)
        self.queue = queue
        self.timeout_ms = timeout_ms

    def __str__(self) -> str:
        return (
            f"the ack_timeout_ms of {self.queue!r} cannot be {self.timeout_ms}: take "
            f"{ACK_TIMEOUT_MS_MIN} to {ACK_TIMEOUT_MS_MAX} ms, or 0 for none"
        )


class BadQueueTtl(Refused):
    """The time to live that a queue gives its messages is out of its bounds."""

    code = "txqueue_bad_queue_ttl"

    def __init__(self, queue: str, ttl_ms: int, limit: int) -> None:
        super().__init__(queue, ttl_ms, limit)
        self.queue = queue
        self.ttl_ms = ttl_ms
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"the ttl_ms of {self.queue!r} cannot be {self.ttl_ms}: take 1 to {self.limit} ms (the "
            "setting ttl_max_ms), or 0 for none"
        )


class DeadLetterCycle(Refused):
    """Messages that expire would come back to the queue for ever, without any consumer.

    `queues`: the first `NAMED_MAX` of those through which they would; `more`: how many others.
    """

    code = "txqueue_dead_letter_cycle"
    #: Queues that are named.
    NAMED_MAX: ClassVar[int] = 10

    def __init__(self, queue: str, queues: Sequence[str], more: int) -> None:
        super().__init__(queue, tuple(queues), more)
        self.queue = queue
        self.queues = tuple(queues)
        self.more = more

    def __str__(self) -> str:
        names = ", ".join(repr(name) for name in self.queues)
        others = f" and {self.more} more" if self.more else ""
        return (
            f"what expires in {self.queue!r} would come back to it by way of {names}{others}, for "
            "each of these queues has a ttl_ms: declare one of them without, or with another "
            "dead_letter"
        )


class QueueDiffers(Refused):
    """A queue exists with another limit than the one that is declared. `what`: which limit."""

    code = "txqueue_queue_differs"

    def __init__(self, queue: str, what: str, declared: str, asked: str) -> None:
        super().__init__(queue, what, declared, asked)
        self.queue = queue
        self.what = what
        self.declared = declared
        self.asked = asked

    def __str__(self) -> str:
        return (
            f"the queue {self.queue!r} has {self.what} {self.declared!r}, not {self.asked!r}: "
            f"declare it without {self.what} to keep that, or with change=True (--change)"
        )


class TooManyQueues(Refused):
    """The setting queues_max."""

    code = "txqueue_too_many_queues"

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.limit = limit

    def __str__(self) -> str:
        return f"there are {self.limit} queues: delete one, or raise the setting queues_max"


class QueueInUse(Refused):
    """Undecided transactions have published to it, or accepted from it."""

    code = "txqueue_queue_in_use"

    def __init__(self, queue: str, transactions: int) -> None:
        super().__init__(queue, transactions)
        self.queue = queue
        self.transactions = transactions

    def __str__(self) -> str:
        return (
            f"{self.transactions} undecided transactions have content of {self.queue!r}: wait "
            "until they are decided, then delete it"
        )


class DeadLetterInUse(Refused):
    """Other queues send their dead letters to it, which would be lost.

    `queues`: the first `NAMED_MAX` of them by name; `more`: how many others there are.
    """

    code = "txqueue_dead_letter_in_use"
    #: Queues that are named.
    NAMED_MAX: ClassVar[int] = 10

    def __init__(self, queue: str, queues: Sequence[str], more: int) -> None:
        super().__init__(queue, tuple(queues), more)
        self.queue = queue
        self.queues = tuple(queues)
        self.more = more

    def __str__(self) -> str:
        names = ", ".join(repr(name) for name in self.queues)
        others = f" and {self.more} more" if self.more else ""
        return (
            f"{self.queue!r} is the dead_letter of {names}{others}: declare these with another "
            'dead_letter, or "" for none, and change=True (--change), then delete it'
        )


class QueueNotEmpty(Refused):
    """It was to be deleted only if it is empty."""

    code = "txqueue_queue_not_empty"

    def __init__(self, queue: str, messages: int) -> None:
        super().__init__(queue, messages)
        self.queue = queue
        self.messages = messages

    def __str__(self) -> str:
        return f"{self.queue!r} has {self.messages} messages: drain it, or delete it with them"


class QueueAcquired(Refused):
    """It was to be deleted only if nobody works on its messages."""

    code = "txqueue_queue_acquired"

    def __init__(self, queue: str, messages: int) -> None:
        super().__init__(queue, messages)
        self.queue = queue
        self.messages = messages

    def __str__(self) -> str:
        return f"{self.messages} messages of {self.queue!r} are acquired: wait for their consumers"


class QueueFull(Refused):
    """A limit of the queue. `what`: "messages" or "bytes"."""

    code = "txqueue_queue_full"

    def __init__(self, queue: str, what: str, limit: int) -> None:
        super().__init__(queue, what, limit)
        self.queue = queue
        self.what = what
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"{self.queue!r} may have {self.limit} {self.what}, with what prepared transactions "
            "have reserved: consume some, or declare a higher limit"
        )


# --- messages -------------------------------------------------------------------------------------


class EmptyBatch(Refused):
    """A command without any message, or without any seq."""

    code = "txqueue_empty_batch"

    def __str__(self) -> str:
        return "there is nothing to do in this command: give it at least one message"


class BatchTooLarge(Refused):
    """More than one entry of the log may touch. `what`: "rows" or "bytes"."""

    code = "txqueue_batch_too_large"

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(what, limit)
        self.what = what
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"one command takes {self.limit} {self.what} at most: send several, in a transaction "
            "if they belong together"
        )


class MessageTooLarge(Refused):
    """The setting message_bytes_max."""

    code = "txqueue_message_too_large"

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(size, limit)
        self.size = size
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"a message of {self.size} bytes: {self.limit} are allowed (the setting "
            "message_bytes_max). Split it, or store it elsewhere and send its address"
        )


class BadHeaders(Refused):
    """Too many headers, or one without a name."""

    code = "txqueue_bad_headers"
    text_places = (0,)

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def __str__(self) -> str:
        return f"these headers cannot be kept: {self.why or 'too many, or one without a name'}"


class BadTime(Refused):
    """A time to live or a delay that is no whole number of milliseconds, or is too long.

    `what`: the setting that limits it.
    """

    code = "txqueue_bad_time"

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(what, limit)
        self.what = what
        self.limit = limit

    def __str__(self) -> str:
        name = "time to live" if self.what.startswith("ttl") else "delay"
        return (
            f"a {name} is a whole number of 1 to {self.limit} ms: choose another one, or raise the "
            f"setting {self.what}"
        )


class TooManyTimed(Refused):
    """There are too many times to live and delays."""

    code = "txqueue_too_many_timed"

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"there is no room for more than {self.limit} times to live and delays: publish "
            f"without them until some messages are consumed, or raise the setting timed_max"
        )


# --- sessions -------------------------------------------------------------------------------------


class NotAMember(Refused):
    """Sessions belong to nodes, and this command was sent by none."""

    code = "txqueue_not_a_member"

    def __str__(self) -> str:
        return "only a node of the cluster may do this: ask one of them"


class SessionEnded(Refused):
    """It was closed, or ended by others, or its node's life ended, or it never was.

    `cause`: "operator" or "ack_timeout" of one that was ended by others, as long as that is kept;
    `reason`: for people. The log's own verdict has neither.
    """

    code = "txqueue_session_ended"
    text_places = (2,)

    def __init__(self, session: int, cause: str = "", reason: str = "") -> None:
        super().__init__(session, *((cause, reason) if cause else ()))
        self.session = session
        self.cause = cause
        self.reason = reason

    def __str__(self) -> str:
        then = "what it held is back: open another one"
        if self.cause == "operator":
            why = f": {self.reason}" if self.reason else ""
            return f"session {self.session} was ended by an operator{why}; {then}"
        if self.cause:
            return f"session {self.session} was ended: {self.reason}; {then}"
        return f"session {self.session} has ended and {then}"


class NotYourSession(Refused):
    """A session is used by the node that opened it, and no other."""

    code = "txqueue_not_your_session"

    def __init__(self, session: int, node: str) -> None:
        super().__init__(session, node)
        self.session = session
        self.node = node

    def __str__(self) -> str:
        return f"session {self.session} belongs to {self.node!r}: use it there"


class TooManySessions(Refused):
    """The setting sessions_max."""

    code = "txqueue_too_many_sessions"

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.limit = limit

    def __str__(self) -> str:
        return f"there are {self.limit} sessions: close one, or raise the setting sessions_max"


class TooManyAcquired(Refused):
    """The setting acquired_max, of one session."""

    code = "txqueue_too_many_acquired"

    def __init__(self, session: int, limit: int) -> None:
        super().__init__(session, limit)
        self.session = session
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"session {self.session} holds {self.limit} messages: settle some of them first, or "
            "raise the setting acquired_max"
        )


class InTransaction(Refused):
    """Its kind cannot be changed while it is in one."""

    code = "txqueue_in_transaction"

    def __init__(self, session: int) -> None:
        super().__init__(session)
        self.session = session

    def __str__(self) -> str:
        return (
            f"session {self.session} is in a transaction: commit it, roll it back or end it first"
        )


class WrongKind(Refused):
    """The session is of another kind. `kind`: what it has to be."""

    code = "txqueue_wrong_kind"

    def __init__(self, session: int, kind: str) -> None:
        super().__init__(session, kind)
        self.session = session
        self.kind = kind

    def __str__(self) -> str:
        return f"session {self.session} is of another kind: select {self.kind!r} first"


class NotHeld(Refused):
    """The session does not hold this message, so it cannot accept it."""

    code = "txqueue_not_held"

    def __init__(self, queue: str, seq: int) -> None:
        super().__init__(queue, seq)
        self.queue = queue
        self.seq = seq

    def __str__(self) -> str:
        return (
            f"the session does not hold message {self.seq} of {self.queue!r}: it was settled "
            "already or went back; get messages again and start anew"
        )


# --- transactions ---------------------------------------------------------------------------------


class UnknownTransaction(Refused):
    """No such transaction was ever begun."""

    code = "txqueue_unknown_transaction"

    def __init__(self, txid: str) -> None:
        super().__init__(txid)
        self.txid = txid

    def __str__(self) -> str:
        return f"there is no transaction {self.txid}: a session begins them one after the other"


class TransactionOver(Refused):
    """It is decided already; nothing can be added."""

    code = "txqueue_transaction_over"

    def __init__(self, txid: str) -> None:
        super().__init__(txid)
        self.txid = txid

    def __str__(self) -> str:
        return f"transaction {self.txid} is decided: ask for its outcome, and begin another one"


class TransactionClosed(Refused):
    """Its content is closed, for its participants are preparing it or have prepared it."""

    code = "txqueue_transaction_closed"

    def __init__(self, txid: str) -> None:
        super().__init__(txid)
        self.txid = txid

    def __str__(self) -> str:
        return f"transaction {self.txid} is closed: nothing can be added, wait for its outcome"


class TransactionTooLarge(Refused):
    """A limit of one transaction.

    `what`: "rows", "bytes", "queues", "sessions" or "messages with a time to live or a delay".
    """

    code = "txqueue_transaction_too_large"

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(what, limit)
        self.what = what
        self.limit = limit

    def __str__(self) -> str:
        text = f"a transaction has {self.limit} {self.what} at most: split it"
        if self.what in ("rows", "bytes"):
            return f"{text}, or raise the setting transaction_{self.what}_max"
        return text


class StagedFull(Refused):
    """The setting staged_bytes_max, for all undecided transactions together."""

    code = "txqueue_staged_full"

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"the undecided transactions have {self.limit} bytes together: try again when some "
            "are decided, or raise the setting staged_bytes_max"
        )


class TooManyTransactions(Refused):
    """The setting transactions_max."""

    code = "txqueue_too_many_transactions"

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"there are {self.limit} transactions: decide the prepared ones that nobody waits for "
            "(raftkv dtx recover), or raise the setting transactions_max"
        )


class RollbackOnly(Refused):
    """It was marked as failed; nothing but a rollback can become of it."""

    code = "txqueue_rollback_only"
    text_places = (0,)

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def __str__(self) -> str:
        why = self.why or "it was marked as failed, or its time is over"
        return f"the transaction can only be rolled back: {why}"


class OutcomeForgotten(Refused):
    """It was decided so long ago that its outcome is no longer kept."""

    code = "txqueue_outcome_forgotten"

    def __init__(self, txid: str) -> None:
        super().__init__(txid)
        self.txid = txid

    def __str__(self) -> str:
        return f"the outcome of transaction {self.txid} is no longer kept: look at the queues"


# --- branches: with XA's codes --------------------------------------------------------------------


class BranchRefused(Refused):
    """What all refusals of a distributed transaction have in common."""

    code = "txqueue_branch_refused"
    xa: ClassVar[XaError] = XaError.ILLEGAL_STATE


class UnknownXid(BranchRefused):
    """No branch has this name: never started, or completed and forgotten."""

    code = "txqueue_unknown_xid"
    xa = XaError.NOT_FOUND

    def __init__(self, xid: str) -> None:
        super().__init__(xid)
        self.xid = xid

    def __str__(self) -> str:
        return (
            f"there is no branch {self.xid}: it was completed, or it was never started; its "
            "outcome can be asked for"
        )


class IllegalState(BranchRefused):
    """The branch is not in a state in which this may be done."""

    code = "txqueue_illegal_state"
    text_places = (1,)
    xa = XaError.ILLEGAL_STATE

    def __init__(self, xid: str, why: str) -> None:
        super().__init__(xid, why)
        self.xid = xid
        self.why = why

    def __str__(self) -> str:
        why = self.why or "its state or a session that works in it does not allow it"
        return f"this cannot be done to branch {self.xid} now: {why}"


class CommandInvalid(BranchRefused):
    """The call contradicts itself, or what the session did before."""

    code = "txqueue_command_invalid"
    text_places: ClassVar[tuple[int, ...]] = (0,)
    xa = XaError.COMMAND_INVALID

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def __str__(self) -> str:
        why = self.why or "it contradicts itself, or what the session did before"
        return f"this call is not possible: {why}"


class NotInBranch(CommandInvalid):
    """Operations of a branch, from a session that is attached to none."""

    code = "txqueue_not_in_branch"
    text_places = ()

    def __init__(self, session: int) -> None:
        Refused.__init__(self, session)
        self.session = session
        self.why = f"session {session} is attached to no branch; start one first"


class NotAllowed(BranchRefused):
    """A branch of this name exists already."""

    code = "txqueue_not_allowed"
    xa = XaError.NOT_ALLOWED

    def __init__(self, xid: str) -> None:
        super().__init__(xid)
        self.xid = xid

    def __str__(self) -> str:
        return f"branch {self.xid} exists already: join it, or take another xid"


class InvalidArgument(BranchRefused):
    """A value out of its bounds. `what`: which, with its unit."""

    code = "txqueue_invalid_argument"
    xa = XaError.INVALID_ARGUMENT

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(what, limit)
        self.what = what
        self.limit = limit

    def __str__(self) -> str:
        return f"the {self.what} of a branch may be {self.limit} at most: give less"


REFUSALS: tuple[type[Refused], ...] = (
    UnknownQueue,
    BadQueueName,
    BadDeadLetter,
    UnknownDeadLetter,
    BadAckTimeout,
    BadQueueTtl,
    DeadLetterCycle,
    QueueDiffers,
    TooManyQueues,
    QueueInUse,
    DeadLetterInUse,
    QueueNotEmpty,
    QueueAcquired,
    QueueFull,
    EmptyBatch,
    BatchTooLarge,
    MessageTooLarge,
    BadHeaders,
    BadTime,
    TooManyTimed,
    NotAMember,
    SessionEnded,
    NotYourSession,
    TooManySessions,
    TooManyAcquired,
    InTransaction,
    WrongKind,
    NotHeld,
    UnknownTransaction,
    TransactionOver,
    TransactionClosed,
    TransactionTooLarge,
    StagedFull,
    TooManyTransactions,
    RollbackOnly,
    OutcomeForgotten,
    UnknownXid,
    IllegalState,
    CommandInvalid,
    NotInBranch,
    NotAllowed,
    InvalidArgument,
)
