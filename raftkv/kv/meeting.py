"""Which two operations of a transaction change one key: for the text of a refusal.

Nothing is decided here. A refused transaction is looked through once more, for a key that is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal

from .commands import FROM_KEY, DeleteRangeOp, LogOperation, NestedTxn, PutOp, Txn

__all__ = ["meeting"]

#: Operations on the key that are compared with each other; beyond that none is named.
COMPARED_MAX: Final = 64

# The branch and the place in it, from the outermost transaction on.
Path = tuple[tuple[Literal["success", "failure"], int], ...]


def meeting(txn: Txn, key: bytes) -> str:
    """Name a put of the key and another operation that one execution may do with it.

    As `success[0] puts it, failure[1].success[0] deletes it`; empty if none is found.
    """
    before: list[tuple[Path, bool]] = []
    for path, puts in _changes(txn, txn.success, txn.failure, key, ()):
        for other, other_puts in before:
            if (puts or other_puts) and _may_meet(path, other):
                return f"{_named(other, other_puts)}, {_named(path, puts)}"
        if len(before) == COMPARED_MAX:
            return ""
        before.append((path, puts))
    return ""


def _changes(
    txn: Txn,
    success: Sequence[LogOperation],
    failure: Sequence[LogOperation],
    key: bytes,
    above: Path,
) -> Iterator[tuple[Path, bool]]:
    """The operations that put (True) or delete (False) the key, in order."""
    branches: tuple[tuple[Literal["success", "failure"], Sequence[LogOperation]], ...]
    branches = (("success", success), ("failure", failure))
    for branch, operations in branches:
        for place, operation in enumerate(operations):
            path = (*above, (branch, place))
            if type(operation) is NestedTxn:
                inner = txn.nested[operation.number]
                yield from _changes(txn, inner.success, inner.failure, key, path)
            elif type(operation) is PutOp and operation.key == key:
                yield path, True
            elif type(operation) is DeleteRangeOp and _holds(operation, key):
                yield path, False


def _holds(deletion: DeleteRangeOp, key: bytes) -> bool:
    if not deletion.range_end:
        return deletion.key == key
    return deletion.key <= key and (deletion.range_end == FROM_KEY or key < deletion.range_end)


def _may_meet(one: Path, other: Path) -> bool:
    """Whether one execution may do both: not where they are in opposite branches of one."""
    for (branch, place), (other_branch, other_place) in zip(one, other, strict=False):
        if branch != other_branch:
            return False
        if place != other_place:
            return True
    return True


def _named(path: Path, puts: bool) -> str:
    place = ".".join(f"{branch}[{place}]" for branch, place in path)
    return f"{place} {'puts' if puts else 'deletes'} it"
