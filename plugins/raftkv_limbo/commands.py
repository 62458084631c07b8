"""What the limbo says through the log, and what it keeps.

Everything here is data: the commands with their results, and the rows of the tables. The refusals
stand in `refusals.py`, the decisions in `entering.py`, `queue.py`, `ownership.py`, `acks.py` and
`spaces.py`.

A *transaction* writes several keys of several *spaces*. It gets a *position*, 1, 2, 3, ..., which
is never used again. It is *sync* if a space that it writes is; else async. A sync one is *pending*
until it has its quorum (CONFIRM) or is rolled back (ROLLBACK); an async one that is submitted
meanwhile waits behind it, unless it is *independent*. Pending writes are not in `rows`: a CONFIRM
folds them in, oldest first, a ROLLBACK just drops them.

There is no CONFIRM command: the command, member or setting that completes a quorum confirms, in its
own entry, on every node alike. So a position has one verdict, and it is where the log says.

Format 1 is that of 0.1.0. Format 2 keeps a record of each CONFIRM (`Confirmation`), and drops and
alters synchronous spaces by `DropFenced` and `AlterFenced` only.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec

from raftkv.errors import Refused
from raftkv.plugin import TableSpec

__all__ = [
    "BATCH_PARTS_MAX",
    "BATCH_TRANSACTIONS_MAX",
    "FORMAT_CONFIRMATIONS",
    "FRESH",
    "KEY_BYTES_MAX",
    "NAME_CHARS_MAX",
    "REASON_CHARS_MAX",
    "ROWS_LIMIT",
    "SPAN_FACTOR",
    "TABLES",
    "VALIDATORS_MAX",
    "Ack",
    "Acked",
    "AlterFenced",
    "AlterSpace",
    "Cause",
    "Condition",
    "Confirmation",
    "CreateSpace",
    "Declare",
    "Demote",
    "Demoted",
    "DropEntered",
    "DropFenced",
    "DropSpace",
    "Entry",
    "Participant",
    "Promote",
    "Promoted",
    "Rejected",
    "RollBack",
    "Rollback",
    "RolledBackTo",
    "Row",
    "Space",
    "SpaceAltered",
    "SpaceCreated",
    "SpaceDropped",
    "State",
    "Submit",
    "Submitted",
    "Sweep",
    "Swept",
    "Transaction",
    "Veto",
    "Vetoed",
    "Write",
]

#: Transactions of one `Submit`, and writes and conditions of all of them together.
BATCH_TRANSACTIONS_MAX: Final = 256
BATCH_PARTS_MAX: Final = 1_000
#: Bytes of a key. With the space's id and the position it stays far below the limit of tables.
KEY_BYTES_MAX: Final = 1_024
#: Letters of a reason that are kept; the rest is cut off.
REASON_CHARS_MAX: Final = 500
#: Letters of the name of a space, a zone or a validator.
NAME_CHARS_MAX: Final = 64
#: Validators of one node.
VALIDATORS_MAX: Final = 16
#: Rows of one `Sweep`, and old entries that one `Submit` deletes.
ROWS_LIMIT: Final = 1_000
#: Independent transactions do not wait, but their entries stay while an older one is pending: they
#: are refused when the queue spans this many times its limits of entries or bytes.
SPAN_FACTOR: Final = 10
INT_MAX: Final = 2**63 - 1
#: The format that has confirmations, and fenced changes of synchronous spaces.
FORMAT_CONFIRMATIONS: Final = 2

Position = Annotated[int, msgspec.Meta(ge=0, le=INT_MAX)]
Term = Annotated[int, msgspec.Meta(ge=0, le=INT_MAX)]


# --- parts of a transaction -----------------------------------------------------------------------


class Write(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Set a key; `value` None deletes it."""

    space: str
    key: bytes
    value: bytes | None


class Condition(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What must hold before, or nothing of the transaction is written.

    "value": the key has just that value (None: there is none). "position": the value was written by
    the transaction at that position (0: there is none). "exists": there is one (`position` 1) or
    none (0). The field that the kind does not use is None or 0.
    """

    space: str
    key: bytes
    kind: Literal["value", "position", "exists"]
    value: bytes | None = None
    position: Position = 0


class Transaction(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """All of it or nothing. `independent`: async, and not to wait behind what is pending."""

    writes: tuple[Write, ...]
    conditions: tuple[Condition, ...] = ()
    independent: bool = False


# --- rows -----------------------------------------------------------------------------------------


class Space(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`keys`: confirmed rows. The id is never used again, so a dropped space can be swept later."""

    id: int
    sync: bool
    keys: int


class Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A value, and the position of the transaction that wrote it."""

    value: bytes
    position: int


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A transaction that got its position.

    One without writes drops a space. `bytes`: of its keys and values. `term`, `submitted_ms` (the
    log's clock) and `index` are those of its `Submit`.
    """

    sync: bool
    independent: bool
    writes: tuple[Write, ...]
    bytes: int
    term: int
    submitted_ms: int
    index: int


class Rollback(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A run of positions that were rolled back, from the key of the row to `last`.

    One ROLLBACK makes several runs if settled positions lie between them; `head` is the position
    from which it rolled back, the same in all of them. `node` asked for it ("": no node did).
    """

    last: int
    head: int
    index: int
    term: int
    at_ms: int
    reason: str
    node: str


#: What completes a quorum: an acknowledgement; the submission itself, where Raft's commit is the
#: quorum; a declaration of a zone or of validators; a change of a member, of the voters, of a
#: setting.
Cause = Literal["ack", "submit", "declare", "member", "voters", "setting"]


class Confirmation(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A run of positions that one CONFIRM made visible, from the key of the row to `last`.

    `index`, `at_ms` (the log's clock) and `term` are those of the CONFIRM. `cause` and `by` are
    what completed the quorum: the node of an acknowledgement, a submission or a declaration, the
    member that changed, the key of the setting. `upto`: the position that was acknowledged, else 0.
    """

    last: int
    index: int
    term: int
    at_ms: int
    cause: Cause
    by: str
    upto: int = 0


class Participant(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a node, in the life `incarnation`, has acknowledged and declared."""

    incarnation: int
    acked: int = 0
    zone: str = ""
    validators: tuple[str, ...] = ()


class State(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The one row of `meta`.

    `confirmed`: highest ordered position that is confirmed. `head`: oldest pending one, always a
    sync one; 0: nothing is pending. `pending`, `pending_bytes`, `pending_writes`: what is pending.
    `held_bytes`: of all entries from `head` to `last`, settled ones among them too.
    `confirms`, `rollbacks`: entries, ever. `confirm_lag_ms`: how long the last sync one waited.
    `confirmed_index`: the log entry of the last CONFIRM. `forgotten`: up to here verdicts are no
    longer known. `owner` "": unclaimed.
    """

    owner: str = ""
    incarnation: int = 0
    term: int = 0
    last: int = 0
    confirmed: int = 0
    head: int = 0
    pending: int = 0
    pending_bytes: int = 0
    pending_writes: int = 0
    held_bytes: int = 0
    confirms: int = 0
    rollbacks: int = 0
    confirm_lag_ms: int = 0
    confirmed_index: int = 0
    forgotten: int = 0
    next_space: int = 1


#: Before the first command.
FRESH: Final = State()


# --- results --------------------------------------------------------------------------------------


class Rejected(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The transaction at place `at` (0, 1, ...) of the batch was refused; see `refusal_of`.

    `data`: the arguments, packed, for no declared type holds text and bytes at once.
    """

    at: int
    code: str
    data: bytes

    @classmethod
    def of(cls, at: int, refusal: Refused) -> Rejected:
        return cls(at, refusal.code, msgspec.msgpack.encode(refusal.args))

    @property
    def args(self) -> tuple[str | int | bytes, ...]:
        return tuple(msgspec.msgpack.decode(self.data))


class Submitted(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Transactions that are not in `rejected` got the positions `first`, `first` + 1, ... in order.

    The ordered ones up to `confirmed` are confirmed, and the independent ones all.
    """

    first: int
    index: int
    confirmed: int
    term: int
    rejected: tuple[Rejected, ...] = ()


class Acked(msgspec.Struct, frozen=True, array_like=True):
    """`confirmed`: see `State`, after this ack."""

    confirmed: int


class Vetoed(msgspec.Struct, frozen=True, array_like=True):
    """What the position is now. "unknown": not given yet, forgotten, or async and pending."""

    verdict: Literal["rolled back", "confirmed", "unknown"]


class RolledBackTo(msgspec.Struct, frozen=True, array_like=True):
    """`entries` positions between `first` and `last` were rolled back."""

    first: int
    last: int
    entries: int


class Promoted(msgspec.Struct, frozen=True, array_like=True):
    """This node owns the queue in `term`; `rolled_back` entries were rolled back."""

    term: int
    confirmed: int
    rolled_back: int


class Demoted(msgspec.Struct, frozen=True, array_like=True):
    """Nobody owns the queue in `term`; `rolled_back` entries were rolled back."""

    term: int
    confirmed: int
    rolled_back: int


class SpaceCreated(msgspec.Struct, frozen=True, array_like=True):
    id: int


class SpaceAltered(msgspec.Struct, frozen=True, array_like=True):
    """`changed`: it was otherwise until now."""

    changed: bool


class SpaceDropped(msgspec.Struct, frozen=True, array_like=True):
    """`rows` of it are to be swept."""

    rows: int


class DropEntered(msgspec.Struct, frozen=True, array_like=True):
    """The drop of a space got a position; it is done once that is confirmed.

    `confirmed`: it is done already. `rows` of the space are to be swept then. `position` 0: the
    space was not synchronous, so the drop has none.
    """

    position: int
    confirmed: bool
    rows: int
    index: int


class Swept(msgspec.Struct, frozen=True, array_like=True):
    """`rows` were deleted; `more`: propose it again."""

    rows: int
    more: bool


# --- commands -------------------------------------------------------------------------------------


class Submit(msgspec.Struct, frozen=True, array_like=True, tag="submit"):
    """Transactions of one node, each on its own. `term`: the one that the node believes to own."""

    Result: ClassVar[Any] = Submitted
    transactions: tuple[Transaction, ...]
    term: Term


class Ack(msgspec.Struct, frozen=True, array_like=True, tag="ack"):
    """This node has applied all up to `upto`, and these validators of it had no objection."""

    Result: ClassVar[Any] = Acked
    upto: Position
    validators: tuple[str, ...] = ()


class Declare(msgspec.Struct, frozen=True, array_like=True, tag="declare"):
    """This node's zone ("": none), and the validators that are registered on it."""

    Result: ClassVar[Any] = None
    zone: str
    validators: tuple[str, ...] = ()


class Veto(msgspec.Struct, frozen=True, array_like=True, tag="veto"):
    """A validator objects: roll back from there."""

    Result: ClassVar[Any] = Vetoed
    position: Position
    validator: str
    reason: str


class RollBack(msgspec.Struct, frozen=True, array_like=True, tag="rollback"):
    """The owner or an operator wants everything pending from `position` on rolled back."""

    Result: ClassVar[Any] = RolledBackTo
    position: Position
    term: Term
    reason: str


class Promote(msgspec.Struct, frozen=True, array_like=True, tag="promote"):
    """Make this node the owner, if the term is still that and nothing up to `upto` is pending."""

    Result: ClassVar[Any] = Promoted
    expected_term: Term
    upto: Position


class Demote(msgspec.Struct, frozen=True, array_like=True, tag="demote"):
    """Give the queue away, under the same conditions."""

    Result: ClassVar[Any] = Demoted
    expected_term: Term
    upto: Position


class CreateSpace(msgspec.Struct, frozen=True, array_like=True, tag="create_space"):
    Result: ClassVar[Any] = SpaceCreated
    name: str
    sync: bool


class AlterSpace(msgspec.Struct, frozen=True, array_like=True, tag="alter_space"):
    """From the next transaction on; those that are pending stay what they are."""

    Result: ClassVar[Any] = SpaceAltered
    name: str
    sync: bool


class DropSpace(msgspec.Struct, frozen=True, array_like=True, tag="drop_space"):
    Result: ClassVar[Any] = SpaceDropped
    name: str


class AlterFenced(msgspec.Struct, frozen=True, array_like=True, tag="alter_fenced"):
    """`AlterSpace` by the owner of `term`, where it takes the quorum from a space. Format 2."""

    Result: ClassVar[Any] = SpaceAltered
    name: str
    sync: bool
    term: Term


class DropFenced(msgspec.Struct, frozen=True, array_like=True, tag="drop_fenced"):
    """`DropSpace` by the owner of `term`, at a position of the queue if the space is synchronous.

    Format 2.
    """

    Result: ClassVar[Any] = DropEntered
    name: str
    term: Term


class Sweep(msgspec.Struct, frozen=True, array_like=True, tag="sweep"):
    """Delete rows of dropped spaces, `rows_max` at most."""

    Result: ClassVar[Any] = Swept
    rows_max: Annotated[int, msgspec.Meta(ge=1, le=ROWS_LIMIT)]


# --- tables ---------------------------------------------------------------------------------------

TABLES = (
    TableSpec("spaces", str, Space),
    # ids of dropped spaces that still have rows
    TableSpec("dropped", int, None),
    # (space id, key) -> what is confirmed
    TableSpec("rows", tuple[int, bytes], Row),
    # (space id, key, position) -> the value that a pending transaction writes, None: it deletes
    TableSpec("pending", tuple[int, bytes, int], bytes | None),
    # position -> the transaction, from the oldest one that is kept to State.last without holes
    TableSpec("entries", int, Entry, run=True),
    # first position -> the run
    TableSpec("rollbacks", int, Rollback),
    # first position -> the run that one CONFIRM made visible (format 2)
    TableSpec("confirmations", int, Confirmation),
    # position -> the synchronous space whose drop is pending there (format 2)
    TableSpec("drops", int, str),
    TableSpec("nodes", str, Participant),
    # (validator, node) -> up to where it has no objection
    TableSpec("approvals", tuple[str, str], int),
    TableSpec("meta", str, State),
)
