"""The Linear Channel Registry: which connection of a client is the one, decided in a log.

A broker whose sessions shall move with their clients, from node to node:

    from raftkv_lcr import LCR

    manager = node.plugin(LCR).sessions(broker)     # a ChannelOwner: begin, end, discard, kick, ...
    opened = await manager.open_session("client-1", False, "connection-17")
    opened.outcome, opened.present, opened.session, opened.pendings
    await manager.close(opened.channel)

A program that only wants to know who is registered:

    lcr = node.plugin(LCR)
    result = await lcr.connect("client-1", "connection-17")
    result.session_present        # whether a predecessor's session was taken over
    await lcr.unregister(result.owner)

`commands.py` has the words, `registry.py` the decision, `api.py` what a program calls, `manager.py`
the session flow and `owner.py` what a broker implements for it. The registry that it replaces, for
comparison and for the way from there to here, is `lcr.legacy`; `modes.py` says how to move.
"""

from .api import Answer, LcrApi
from .commands import (
    Ahead,
    AheadAt,
    BadTicket,
    Channel,
    Drawn,
    InProgress,
    Mode,
    ModeMoved,
    ModeRow,
    NoOrigin,
    NotAdopted,
    OldNodes,
    OutdatedEarly,
    OutdatedLate,
    Registered,
    Restart,
    SelfTakeover,
    Ticket,
    WrongStep,
)
from .legacy import LegacyRegistry
from .manager import ChannelManager
from .options import LcrOptions
from .owner import (
    ChannelGone,
    ChannelOwner,
    Failure,
    Message,
    NothingToTakeOver,
    SessionKeeper,
    merge_pendings,
)
from .plugin import LCR
from .result import ConnectResult, OpenedSession

__all__ = [
    "LCR",
    "Ahead",
    "AheadAt",
    "Answer",
    "BadTicket",
    "Channel",
    "ChannelGone",
    "ChannelManager",
    "ChannelOwner",
    "ConnectResult",
    "Drawn",
    "Failure",
    "InProgress",
    "LcrApi",
    "LcrOptions",
    "LegacyRegistry",
    "Message",
    "Mode",
    "ModeMoved",
    "ModeRow",
    "NoOrigin",
    "NotAdopted",
    "NothingToTakeOver",
    "OldNodes",
    "OpenedSession",
    "OutdatedEarly",
    "OutdatedLate",
    "Registered",
    "Restart",
    "SelfTakeover",
    "SessionKeeper",
    "Ticket",
    "WrongStep",
    "merge_pendings",
]
