"""What spaces and transactions count against the quota, and which commands add to it.

A pending write counts what it will count as a confirmed row, beside its transaction in the queue.
So confirming adds nothing, and acknowledgements, verdicts and changes of the owner are never
refused; nor are transactions that only delete.
"""

from __future__ import annotations

from typing import Any, Final

from raftkv.plugin import Quota

from .commands import CreateSpace, Entry, Row, Space, Submit, Transaction

__all__ = ["QUOTA", "ROW_BYTES", "adds"]

#: What a key, a transaction or a space counts besides its bytes.
ROW_BYTES: Final = 256


def _space(key: str, row: Space) -> int:
    return ROW_BYTES + len(key)


def _row(key: tuple[int, bytes], row: Row) -> int:
    return ROW_BYTES + len(key[1]) + len(row.value)


def _pending(key: tuple[int, bytes, int], value: bytes | None) -> int:
    return 0 if value is None else ROW_BYTES + len(key[1]) + len(value)


def _entry(key: int, row: Entry) -> int:
    return ROW_BYTES + sum(len(each.key) + len(each.value or b"") for each in row.writes)


def adds(transaction: Transaction) -> bool:
    """Whether a transaction may add data; else it only deletes."""
    return any(write.value is not None for write in transaction.writes)


def _adds(command: Any) -> bool:
    if type(command) is Submit:
        return any(map(adds, command.transactions))
    return type(command) is CreateSpace


QUOTA: Final = Quota(
    sizes={"spaces": _space, "rows": _row, "pending": _pending, "entries": _entry},
    adds=_adds,
)
