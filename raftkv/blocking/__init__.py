"""raftkv without asyncio: `Client` and `Node` for programs with threads, or with none.

with raftkv.blocking.Client("http://127.0.0.1:4001") as client:
    client.kv.put(b"k", b"v")

Each object has an event loop of its own in a thread of its own. docs/clients.md tells the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .client import Client
from .kv import KV
from .leases import Leases
from .streams import Stream
from .watch import Watch

if TYPE_CHECKING:
    from .node import Node

__all__ = ["KV", "Client", "Leases", "Node", "Stream", "Watch"]


def __getattr__(name: str) -> Any:
    # A client does without the modules of a node, which are much to load.
    if name == "Node":
        from .node import Node

        return Node
    raise AttributeError(name)
