"""A core that knows its state to be corrupt answers nothing from it any more, at once.

Until it stops it has things to do that take time: it marks its directory, hands leadership over,
and, to be rebuilt, asks for its removal. Meanwhile its log, its votes and its acknowledgements are
as good as before, so the engine and the consensus links go on. What is made of the state is not:

- Every call of a program or a client ends with the `CorruptState` that the node will stop with;
  one that waits for a command which was sent ends as unknown. Watches end as when a node stops.
- Plugins are notified as of a fault. They get no view of the state and no news of it, and calls of
  their own from other nodes are refused. What a leader does for the cluster by its state (leases,
  deaths, plugins) ends.
- Replicants that follow it are refused, so that they copy the state again, and so are others.
- A core that needs a snapshot is sent none, and one that is on its way ends: it waits for the next
  leader. Entries go on.

The requests that change members go on: they are how it leaves. Status and metrics go on, without
those of the plugins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .errors import CorruptState
from .parts import CorePart
from .raft import wire

if TYPE_CHECKING:
    from .node import Node

__all__ = ["withdraw"]

# The calls of raftkv itself begin with it (permissions.py).
_OWN: Final = "core."


def withdraw(node: Node, fault: CorruptState) -> None:
    """Answer nothing from the state of this core any more. It has been started, and stops soon."""
    part = node._part
    assert isinstance(part, CorePart)
    node.withdrawn = fault
    node._running = False
    node.rpc.refuse_all_but(_OWN, fault)
    node.hosting.withdraw()
    node.reader.stop(fault)
    node.outbox.stop(fault)
    node.foreign.stop(fault)
    node.costly.stop(fault)
    refusal = wire.Refusal(CorruptState.code, str(fault))
    node._peering.judge_follower = lambda hello: refusal
    part.feeds.refuse_all(refusal)
    part.engine.snapshotting.withhold()
