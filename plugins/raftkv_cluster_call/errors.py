"""What a caller of `calls.call` can get beside the refusals of the log (`commands.py`).

All of these are `NotApplied`: the function has run nowhere, and nothing will run. A call whose
function failed on its initiator is no error of this kind but an answer ("init_failure").
"""

from __future__ import annotations

from raftkv.errors import NotApplied

__all__ = ["CannotForward", "DeadlinePassed", "StaleView", "TooManyRequired"]


class StaleView(NotApplied):
    """This node does not get on with the calls it has to execute first, so it may make none.

    `cluster_id` is the last id of the cluster, `own_id` this node's cursor, `attempts` how often
    the node has tried. Look at `raftkv calls status`, and mend what fails there, or skip it.
    """

    code = "calls_stale_view"

    def __init__(self, cluster_id: int, own_id: int, attempts: int) -> None:
        super().__init__(cluster_id, own_id, attempts)
        self.cluster_id = cluster_id
        self.own_id = own_id
        self.attempts = attempts

    def __str__(self) -> str:
        return (
            f"the calls of the cluster stand at {self.cluster_id}, this node at {self.own_id}, and "
            f"{self.attempts} tries have not moved it: `raftkv calls status` says why. If call "
            f"{self.own_id + 1} or the next one fails here, mend what it needs, or pass it with "
            f"`raftkv calls skip`; if this node is joining, in a gap or without a leader, make the "
            f"call on another one meanwhile"
        )


class DeadlinePassed(NotApplied):
    """The call's time was over before it was its turn: the function has not run anywhere."""

    code = "calls_deadline_passed"


class TooManyRequired(NotApplied):
    """More nodes are required than take part in the calls."""

    code = "calls_too_many_required"


class CannotForward(NotApplied):
    """This node may not initiate calls, and no core could be reached that would do it."""

    code = "calls_cannot_forward"
