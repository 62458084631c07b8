"""What XA says: the names of branches and the codes of answers.

A *xid* names a branch of a distributed transaction: a format, the global transaction, the branch
(X/Open CAE C193; AMQP 0-10, class dtx). Answers come in two kinds. A *status* tells what became of
the branch, and is a result that the log keeps. An *error* says that the call was wrong: it is a
refusal, changes nothing, and bears its code as `xa` (`refusals.py`).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Final

import msgspec

__all__ = [
    "ANY_XID_BYTES_MAX",
    "XaError",
    "XaStatus",
    "Xid",
    "millis_of",
    "xid_from_text",
]

#: XA's own bound for the global part and for the branch's part, in bytes.
ANY_XID_BYTES_MAX: Final = 64

_Part = Annotated[bytes, msgspec.Meta(max_length=ANY_XID_BYTES_MAX)]


class XaStatus(IntEnum):
    """What a branch answered (AMQP 0-10 dtx.xa-status).

    HEURHAZ and HEURMIX are listed for completeness: one log entry decides a whole branch on all
    nodes, so here it can be neither unknown nor mixed.
    """

    OK = 0
    RBROLLBACK = 1
    RBTIMEOUT = 2
    HEURHAZ = 3
    HEURCOM = 4
    HEURRB = 5
    HEURMIX = 6
    RDONLY = 7


class XaError(IntEnum):
    """Why a call was refused (AMQP 0-10 execution error codes)."""

    NOT_FOUND = 404
    ILLEGAL_STATE = 409
    COMMAND_INVALID = 503
    NOT_ALLOWED = 530
    NOT_IMPLEMENTED = 540
    INVALID_ARGUMENT = 542


class Xid(msgspec.Struct, frozen=True, array_like=True, order=True):
    """The name of a branch. As text `format:global:branch`, the last two in hexadecimal."""

    format: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
    gtrid: _Part
    bqual: _Part = b""

    def __str__(self) -> str:
        return f"{self.format}:{self.gtrid.hex()}:{self.bqual.hex()}"

    @property
    def key(self) -> tuple[int, bytes, bytes]:
        """The key of its row."""
        return (self.format, self.gtrid, self.bqual)


def millis_of(seconds: float) -> int:
    """A branch's time-out in the log's unit; 0: none, so that the shortest one is a millisecond.

    Raises ValueError.
    """
    if not 0 <= seconds < 2**53 / 1000:
        raise ValueError(f"a time-out is 0 (none) or more seconds, not {seconds}")
    return round(seconds * 1000) or (1 if seconds else 0)


def xid_from_text(text: str) -> Xid:
    """The Xid of `str(xid)`. Raises ValueError that says how one is written."""
    parts = text.split(":")
    try:
        if len(parts) != 3:
            raise ValueError
        xid = Xid(int(parts[0]), bytes.fromhex(parts[1]), bytes.fromhex(parts[2]))
        return msgspec.convert(msgspec.to_builtins(xid), Xid)
    except (ValueError, msgspec.ValidationError):
        raise ValueError(
            f"not a xid: write format:global:branch, the last two in hexadecimal with at most "
            f"{ANY_XID_BYTES_MAX} bytes each, like 1:6f72646572:01"
        ) from None
