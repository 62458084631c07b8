"""The Linear Channel Registry: which connection of a client is the one, decided in a log.

    from raftkv_lcr import LCR

    lcr = node.plugin(LCR)
    result = await lcr.connect("client-1", "connection-17")
    result.session_present        # whether a predecessor's session was taken over
    await lcr.unregister(result.owner)

`commands.py` has the words, `registry.py` the decision, `api.py` what a program calls. The registry
that it replaces, for comparison, is `lcr.legacy`.
"""

from .api import Answer, LcrApi
from .commands import (
    Ahead,
    BadTicket,
    Channel,
    InProgress,
    NoOrigin,
    OutdatedEarly,
    OutdatedLate,
    Registered,
    Restart,
    SelfTakeover,
    Ticket,
)
from .legacy import LegacyRegistry
from .plugin import LCR
from .result import ConnectResult

__all__ = [
    "LCR",
    "Ahead",
    "Answer",
    "BadTicket",
    "Channel",
    "ConnectResult",
    "InProgress",
    "LcrApi",
    "LegacyRegistry",
    "NoOrigin",
    "OutdatedEarly",
    "OutdatedLate",
    "Registered",
    "Restart",
    "SelfTakeover",
    "Ticket",
]
