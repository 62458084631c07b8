"""What calls count against the quota, and which commands add to it.

A reservation counts what it will count as a record, so a call that has its place can be committed,
aborted and executed. Only `Reserve` adds. It is refused while the keyspace is beyond its quota as
well, for the effect of the call may write there.
"""

from __future__ import annotations

from typing import Any, Final

from raftkv.plugin import Quota

from .commands import CAUSE_CHARS_MAX, Record, Reservation, Reserve

__all__ = ["CALL_BYTES", "QUOTA"]

#: What a call counts besides its function's name and its arguments: with the longest cause.
CALL_BYTES: Final = 512 + CAUSE_CHARS_MAX


def _record(key: int, row: Record) -> int:
    return CALL_BYTES + len(row.function) + len(row.args)


def _reservation(key: int, row: Reservation) -> int:
    return CALL_BYTES + len(row.function) + len(row.args)


def _adds(command: Any) -> bool:
    return type(command) is Reserve


QUOTA: Final = Quota(sizes={"records": _record, "queue": _reservation}, adds=_adds)
