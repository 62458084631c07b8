"""The limbo: transactions that wait in one queue until a quorum of your choice has them.

    from raftkv_limbo import Limbo, Write

    limbo = node.plugin(Limbo)                        # on every node, right after it has started
    await limbo.create_space("accounts", sync=True)
    await limbo.set_quorum("N")                       # all cores; the default is their majority
    await limbo.promote()                             # this node owns the queue now

    done = await limbo.submit([Write("accounts", b"ann", b"10"), Write("accounts", b"bob", b"5")])
    done.state        # "confirmed"; a rolled back one raises RolledBack, a time-out decides nothing
    row = await limbo.get("accounts", b"ann")         # what is confirmed; or view="pending"

Raft stores an entry on a majority of the cores. Here an application says what it means by
*confirmed*: on all nodes, on replicants too, in named zones, approved by validators. Each
transaction gets one verdict, the same on every node, at one place of the log.

`commands.py` has the words of the log, `queue.py` the queue, `entering.py` what may enter it,
`quorum.py` who counts, `ownership.py` who submits. docs/limbo.md is for users,
docs/internals/limbo.md for whoever changes it.
"""

from .api import LimboApi
from .commands import Condition, Row, Transaction, Write
from .errors import (
    InAnotherPromote,
    NotSubmitted,
    PromoteTimedOut,
    RolledBack,
    StillPending,
    SubmitUnknown,
    VerdictForgotten,
)
from .hooks import Confirmed, Restored, Undone
from .options import LimboOptions
from .plugin import Limbo
from .quorum import Needs
from .refusals import (
    AlreadyConfirmed,
    AlreadyRolledBack,
    BadDeclaration,
    BadSpaceName,
    BatchTooLarge,
    ConditionFailed,
    DuplicateWrite,
    EmptyTransaction,
    ForeignOwner,
    IndependentSync,
    InterferingPromote,
    KeyPending,
    KeyTooLarge,
    NotAMember,
    NotAValidator,
    NotOwner,
    NotSettled,
    QueueFull,
    SpaceBusy,
    SpaceExists,
    StaleOwner,
    StaleTerm,
    TooManySpaces,
    TransactionTooLarge,
    Unclaimed,
    UnknownPosition,
    UnknownSpace,
)
from .status import LimboStatus, QueueStatus
from .submission import Receipt, Submission
from .transaction import TransactionBuilder
from .validators import Proposal, Veto
from .views import NodeRow, SpaceRow, VerdictRun
from .waiting import Verdict

__all__ = [
    "AlreadyConfirmed",
    "AlreadyRolledBack",
    "BadDeclaration",
    "BadSpaceName",
    "BatchTooLarge",
    "Condition",
    "ConditionFailed",
    "Confirmed",
    "DuplicateWrite",
    "EmptyTransaction",
    "ForeignOwner",
    "InAnotherPromote",
    "IndependentSync",
    "InterferingPromote",
    "KeyPending",
    "KeyTooLarge",
    "Limbo",
    "LimboApi",
    "LimboOptions",
    "LimboStatus",
    "Needs",
    "NodeRow",
    "NotAMember",
    "NotAValidator",
    "NotOwner",
    "NotSettled",
    "NotSubmitted",
    "PromoteTimedOut",
    "Proposal",
    "QueueFull",
    "QueueStatus",
    "Receipt",
    "Restored",
    "RolledBack",
    "Row",
    "SpaceBusy",
    "SpaceExists",
    "SpaceRow",
    "StaleOwner",
    "StaleTerm",
    "StillPending",
    "Submission",
    "SubmitUnknown",
    "TooManySpaces",
    "Transaction",
    "TransactionBuilder",
    "TransactionTooLarge",
    "Unclaimed",
    "Undone",
    "UnknownPosition",
    "UnknownSpace",
    "Verdict",
    "VerdictForgotten",
    "VerdictRun",
    "Veto",
    "Write",
]
