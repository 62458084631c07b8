"""The public names, imported when the first of them is used."""

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
