"""What requests at the door say (door.py), as msgspec reads it: types, bounds, defaults."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

__all__ = [
    "LIST_DEFAULT",
    "LIST_MAX",
    "POSITION_MAX",
    "TIMEOUT_MAX_S",
    "TIMEOUT_S",
    "Wanted",
    "WantedAlter",
    "WantedCondition",
    "WantedCreate",
    "WantedFlush",
    "WantedGet",
    "WantedPromote",
    "WantedQuorum",
    "WantedRange",
    "WantedRollBack",
    "WantedSubmit",
    "WantedValue",
    "WantedWrite",
]

# How long a request may wait, and does if it says nothing.
TIMEOUT_S: Final = 5.0
TIMEOUT_MAX_S: Final = 600.0
# Transactions, verdicts or rows of one answer.
LIST_DEFAULT: Final = 100
LIST_MAX: Final = 1_000
POSITION_MAX: Final = 2**63 - 1

Seconds = Annotated[float, msgspec.Meta(gt=0, le=TIMEOUT_MAX_S)]
Position = Annotated[int, msgspec.Meta(ge=1, le=POSITION_MAX)]
Number = Annotated[int, msgspec.Meta(ge=0, le=POSITION_MAX)]
Read = Literal["confirmed", "pending", "linearizable"]


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class WantedWrite(Wanted, frozen=True):
    """`value` null deletes; it has to be said, so that a misspelt one does not."""

    space: str
    key: bytes
    value: bytes | None


class WantedCondition(Wanted, frozen=True):
    """One of `value` (null: there is none), `position` (0: none), `exists`."""

    space: str
    key: bytes
    value: bytes | msgspec.UnsetType | None = msgspec.UNSET
    position: Number | msgspec.UnsetType = msgspec.UNSET
    exists: bool | msgspec.UnsetType = msgspec.UNSET


class WantedSubmit(Wanted, frozen=True):
    writes: tuple[WantedWrite, ...]
    conditions: tuple[WantedCondition, ...] = ()
    order: Literal["ordered", "independent"] = "ordered"
    wait: Literal["complete", "submit", "none"] = "complete"
    timeout_s: Seconds = TIMEOUT_S


class WantedGet(Wanted, frozen=True):
    space: str
    key: bytes
    view: Read = "confirmed"
    timeout_s: Seconds = TIMEOUT_S


class WantedRange(Wanted, frozen=True):
    space: str
    start: bytes = b""
    end: bytes | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=LIST_MAX)] = LIST_DEFAULT
    reverse: bool = False
    view: Read = "confirmed"
    timeout_s: Seconds = TIMEOUT_S


class WantedPromote(Wanted, frozen=True):
    node: str | None = None
    rest: Literal["wait", "roll back"] = "wait"
    timeout_s: Seconds = TIMEOUT_S


class WantedRollBack(Wanted, frozen=True):
    """`term`: the one that was seen, so that what was meant is what happens. None: the present."""

    position: Position
    term: Number | None = None
    reason: str = "an operator asked for it"
    timeout_s: Seconds = TIMEOUT_S


class WantedFlush(Wanted, frozen=True):
    timeout_s: Seconds = TIMEOUT_S


class WantedCreate(Wanted, frozen=True):
    name: str
    sync: bool


class WantedAlter(Wanted, frozen=True):
    sync: bool


class WantedQuorum(Wanted, frozen=True):
    quorum: str | int | None = None
    over: str | None = None
    zones: dict[str, int] | None = None
    validators: dict[str, int] | None = None


class WantedValue(Wanted, frozen=True):
    value: msgspec.Raw
