"""Which words stand in format 1 of the commands, that of raftkv 0.1.0.

A cluster in which a member still runs 0.1.0 has format 1 active. That member cannot decode the
newer words, so the others must not understand them either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .commands import DeleteRange, LogOperation, NestedTxn, Put, PutOp, RangeOp, Txn

__all__ = ["in_format_1"]


def in_format_1(command: Any) -> bool:
    """Whether 0.1.0 knows this command, with everything that is set in it."""
    if isinstance(command, Put | DeleteRange):
        return True
    if not isinstance(command, Txn) or command.nested:
        return False
    return not any(compare.target == "lease" for compare in command.compare) and _all_known(
        (*command.success, *command.failure)
    )


def _all_known(operations: Sequence[LogOperation]) -> bool:
    for operation in operations:
        if isinstance(operation, NestedTxn):
            return False
        if isinstance(operation, PutOp):
            short: LogOperation = PutOp(operation.key, operation.value, operation.prev_kv)
        elif isinstance(operation, RangeOp):
            short = RangeOp(
                operation.key,
                operation.range_end,
                operation.limit,
                operation.keys_only,
                operation.count_only,
            )
        else:
            continue
        if operation != short:
            return False
    return True
