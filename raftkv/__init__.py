"""raftkv: an embeddable, Raft-replicated key-value module.

async with raftkv.Node(config) as node:
    await node.kv.put(b"k", b"v")
"""

from .collector import tune_gc
from .config import Limits, NodeConfig, RaftTimes, TlsFiles, load_config
from .errors import (
    ConfigError,
    NodeFault,
    NotApplied,
    OutcomeUnknown,
    RaftkvError,
    Refused,
)
from .kv import KeyValue, KVApi
from .node import Node
from .status import Status

__all__ = [
    "ConfigError",
    "KVApi",
    "KeyValue",
    "Limits",
    "Node",
    "NodeConfig",
    "NodeFault",
    "NotApplied",
    "OutcomeUnknown",
    "RaftTimes",
    "RaftkvError",
    "Refused",
    "Status",
    "TlsFiles",
    "load_config",
    "tune_gc",
]
