"""What requests at the door say (door.py), as msgspec reads it: types, bounds, defaults.

Bodies of messages are base64, as all bytes at the door are; headers are pairs of texts. One object
is an operation: `{"publish": queue, "messages": [...]}`, or `{"accept": queue, "seqs": [...]}`.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from raftkv.plugin import BadRequest

from .commands import (
    INT_MAX,
    ROWS_MAX,
    AcceptOf,
    Count,
    Kind,
    Message,
    Operation,
    Overflow,
    PublishTo,
    Seq,
)
from .rows import SettlingVerb
from .times import timed

__all__ = [
    "LIST_DEFAULT",
    "LIST_MAX",
    "NUMBER_MAX",
    "TIMEOUT_MAX_S",
    "TIMEOUT_S",
    "Wanted",
    "WantedBegin",
    "WantedCommit",
    "WantedCommitBranch",
    "WantedDeclare",
    "WantedEnd",
    "WantedEndSession",
    "WantedGet",
    "WantedHeuristic",
    "WantedMessage",
    "WantedNothing",
    "WantedOperation",
    "WantedPublish",
    "WantedRollback",
    "WantedSession",
    "WantedSettle",
    "WantedStage",
    "WantedStageBranch",
    "WantedStart",
    "WantedTimeout",
    "WantedValue",
    "WantedVerb",
    "operation_of",
]

# How long a request may wait, and does if it says nothing.
TIMEOUT_S: Final = 5.0
TIMEOUT_MAX_S: Final = 600.0
# Messages, queues or branches of one answer.
LIST_DEFAULT: Final = 100
LIST_MAX: Final = 1_000
NUMBER_MAX: Final = INT_MAX

Seconds = Annotated[float, msgspec.Meta(gt=0, le=TIMEOUT_MAX_S)]
Wait = Annotated[float, msgspec.Meta(ge=0, le=TIMEOUT_MAX_S)]
#: Seconds of a branch's time-out; 0: none. The setting dtx_timeout_max_ms is lower.
BranchSeconds = Annotated[float, msgspec.Meta(ge=0, le=10**9)]
#: Seconds of a message's time to live or delay. The settings ttl_max_ms and delay_max_ms are lower.
MessageSeconds = Annotated[float, msgspec.Meta(ge=0.001, le=10**9)]
Some = Annotated[int, msgspec.Meta(ge=1, le=ROWS_MAX)]


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class WantedNothing(Wanted, frozen=True):
    """An empty body, or `{}`."""


class WantedMessage(Wanted, frozen=True):
    """`ttl_s`, `delay_s`: seconds; null: what its headers say, else none."""

    body: bytes
    headers: tuple[tuple[str, str], ...] = ()
    ttl_s: MessageSeconds | None = None
    delay_s: MessageSeconds | None = None

    @property
    def message(self) -> Message:
        return timed(Message(self.body, self.headers), self.ttl_s, self.delay_s)


class WantedOperation(Wanted, frozen=True):
    """One of the two; `operation_of` tells which."""

    publish: str | msgspec.UnsetType = msgspec.UNSET
    messages: tuple[WantedMessage, ...] = ()
    accept: str | msgspec.UnsetType = msgspec.UNSET
    seqs: tuple[Seq, ...] = ()


class WantedDeclare(Wanted, frozen=True):
    """null: as it is, or the default for a new one. `change`: an existing one may differ."""

    depth_max: Count | None = None
    bytes_max: Count | None = None
    overflow: Overflow | None = None
    deliveries_max: Count | None = None
    dead_letter: str | None = None
    ack_timeout_ms: Count | None = None
    ttl_ms: Count | None = None
    change: bool = False


class WantedPublish(Wanted, frozen=True):
    messages: tuple[WantedMessage, ...]
    timeout_s: Seconds = TIMEOUT_S


class WantedSession(Wanted, frozen=True):
    kind: Kind = "plain"
    timeout_s: Seconds = TIMEOUT_S


class WantedEndSession(Wanted, frozen=True):
    """`reason`: what the session's program gets to read."""

    reason: str = ""
    timeout_s: Seconds = TIMEOUT_S


class WantedGet(Wanted, frozen=True):
    """`wait_s`: for the first one; 0: what is there now."""

    queue: str
    count: Some = 1
    wait_s: Wait = 0.0


class WantedSettle(Wanted, frozen=True):
    queue: str
    seqs: tuple[Seq, ...]
    how: SettlingVerb = "accept"


class WantedBegin(Wanted, frozen=True):
    session: str


class WantedStage(Wanted, frozen=True):
    """`at`: operations that were sent before in this transaction; None: not checked."""

    operations: tuple[WantedOperation, ...]
    at: Count | None = None


class WantedCommit(Wanted, frozen=True):
    operations: tuple[WantedOperation, ...] = ()
    at: Count | None = None
    timeout_s: Seconds = TIMEOUT_S


class WantedRollback(Wanted, frozen=True):
    timeout_s: Seconds = TIMEOUT_S


class WantedStart(Wanted, frozen=True):
    session: str
    join: bool = False
    resume: bool = False
    timeout_s: BranchSeconds | None = None


class WantedEnd(Wanted, frozen=True):
    session: str
    suspend: bool = False
    fail: bool = False


class WantedStageBranch(Wanted, frozen=True):
    session: str
    operations: tuple[WantedOperation, ...]
    at: Count | None = None


class WantedVerb(Wanted, frozen=True):
    """A verb that says nothing but how long to wait."""

    timeout_s: Seconds = TIMEOUT_S


class WantedCommitBranch(Wanted, frozen=True):
    one_phase: bool = False
    timeout_s: Seconds = TIMEOUT_S


class WantedTimeout(Wanted, frozen=True):
    seconds: BranchSeconds


class WantedHeuristic(Wanted, frozen=True):
    """`decide` has to be said: neither is what somebody forgot to say."""

    decide: Literal["commit", "rollback"]
    reason: str = "an operator asked for it"


class WantedValue(Wanted, frozen=True):
    value: msgspec.Raw


def operation_of(asked: WantedOperation) -> Operation:
    """The operation that is meant. Raises BadRequest unless it is exactly one."""
    match asked:
        case WantedOperation(publish=str(queue), accept=msgspec.UNSET, seqs=()):
            return PublishTo(queue, tuple(each.message for each in asked.messages))
        case WantedOperation(accept=str(queue), publish=msgspec.UNSET, messages=()):
            return AcceptOf(queue, asked.seqs)
        case _:
            raise BadRequest(
                'an operation is {"publish": queue, "messages": [...]} or {"accept": queue, '
                '"seqs": [...]}, not both and not neither'
            )
