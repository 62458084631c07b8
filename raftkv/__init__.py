"""raftkv: an embeddable, Raft-replicated key-value module.

async with raftkv.Node(config) as node:
    await node.kv.put(b"k", b"v")
"""

from .config import Limits, NodeConfig, RaftTimes, load_config
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
    "load_config",
]
