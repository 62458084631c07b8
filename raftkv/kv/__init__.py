"""The keyspace: etcd's data model as raftkv's first plugin.

Its commands are imported at once, and what a node makes of them when it is first used: a client, a
plugin's command and the command line need the commands only.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .commands import (
    FROM_KEY,
    Attached,
    ClaimLessor,
    ClaimLessorResult,
    Compact,
    Compacted,
    CompactResult,
    Compare,
    DeleteRange,
    DeleteRangeOp,
    DeleteRangeResult,
    DuplicateKey,
    EmptyKey,
    Event,
    Expire,
    ExpireResult,
    FutureRevision,
    Grant,
    GrantResult,
    KeyNotFound,
    KeyValue,
    LeaseExists,
    LeaseGiven,
    LeaseNotFound,
    LeaseRow,
    LeaseTtlTooLarge,
    LimitExceeded,
    NotLessor,
    Operation,
    OperationResult,
    Put,
    PutOp,
    PutResult,
    PutWith,
    RangeOp,
    RangeResult,
    Revision,
    Revoke,
    RevokeResult,
    Txn,
    TxnOp,
    TxnOutcome,
    TxnResult,
    TxnTooCostly,
    ValueGiven,
    events_of,
    prefix_end,
)

if TYPE_CHECKING:
    from .api import KVApi
    from .keeping import Keepable, Keeping, LeaseStatus
    from .keyspace import KV
    from .leases import LeaseApi
    from .watch import Watch, WatchBatch

__all__ = [
    "FROM_KEY",
    "KV",
    "Attached",
    "ClaimLessor",
    "ClaimLessorResult",
    "Compact",
    "CompactResult",
    "Compacted",
    "Compare",
    "DeleteRange",
    "DeleteRangeOp",
    "DeleteRangeResult",
    "DuplicateKey",
    "EmptyKey",
    "Event",
    "Expire",
    "ExpireResult",
    "FutureRevision",
    "Grant",
    "GrantResult",
    "KVApi",
    "Keepable",
    "Keeping",
    "KeyNotFound",
    "KeyValue",
    "LeaseApi",
    "LeaseExists",
    "LeaseGiven",
    "LeaseNotFound",
    "LeaseRow",
    "LeaseStatus",
    "LeaseTtlTooLarge",
    "LimitExceeded",
    "NotLessor",
    "Operation",
    "OperationResult",
    "Put",
    "PutOp",
    "PutResult",
    "PutWith",
    "RangeOp",
    "RangeResult",
    "Revision",
    "Revoke",
    "RevokeResult",
    "Txn",
    "TxnOp",
    "TxnOutcome",
    "TxnResult",
    "TxnTooCostly",
    "ValueGiven",
    "Watch",
    "WatchBatch",
    "events_of",
    "prefix_end",
]

# Which module has the name. tests/test_imports.py holds this against the imports above.
_HOMES = {
    "KV": "keyspace",
    "KVApi": "api",
    "Keepable": "keeping",
    "Keeping": "keeping",
    "LeaseApi": "leases",
    "LeaseStatus": "keeping",
    "Watch": "watch",
    "WatchBatch": "watch",
}


if not TYPE_CHECKING:  # a type checker would take any name for one of this module

    def __getattr__(name: str) -> Any:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return list(__all__)
