"""The public names, imported when the first of them is used."""

from .alarms import Alarm
from .api import CallsApi
from .calling import CallResult
from .commands import (
    STALE_TRIES,
    ArgsTooLarge,
    Cursor,
    HasLeft,
    LostEffect,
    Moved,
    NodeIsUp,
    NotAMember,
    NotTakingPart,
    QueueFull,
    Record,
    TooOld,
)
from .errors import CannotForward, DeadlinePassed, StaleView, TooManyRequired
from .functions import Call, CallError, UnknownFunction, cause_of, logged_cause
from .kept import KeptFile
from .options import CallsOptions
from .plugin import Calls
from .reports import (
    Attempt,
    CallStatus,
    ClusterStatus,
    Differing,
    FixReport,
    FunctionInfo,
    LostRow,
    NodeStatus,
    NotFollowing,
    Operated,
    OperationFailed,
    Reachability,
    SkipReport,
    UnknownCall,
    UnknownNode,
)
from .states import NodeState, StatesNotReady, StateTooLarge

__all__ = [
    "STALE_TRIES",
    "Alarm",
    "ArgsTooLarge",
    "Attempt",
    "Call",
    "CallError",
    "CallResult",
    "CallStatus",
    "Calls",
    "CallsApi",
    "CallsOptions",
    "CannotForward",
    "ClusterStatus",
    "Cursor",
    "DeadlinePassed",
    "Differing",
    "FixReport",
    "FunctionInfo",
    "HasLeft",
    "KeptFile",
    "LostEffect",
    "LostRow",
    "Moved",
    "NodeIsUp",
    "NodeState",
    "NodeStatus",
    "NotAMember",
    "NotFollowing",
    "NotTakingPart",
    "Operated",
    "OperationFailed",
    "QueueFull",
    "Reachability",
    "Record",
    "SkipReport",
    "StaleView",
    "StateTooLarge",
    "StatesNotReady",
    "TooManyRequired",
    "TooOld",
    "UnknownCall",
    "UnknownFunction",
    "UnknownNode",
    "cause_of",
    "logged_cause",
]
