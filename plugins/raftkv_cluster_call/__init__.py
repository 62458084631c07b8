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

from __future__ import annotations

from typing import TYPE_CHECKING

from raftkv.late_names import late_names

if TYPE_CHECKING:
    from .public import *  # noqa: F403  # all of its names, and no others
else:
    __getattr__ = late_names(__name__)
