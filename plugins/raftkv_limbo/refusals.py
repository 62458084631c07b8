"""The verdicts of the limbo that write nothing. What must be remembered is a result instead.

A refused command writes nothing at all. A transaction that is refused inside a `Submit` stands
alone: the others of its batch go on, and the refusal travels as a `Rejected` (code and arguments),
from which `refusal_of` makes the exception again.

The text of each says what to do next. It never shows a user's key: keys are in the attributes, for
the program, and not in a line that may end in a log.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from raftkv.errors import Refused

__all__ = [
    "REFUSALS",
    "AlreadyConfirmed",
    "AlreadyRolledBack",
    "BadDeclaration",
    "BadSpaceName",
    "BatchTooLarge",
    "ConditionFailed",
    "DropPending",
    "DuplicateWrite",
    "EmptyTransaction",
    "ForeignOwner",
    "IndependentSync",
    "InterferingPromote",
    "KeyPending",
    "KeyTooLarge",
    "NotAMember",
    "NotAValidator",
    "NotOwner",
    "NotSettled",
    "QueueFull",
    "SpaceBusy",
    "SpaceExists",
    "StaleOwner",
    "StaleTerm",
    "TooManySpaces",
    "TransactionTooLarge",
    "Unclaimed",
    "UnknownPosition",
    "UnknownSpace",
    "refusal_of",
]


# --- who may write --------------------------------------------------------------------------------


class NotAMember(Refused):
    """The limbo's transactions come from nodes, and this command was sent by none."""

    code = "limbo_not_a_member"

    def __str__(self) -> str:
        return "only a node of the cluster may do this: ask one of them"


class Unclaimed(Refused):
    """Nobody owns the queue, so nobody may submit to a synchronous space."""

    code = "limbo_unclaimed"

    def __str__(self) -> str:
        return "nobody owns the queue: promote a node, then submit there"


class ForeignOwner(Refused):
    """Another node owns the queue."""

    code = "limbo_foreign_owner"

    def __init__(self, owner: str, term: int) -> None:
        super().__init__(owner, term)
        self.owner = owner
        self.term = term

    def __str__(self) -> str:
        return f"the queue is owned by {self.owner!r} in term {self.term}: submit there, or promote"


class StaleOwner(Refused):
    """This node owned the queue in an earlier life or term, and has not been promoted since."""

    code = "limbo_stale_owner"

    def __init__(self, term: int) -> None:
        super().__init__(term)
        self.term = term

    def __str__(self) -> str:
        return f"this node's claim is older than term {self.term} or its life: promote it anew"


class StaleTerm(Refused):
    """The command was written under another term than the present one."""

    code = "limbo_stale_term"

    def __init__(self, term: int) -> None:
        super().__init__(term)
        self.term = term

    def __str__(self) -> str:
        return f"the term is {self.term} by now: look at the queue, and decide again"


class InterferingPromote(Refused):
    """Another promote or demote was faster."""

    code = "limbo_interfering_promote"

    def __init__(self, owner: str, term: int) -> None:
        super().__init__(owner, term)
        self.owner = owner
        self.term = term

    def __str__(self) -> str:
        who = repr(self.owner) if self.owner else "nobody"
        return (
            f"another promote or demote came first: {who} owns the queue in term {self.term}. "
            "Look at the status, and ask again if that is still wanted"
        )


class NotSettled(Refused):
    """Something is still pending that has to be settled before the owner may change."""

    code = "limbo_not_settled"

    def __init__(self, head: int, upto: int) -> None:
        super().__init__(head, upto)
        self.head = head
        self.upto = upto

    def __str__(self) -> str:
        return (
            f"position {self.head} is pending, and all up to {self.upto} must be settled first: "
            "wait for their quorum, or roll them back"
        )


class NotOwner(Refused):
    """Only the owner gives the queue away."""

    code = "limbo_not_owner"

    def __init__(self, owner: str, term: int) -> None:
        super().__init__(owner, term)
        self.owner = owner
        self.term = term

    def __str__(self) -> str:
        if not self.owner:
            return f"nobody owns the queue in term {self.term}: there is nothing to give away"
        return f"{self.owner!r} owns the queue in term {self.term}: demote it there"


# --- verdicts on a position -----------------------------------------------------------------------


class _OnPosition(Refused):
    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position


class AlreadyConfirmed(_OnPosition):
    """The transaction is confirmed: that stays so for ever."""

    code = "limbo_already_confirmed"

    def __str__(self) -> str:
        return f"position {self.position} is confirmed: undo it by another transaction"


class AlreadyRolledBack(_OnPosition):
    """The transaction is rolled back: that stays so for ever."""

    code = "limbo_already_rolled_back"

    def __str__(self) -> str:
        return f"position {self.position} is rolled back already: there is nothing to do"


class UnknownPosition(_OnPosition):
    """There is no such position yet, or it is so old that its verdict is forgotten."""

    code = "limbo_unknown_position"

    def __str__(self) -> str:
        return (
            f"position {self.position} was not given yet, or its verdict is no longer kept: "
            "look at the queue and the verdicts for those that are known"
        )


class NotAValidator(Refused):
    """The setting does not name this validator, or its node has not declared it."""

    code = "limbo_not_a_validator"

    def __init__(self, validator: str) -> None:
        super().__init__(validator)
        self.validator = validator

    def __str__(self) -> str:
        return (
            f"{self.validator!r} has no say: name it in quorum_validators, "
            "and register it on this node"
        )


class BadDeclaration(Refused):
    """A zone or validators that are too long or too many. Arguments: what, limit."""

    code = "limbo_bad_declaration"
    text_places = (0,)

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(what, limit)
        self.what = what
        self.limit = limit

    def __str__(self) -> str:
        what = self.what or "validators of one node, or letters of a name"
        return f"{what}: {self.limit} at most. Start the node with fewer or shorter ones"


# --- transactions ---------------------------------------------------------------------------------


class QueueFull(Refused):
    """What would wait finds no room. `what`: "entries", "bytes" or "writes"."""

    code = "limbo_queue_full"

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(what, limit)
        self.what = what
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"the queue holds its {self.limit} {self.what}: submit again when there is room, "
            "or let the quorum come back"
        )


class _OnKey(Refused):
    def __init__(self, space: str, key: bytes, position: int) -> None:
        super().__init__(space, key, position)
        self.space = space
        self.key = key
        #: Where what was found comes from.
        self.position = position


class ConditionFailed(_OnKey):
    """A condition does not hold. `position`: of the value that was found, 0 if there is none."""

    code = "limbo_condition_failed"

    def __str__(self) -> str:
        found = f"a value of position {self.position}" if self.position else "no value"
        return f"a condition on a key of {self.space!r} found {found}: read it, and decide again"


class KeyPending(_OnKey):
    """An independent transaction touches a key that the pending one at `position` writes."""

    code = "limbo_key_pending"

    def __str__(self) -> str:
        return (
            f"a key of {self.space!r} is written by the pending position {self.position}: "
            "submit it as ordered, or wait for that verdict"
        )


class DuplicateWrite(Refused):
    """A transaction writes one key twice."""

    code = "limbo_duplicate_write"

    def __init__(self, space: str, key: bytes) -> None:
        super().__init__(space, key)
        self.space = space
        self.key = key

    def __str__(self) -> str:
        return f"a key of {self.space!r} is written twice: write it once"


class EmptyTransaction(Refused):
    """A transaction without writes has nothing to confirm."""

    code = "limbo_empty_transaction"

    def __str__(self) -> str:
        return "a transaction writes at least one key: use get to look only"


class IndependentSync(Refused):
    """A transaction that waits for a quorum cannot overtake those before it."""

    code = "limbo_independent_sync"

    def __init__(self, space: str) -> None:
        super().__init__(space)
        self.space = space

    def __str__(self) -> str:
        return f"{self.space!r} is synchronous, so the transaction is ordered: submit it as such"


class TransactionTooLarge(Refused):
    """`what`: "writes and conditions", or "bytes"."""

    code = "limbo_transaction_too_large"

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(what, limit)
        self.what = what
        self.limit = limit

    def __str__(self) -> str:
        return f"a transaction has at most {self.limit} {self.what}: split it"


class KeyTooLarge(Refused):
    """A key is longer than `limit` bytes."""

    code = "limbo_key_too_large"

    def __init__(self, space: str, limit: int) -> None:
        super().__init__(space, limit)
        self.space = space
        self.limit = limit

    def __str__(self) -> str:
        return f"a key of {self.space!r} is longer than {self.limit} bytes: shorten it"


class BatchTooLarge(Refused):
    """One `Submit` holds too much. The API splits batches; another caller has to."""

    code = "limbo_batch_too_large"

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(what, limit)
        self.what = what
        self.limit = limit

    def __str__(self) -> str:
        return f"one command holds at most {self.limit} {self.what}: send several"


# --- spaces ---------------------------------------------------------------------------------------


class _OnSpace(Refused):
    def __init__(self, space: str) -> None:
        super().__init__(space)
        self.space = space


class SpaceExists(_OnSpace):
    """There is a space of this name."""

    code = "limbo_space_exists"

    def __str__(self) -> str:
        return f"the space {self.space!r} exists: alter it, or take another name"


class UnknownSpace(_OnSpace):
    """There is no space of this name."""

    code = "limbo_unknown_space"

    def __str__(self) -> str:
        return f"there is no space {self.space!r}: create it first"


class BadSpaceName(_OnSpace):
    """A name is 1 to 64 ASCII letters, digits, and . _ - (these not in front)."""

    code = "limbo_bad_space_name"

    def __str__(self) -> str:
        return "a space's name is 1 to 64 of a-z A-Z 0-9 _ . - and begins with a letter, digit or _"


class TooManySpaces(Refused):
    """There are `spaces_max` spaces."""

    code = "limbo_too_many_spaces"

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.limit = limit

    def __str__(self) -> str:
        return f"there are {self.limit} spaces: drop one, or raise spaces_max"


class SpaceBusy(Refused):
    """The pending transaction at `position` writes to the space."""

    code = "limbo_space_busy"

    def __init__(self, space: str, position: int) -> None:
        super().__init__(space, position)
        self.space = space
        self.position = position

    def __str__(self) -> str:
        return (
            f"the pending position {self.position} writes to {self.space!r}: "
            "wait for its verdict, or roll it back"
        )


class DropPending(Refused):
    """The space is being dropped: that is pending at `position`."""

    code = "limbo_drop_pending"

    def __init__(self, space: str, position: int) -> None:
        super().__init__(space, position)
        self.space = space
        self.position = position

    def __str__(self) -> str:
        return (
            f"the drop of {self.space!r} is pending at position {self.position}: "
            "wait for its verdict, or roll it back"
        )


REFUSALS: tuple[type[Refused], ...] = (
    NotAMember,
    Unclaimed,
    ForeignOwner,
    StaleOwner,
    StaleTerm,
    InterferingPromote,
    NotSettled,
    NotOwner,
    AlreadyConfirmed,
    AlreadyRolledBack,
    UnknownPosition,
    NotAValidator,
    BadDeclaration,
    QueueFull,
    ConditionFailed,
    KeyPending,
    DuplicateWrite,
    EmptyTransaction,
    IndependentSync,
    TransactionTooLarge,
    KeyTooLarge,
    BatchTooLarge,
    SpaceExists,
    UnknownSpace,
    BadSpaceName,
    TooManySpaces,
    SpaceBusy,
    DropPending,
)

_BY_CODE: dict[str, type[Refused]] = {refusal.code: refusal for refusal in REFUSALS}


def refusal_of(code: str, args: Iterable[Any]) -> Refused:
    """The exception that a `Rejected` stands for. Raises LookupError for an unknown code."""
    return _BY_CODE[code](*args)
