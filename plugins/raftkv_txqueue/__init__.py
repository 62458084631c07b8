"""Transactional queues: replicated on the log, with local and distributed transactions over them.

    from raftkv_txqueue import TxQueue

    txq = node.plugin(TxQueue)                        # on every node, right after it has started
    await txq.declare("orders", depth_max=100_000)
    await txq.publish("orders", b"a book")

    async with txq.session("tx") as session:
        async for order in session.subscribe("orders"):
            async with session.transaction() as tx:   # both, or none, on all nodes at once
                await tx.publish("invoices", b"for " + order.body)
                await tx.accept(order)

What is done in a transaction is staged in the log, seen by nobody, and becomes visible by one
entry: there is no index at which any node shows a part of it. Its outcome can always be asked:
`TransactionAborted` says that surely nothing was applied, `TransactionUnknown` that one has to ask
(`txq.outcome(txid)`). A *prepared* branch of a distributed transaction (`txq.dtx`, XA's verbs) is a
promise: it stands until it is decided, whatever dies meanwhile.

`commands.py` has the words of the log and what is kept, `views.py` what the tables mean;
`api.py` and `session.py` are a program's side, `observers.py` that of those who take part in the
transactions of others. docs/txqueue.md is for users, docs/internals/txqueue.md for whoever changes
it.
"""

from .api import TxQueueApi
from .commands import (
    Declared,
    Deleted,
    Message,
    Published,
    SessionClosed,
    Settled,
)
from .consuming import Delivery, Subscription
from .contents import BranchContent, BranchPart
from .coordinator import (
    Coordinator,
    FileJournal,
    GlobalCommitted,
    GlobalHazard,
    GlobalInDoubt,
    GlobalRolledBack,
    GlobalTransaction,
    JournalFailed,
    MemoryJournal,
    NodeResource,
    Recovered,
    XaResource,
    XaSession,
)
from .door_resource import DoorResource, DoorSession, RefusedAtDoor
from .dtx import Branch, BranchOutcome, Dtx
from .errors import (
    NotSent,
    StillUnderWay,
    TransactionAborted,
    TransactionUnknown,
)
from .observers import (
    ObserverFactory,
    Opened,
    PrepareFailed,
    TransactionObserver,
)
from .options import TxQueueOptions
from .plugin import TxQueue
from .refusals import (
    BadAckTimeout,
    BadDeadLetter,
    BadHeaders,
    BadQueueName,
    BadTime,
    BatchTooLarge,
    BranchRefused,
    CommandInvalid,
    DeadLetterInUse,
    EmptyBatch,
    IllegalState,
    InTransaction,
    InvalidArgument,
    MessageTooLarge,
    NotAllowed,
    NotAMember,
    NotHeld,
    NotInBranch,
    NotYourSession,
    OutcomeForgotten,
    QueueAcquired,
    QueueDiffers,
    QueueFull,
    QueueInUse,
    QueueNotEmpty,
    RollbackOnly,
    SessionEnded,
    StagedFull,
    TooManyAcquired,
    TooManyQueues,
    TooManySessions,
    TooManyTimed,
    TooManyTransactions,
    TransactionClosed,
    TransactionOver,
    TransactionTooLarge,
    UnknownDeadLetter,
    UnknownQueue,
    UnknownTransaction,
    UnknownXid,
    WrongKind,
)
from .scope import Scope
from .session import Session
from .status import QueueStatus, TxQueueStatus
from .transaction import Committed
from .views import Browsed, Fate, Holder
from .xa import (
    XaError,
    XaStatus,
    Xid,
    xid_from_text,
)

__all__ = [
    "BadAckTimeout",
    "BadDeadLetter",
    "BadHeaders",
    "BadQueueName",
    "BadTime",
    "BatchTooLarge",
    "Branch",
    "BranchContent",
    "BranchOutcome",
    "BranchPart",
    "BranchRefused",
    "Browsed",
    "CommandInvalid",
    "Committed",
    "Coordinator",
    "DeadLetterInUse",
    "Declared",
    "Deleted",
    "Delivery",
    "DoorResource",
    "DoorSession",
    "Dtx",
    "EmptyBatch",
    "Fate",
    "FileJournal",
    "GlobalCommitted",
    "GlobalHazard",
    "GlobalInDoubt",
    "GlobalRolledBack",
    "GlobalTransaction",
    "Holder",
    "IllegalState",
    "InTransaction",
    "InvalidArgument",
    "JournalFailed",
    "MemoryJournal",
    "Message",
    "MessageTooLarge",
    "NodeResource",
    "NotAMember",
    "NotAllowed",
    "NotHeld",
    "NotInBranch",
    "NotSent",
    "NotYourSession",
    "ObserverFactory",
    "Opened",
    "OutcomeForgotten",
    "PrepareFailed",
    "Published",
    "QueueAcquired",
    "QueueDiffers",
    "QueueFull",
    "QueueInUse",
    "QueueNotEmpty",
    "QueueStatus",
    "Recovered",
    "RefusedAtDoor",
    "RollbackOnly",
    "Scope",
    "Session",
    "SessionClosed",
    "SessionEnded",
    "Settled",
    "StagedFull",
    "StillUnderWay",
    "Subscription",
    "TooManyAcquired",
    "TooManyQueues",
    "TooManySessions",
    "TooManyTimed",
    "TooManyTransactions",
    "TransactionAborted",
    "TransactionClosed",
    "TransactionObserver",
    "TransactionOver",
    "TransactionTooLarge",
    "TransactionUnknown",
    "TxQueue",
    "TxQueueApi",
    "TxQueueOptions",
    "TxQueueStatus",
    "UnknownDeadLetter",
    "UnknownQueue",
    "UnknownTransaction",
    "UnknownXid",
    "WrongKind",
    "XaError",
    "XaResource",
    "XaSession",
    "XaStatus",
    "Xid",
    "xid_from_text",
]
