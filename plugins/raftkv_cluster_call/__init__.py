"""Cluster calls: every node executes every call, in one order, as often as it must.

    from raftkv_cluster_call import Call, Calls

    calls = node.plugin(Calls)                      # on every node, right after it has started

    @calls.function("users.add", version=1)
    async def add_user(args: AddUser, call: Call) -> int: ...     # raising is failure

    result = await calls.call("users.add", AddUser("ann"), required="all", timeout_s=30)
    result.outcome      # "ok", "init_failure", "peers_lagging", "stopped_nodes"
    result.result       # what the function returned on the node that was asked

The function runs here first. If it fails, no other node runs it; if it succeeds, all of them will,
those too that are down just now, and in the same order as all other calls.

`commands.py` has the words of the log, `log.py` the order, `worker.py` the execution on a node,
`calling.py` what a caller waits for, `states.py` what a node that joins has to copy, `operating.py`
how to see and mend what is stuck. docs/cluster-calls.md is for users, docs/internals/calls.md for
whoever changes it.
"""

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
from .functions import Call, CallError, UnknownFunction, cause_of
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
]
