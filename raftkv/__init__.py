"""raftkv: an embeddable, Raft-replicated key-value module.

async with raftkv.Node(config) as node:
    await node.kv.put(b"k", b"v")

The names are imported when they are first used: a command of the command line, or a client, starts
without the engine of a node.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import blocking, recipes
    from .allocator import tune_malloc
    from .client import Client, ClientStream, ClientTls, DoorAnswer
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
    from .hugepages import use_huge_pages
    from .kv import KeyValue, KVApi
    from .node import Node
    from .status import Status
    from .switching import tune_threads

__all__ = [
    "Client",
    "ClientStream",
    "ClientTls",
    "ConfigError",
    "DoorAnswer",
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
    "blocking",
    "load_config",
    "recipes",
    "tune_gc",
    "tune_malloc",
    "tune_threads",
    "use_huge_pages",
]

# Which module has the name; the modules themselves are attributes, too. tests/test_imports.py holds
# this against the imports above.
_HOMES: dict[str, tuple[str, ...]] = {
    "allocator": ("tune_malloc",),
    "blocking": (),
    "client": ("Client", "ClientStream", "ClientTls", "DoorAnswer"),
    "collector": ("tune_gc",),
    "config": ("Limits", "NodeConfig", "RaftTimes", "TlsFiles", "load_config"),
    "errors": (
        "ConfigError",
        "NodeFault",
        "NotApplied",
        "OutcomeUnknown",
        "RaftkvError",
        "Refused",
    ),
    "hugepages": ("use_huge_pages",),
    "kv": ("KVApi", "KeyValue"),
    "node": ("Node",),
    "recipes": (),
    "status": ("Status",),
    "switching": ("tune_threads",),
}


if not TYPE_CHECKING:  # a type checker would take any name for one of this module

    def __getattr__(name: str) -> Any:
        for home, names in _HOMES.items():
            if name == home:
                return import_module(f".{home}", __name__)
            if name in names:
                found = globals()[name] = getattr(import_module(f".{home}", __name__), name)
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_HOMES})
