"""The keyspace: etcd's data model as raftkv's first plugin."""

from .api import KVApi
from .commands import (
    FROM_KEY,
    Compare,
    DeleteRange,
    DeleteRangeOp,
    DeleteRangeResult,
    DuplicateKey,
    EmptyKey,
    KeyValue,
    LimitExceeded,
    Operation,
    OperationResult,
    Put,
    PutOp,
    PutResult,
    RangeOp,
    RangeResult,
    Txn,
    TxnResult,
    prefix_end,
)
from .keyspace import KV

__all__ = [
    "FROM_KEY",
    "KV",
    "Compare",
    "DeleteRange",
    "DeleteRangeOp",
    "DeleteRangeResult",
    "DuplicateKey",
    "EmptyKey",
    "KVApi",
    "KeyValue",
    "LimitExceeded",
    "Operation",
    "OperationResult",
    "Put",
    "PutOp",
    "PutResult",
    "RangeOp",
    "RangeResult",
    "Txn",
    "TxnResult",
    "prefix_end",
]
