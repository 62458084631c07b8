"""What cluster calls say through the log, and what they keep.

Everything here is data: the commands with their results, and the rows of the tables. The refusals
stand in `refusals.py`, the decisions in `log.py`, `cursors.py` and `trimming.py`.

A *call* has an *id* (the seed's tnx_id): 1, 2, 3, ... without holes. An id is taken when a
*reservation* is granted; it then ends `committed` or `aborted` and is never used again, so
"id@node" is a token under which an outside effect can be told from its repetition. At most one id
is `reserved`, and that is the highest. A *cursor* says how far a node has come: every id up to it
was executed there, or was aborted, or was skipped by an operator.

`ticket` is the serial of the command that reserved: the name of a reservation before it has an id.
All commands come from nodes; one without `ctx.origin` is refused as `NotAMember`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec

from raftkv.kv import DeleteRange, Put, PutWith, Txn
from raftkv.plugin import TableSpec

from .refusals import (
    REFUSALS,
    ArgsTooLarge,
    BadCursor,
    HasLeft,
    Moved,
    NodeIsUp,
    NotAMember,
    NotCaughtUp,
    NotReserved,
    NotTakingPart,
    NotYourNode,
    QueueFull,
    TooOld,
)

__all__ = [
    "ANSWERS_MAX",
    "CAUSE_CHARS_MAX",
    "FORCE",
    "FORMAT_COMPLETED",
    "FUNCTION_CHARS_MAX",
    "GRANT_DROPS_MAX",
    "LEAVE_ROWS_MAX",
    "LOST_MAX",
    "NODES_MAX",
    "REFUSALS",
    "ROWS_LIMIT",
    "SKIPPED_MAX",
    "STALE_TRIES",
    "TABLES",
    "Abort",
    "Aborted",
    "Acknowledge",
    "Acknowledged",
    "Advance",
    "Advanced",
    "ArgsTooLarge",
    "BadCursor",
    "Behind",
    "Commit",
    "Committed",
    "Cursor",
    "CursorState",
    "Effect",
    "Expire",
    "Expired",
    "Failing",
    "Force",
    "Forced",
    "Granted",
    "HasLeft",
    "Join",
    "Joined",
    "Leave",
    "LeaveDone",
    "Left",
    "LostEffect",
    "Moved",
    "NodeIsUp",
    "NotAMember",
    "NotCaughtUp",
    "NotReserved",
    "NotTakingPart",
    "NotYourNode",
    "QueueFull",
    "Queued",
    "Record",
    "RecordState",
    "Rejoin",
    "Rejoined",
    "Reservation",
    "Reserve",
    "Reset",
    "ResetDone",
    "Skip",
    "StaleView",
    "Sync",
    "TooOld",
    "Trim",
    "Trimmed",
    "Withdraw",
    "Withdrawn",
]

#: Attempts after which a node counts as stuck: what it reserved is dropped as `stale_view`.
STALE_TRIES: Final = 10
#: Letters of a function's name.
FUNCTION_CHARS_MAX: Final = 255
#: Letters that are kept of a cause: the class of an error and its function need no more.
CAUSE_CHARS_MAX: Final = 500
#: Skipped ids that a cursor remembers.
SKIPPED_MAX: Final = 10
#: Lost effects that are kept for one node until it acknowledges them; the oldest make room.
LOST_MAX: Final = 100
#: Answers to reservations that were dropped from the queue; the oldest make room.
ANSWERS_MAX: Final = 1_000
#: Reservations that one command drops on the way to the one that it grants; the rest: `Expire`.
GRANT_DROPS_MAX: Final = 100
#: Reservations of a leaving node that its `Leave` drops; the rest go when they reach the head.
LEAVE_ROWS_MAX: Final = 1_000
#: Rows of one `Trim` or `Expire`, and records that a `Reset` deletes itself.
ROWS_LIMIT: Final = 1_000
#: Nodes that one `Force` names.
NODES_MAX: Final = 256
#: The function of a record of kind "force". There is nothing to run for it.
FORCE: Final = "force"
ID_MAX: Final = 2**63 - 1

Id = Annotated[int, msgspec.Meta(ge=0, le=ID_MAX)]
Millis = Annotated[int, msgspec.Meta(ge=0, le=ID_MAX)]
Function = Annotated[str, msgspec.Meta(min_length=1, max_length=FUNCTION_CHARS_MAX)]
Rows = Annotated[int, msgspec.Meta(ge=1, le=ROWS_LIMIT)]
NodeAt = tuple[str, Id]
#: A change of the keyspace that is made in the same command as the move of the cursor.
Effect = Put | PutWith | DeleteRange | Txn
RecordState = Literal["reserved", "committed", "aborted"]
CursorState = Literal["following", "joining", "gap"]


# --- rows -----------------------------------------------------------------------------------------


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One id. `created_ms` is the proposer's clock, `decided_ms` the log's (0: reserved still).

    `cause` says why an id was aborted: "withdrawn", "stale_view", "expired", "initiator_ended" or
    "failed: <class> at <place>". The arguments of an aborted one are dropped. A reserved one is
    aborted as expired when the log's clock reaches `deadline_ms`.
    """

    function: str
    version: int
    args: bytes
    initiator: str
    incarnation: int
    created_ms: int
    decided_ms: int
    state: RecordState
    cause: str
    ticket: int
    kind: Literal["call", "force"]
    deadline_ms: int = 0


class Cursor(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How far a node has come.

    `following`: it executes from `id` + 1 on. `joining`, `gap`: it has to copy the data of another
    node first, as of `as_of` or later; a gap is one that it fell into, a joiner is new.
    `failing` is the id that fails here (0: none), after `attempts` tries, for `cause`. `skipped`:
    the last ids that were passed over without success, oldest first.
    """

    id: int
    state: CursorState
    as_of: int = 0
    failing: int = 0
    attempts: int = 0
    cause: str = ""
    skipped: tuple[int, ...] = ()


class Reservation(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A call that waits for its id. `deadline_ms` is of the log's clock."""

    node: str
    incarnation: int
    function: str
    version: int
    args: bytes
    created_ms: int
    deadline_ms: int


class Left(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A node takes part no more: on its own wish, or `forced` by an operator while it was down."""

    forced: bool


class LostEffect(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A call that was aborted, though its initiator may have run it already: no other node will."""

    function: str
    version: int
    cause: str
    created_ms: int


# --- results --------------------------------------------------------------------------------------


class Granted(msgspec.Struct, frozen=True, array_like=True, tag="granted"):
    """The id is this caller's: run it, then commit or abort."""

    ticket: int
    id: int


class Queued(msgspec.Struct, frozen=True, array_like=True, tag="queued"):
    """Another one runs. `place` 1 is granted next."""

    ticket: int
    place: int


class StaleView(msgspec.Struct, frozen=True, array_like=True, tag="stale_view"):
    """The caller's own node fails, `attempts` times by now, to execute the id after `cursor`."""

    last: int
    cursor: int
    attempts: int


class Behind(msgspec.Struct, frozen=True, array_like=True, tag="behind"):
    """Nothing was written: the caller's node must execute up to `last` first, then try again."""

    last: int
    cursor: int


class Committed(msgspec.Struct, frozen=True, array_like=True):
    """`nodes` are all that take part as of this entry: what "all" means for this call."""

    id: int
    nodes: tuple[str, ...]
    index: int


class Aborted(msgspec.Struct, frozen=True, array_like=True):
    """Nobody else will run it."""

    id: int
    index: int


class Withdrawn(msgspec.Struct, frozen=True, array_like=True):
    """`was`: it waited, it had been granted (its id is aborted), or it was gone already."""

    was: Literal["queued", "granted", "gone"]
    index: int


class Advanced(msgspec.Struct, frozen=True, array_like=True):
    """Where the cursor stands now: at the id, or behind the aborted ones that follow it."""

    cursor: int


class Joined(msgspec.Struct, frozen=True, array_like=True):
    """How the node takes part from now on; see `Cursor`."""

    state: CursorState
    cursor: int
    as_of: int


class LeaveDone(msgspec.Struct, frozen=True, array_like=True):
    """`found`: it took part until now. `dropped` of its reservations were dropped at once."""

    found: bool
    dropped: int


class Rejoined(msgspec.Struct, frozen=True, array_like=True):
    """`found`: it had left. It may join now."""

    found: bool


class Forced(msgspec.Struct, frozen=True, array_like=True):
    """`id` is the new one, `nodes` those whose cursor stands there."""

    id: int
    nodes: tuple[str, ...]
    index: int


class ResetDone(msgspec.Struct, frozen=True, array_like=True):
    """`rows` records were deleted; `more`: `Trim` deletes the rest."""

    last: int
    rows: int
    more: bool


class Acknowledged(msgspec.Struct, frozen=True, array_like=True):
    """`found`: there was such a lost effect."""

    found: bool


class Expired(msgspec.Struct, frozen=True, array_like=True):
    """`tickets` reservations ended; `more`: propose it again."""

    tickets: int
    more: bool


class Trimmed(msgspec.Struct, frozen=True, array_like=True):
    """`rows` records were deleted, `gaps` nodes fell behind for good; `more`: propose it again."""

    rows: int
    gaps: tuple[str, ...]
    more: bool


# --- commands: the log of calls -------------------------------------------------------------------


class Reserve(msgspec.Struct, frozen=True, array_like=True, tag="reserve"):
    """Ask for the next id, `expected_last` being the last one that this node knows and has run.

    A `ttl_ms` above the setting `deadline_max_ms` counts as that.
    """

    Result: ClassVar[Any] = Granted | Queued | StaleView | Behind
    function: Function
    version: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    args: bytes
    expected_last: Id
    ttl_ms: Annotated[int, msgspec.Meta(ge=1, le=ID_MAX // 2)]
    created_ms: Millis


class Commit(msgspec.Struct, frozen=True, array_like=True, tag="commit"):
    """The initiator ran the id: let all others run it. Its own cursor moves with it."""

    Result: ClassVar[Any] = Committed
    id: Id
    ticket: Id
    effect: Effect | None = None


class Abort(msgspec.Struct, frozen=True, array_like=True, tag="abort"):
    """The function failed on the initiator. `cause`: "<class> in <function>", never a message."""

    Result: ClassVar[Any] = Aborted
    id: Id
    ticket: Id
    cause: str


class Withdraw(msgspec.Struct, frozen=True, array_like=True, tag="withdraw"):
    """Take back a reservation of this node that has not run."""

    Result: ClassVar[Any] = Withdrawn
    ticket: Id
    cause: Literal["withdrawn", "stale_view"]


class Expire(msgspec.Struct, frozen=True, array_like=True, tag="expire"):
    """End the reservations that are due, `tickets_max` at most, and grant the next one."""

    Result: ClassVar[Any] = Expired
    tickets_max: Rows


# --- commands: cursors ----------------------------------------------------------------------------


class Advance(msgspec.Struct, frozen=True, array_like=True, tag="advance"):
    """This node has executed the next id (a forced one: passed it)."""

    Result: ClassVar[Any] = Advanced
    id: Id
    effect: Effect | None = None


class Failing(msgspec.Struct, frozen=True, array_like=True, tag="failing"):
    """This node fails to execute the next id: told at the first try and at STALE_TRIES."""

    Result: ClassVar[Any] = None
    id: Id
    attempts: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    cause: str


class Skip(msgspec.Struct, frozen=True, array_like=True, tag="skip"):
    """An operator lets this node pass the next id, whatever became of it here."""

    Result: ClassVar[Any] = Advanced
    id: Id


class Join(msgspec.Struct, frozen=True, array_like=True, tag="join"):
    """Take part. `wiped`: this node's data is older than its cursor, so that it must copy anew."""

    Result: ClassVar[Any] = Joined
    wiped: bool = False


class Sync(msgspec.Struct, frozen=True, array_like=True, tag="sync"):
    """A joiner, or a node in a gap, holds the data of a following one as of this id."""

    Result: ClassVar[Any] = Joined
    as_of: Id


class Leave(msgspec.Struct, frozen=True, array_like=True, tag="leave"):
    """Let a node take part no more: itself, or with `forced` one that is down."""

    Result: ClassVar[Any] = LeaveDone
    node: str
    forced: bool


class Rejoin(msgspec.Struct, frozen=True, array_like=True, tag="rejoin"):
    """Forget that this node has left."""

    Result: ClassVar[Any] = Rejoined


class Force(msgspec.Struct, frozen=True, array_like=True, tag="force"):
    """Put the nodes on one new id: those of `forward` (and all up to date) hold the data already.

    Those of `sync` get a gap, and with it a copy. The numbers are the cursors that the caller saw.
    """

    Result: ClassVar[Any] = Forced
    expected_last: Id
    forward: Annotated[tuple[NodeAt, ...], msgspec.Meta(max_length=NODES_MAX)]
    sync: Annotated[tuple[NodeAt, ...], msgspec.Meta(max_length=NODES_MAX)]


class Reset(msgspec.Struct, frozen=True, array_like=True, tag="reset"):
    """Forget all records and let every node follow from the last id on. Ids go on."""

    Result: ClassVar[Any] = ResetDone
    expected_last: Id


class Acknowledge(msgspec.Struct, frozen=True, array_like=True, tag="acknowledge"):
    """Somebody has taken notice of a lost effect of `node`, which may be down; "": the sender's."""

    Result: ClassVar[Any] = Acknowledged
    id: Id
    node: str = ""


class Trim(msgspec.Struct, frozen=True, array_like=True, tag="trim"):
    """Delete old records, `rows_max` at most."""

    Result: ClassVar[Any] = Trimmed
    rows_max: Rows


#: The format from which on `history_max` counts completed calls, and `Force` notes what it skips.
FORMAT_COMPLETED: Final = 2

# --- tables ---------------------------------------------------------------------------------------

TABLES = (
    # id -> the record, from meta "oldest" to meta "last" without holes
    TableSpec("records", int, Record, run=True),
    # node -> how far it has come; no row: it does not take part
    TableSpec("cursors", str, Cursor),
    # ticket -> who waits, in the order of coming
    TableSpec("queue", int, Reservation),
    # (deadline_ms, ticket) of all that waits, and of the one that is granted
    TableSpec("due", tuple[int, int], None),
    # "last": the highest id; "oldest": the lowest whose record is kept; "granted": the ticket of
    # the reserved id, 0: none; "reset": records up to here are deleted however few they are
    TableSpec("meta", str, int),
    # first -> last id of each stretch of aborted ids: a cursor passes one at a step
    TableSpec("aborted", int, int),
    # ticket -> why it was dropped from the queue
    TableSpec("answers", int, str),
    # node -> it takes part no more
    TableSpec("left", str, Left),
    # node -> where its cursor stood when it ceased to take part
    TableSpec("former", str, int),
    # (node, id) -> what it may have run for itself alone
    TableSpec("lost", tuple[str, int], LostEffect),
)
