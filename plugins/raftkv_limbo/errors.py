"""What callers on a node can get beside the refusals of the log (`refusals.py`).

Split by what the caller may do next:

    NotApplied       nothing happened and nothing will
        NotSubmitted         its time was over before it was written into the log
        InAnotherPromote     this node promotes, demotes or rolls back already
        PromoteTimedOut      the queue did not get its quorum in time; nothing has changed
    Refused          a verdict, the same on every node
        RolledBack           it was in the queue, and was rolled back
        (the refusals of apply)
    OutcomeUnknown   nothing is decided as far as the caller was told
        StillPending         it is in the queue, at a known position
        SubmitUnknown        it may or may not be in the queue
        VerdictForgotten     it was decided so long ago that nobody knows how

A time-out never decides: it detaches the caller. The two errors of a transaction that may go on
carry its handle as `submission`, so that the caller can go on waiting where it left off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftkv.errors import NotApplied, OutcomeUnknown, Refused

from .commands import Rejected
from .refusals import refusal_of

if TYPE_CHECKING:
    from .submission import Submission

__all__ = [
    "InAnotherPromote",
    "NotSubmitted",
    "PromoteTimedOut",
    "RolledBack",
    "StillPending",
    "SubmitUnknown",
    "VerdictForgotten",
    "refusal",
]


class NotSubmitted(NotApplied):
    """The time was over before the transaction was written: it waited for its turn or for room."""

    code = "limbo_not_submitted"


class InAnotherPromote(NotApplied):
    """A promotion, demotion or rollback of this node is under way: wait for its end."""

    code = "limbo_in_another_promote"

    def __init__(self, doing: str) -> None:
        super().__init__(doing)
        self.doing = doing

    def __str__(self) -> str:
        return f"this node is in the midst of a {self.doing}: wait for its end, then try again"


class PromoteTimedOut(NotApplied):
    """What was pending did not settle in time. Owner and term are as they were.

    `term` is the term that was to be ended, `head` the oldest pending position.
    """

    code = "limbo_promote_timed_out"

    def __init__(self, term: int, head: int) -> None:
        super().__init__(term, head)
        self.term = term
        self.head = head

    def __str__(self) -> str:
        return (
            f"position {self.head} is still pending in term {self.term}, and nothing has changed: "
            f"bring back nodes that are missing for the quorum, lower the quorum, or give up what "
            f'is pending with rest="roll back"'
        )


class RolledBack(Refused):
    """The transaction was rolled back, on every node: nothing of it is visible anywhere.

    `reason` says why, `by` which node asked for it.
    """

    code = "limbo_rolled_back"

    def __init__(self, position: int, reason: str, by: str) -> None:
        super().__init__(position, reason, by)
        self.position = position
        self.reason = reason
        self.by = by

    def __str__(self) -> str:
        return f"position {self.position} was rolled back by {self.by or 'nobody'}: {self.reason}"


class StillPending(OutcomeUnknown):
    """The caller's time is over and nothing is decided. Ask `verdict(position)`, or go on waiting.

    `submission` is the handle of the transaction, where this node made it.
    """

    code = "limbo_still_pending"
    local = frozenset({"submission"})

    def __init__(self, position: int, submission: Submission | None = None) -> None:
        super().__init__(
            f"position {position} is not decided yet, and this decides nothing: ask for the "
            f"verdict on {position} later, or have it rolled back"
        )
        self.position = position
        self.submission = submission


class SubmitUnknown(OutcomeUnknown):
    """The transaction is on its way: whether it is in the queue, and where, is not known yet.

    Do not submit it again blindly: a condition makes that safe. `submission` goes on waiting.
    """

    code = "limbo_submit_unknown"
    local = frozenset({"submission"})

    def __init__(self, message: str = "", submission: Submission | None = None) -> None:
        super().__init__(
            message
            or "the transaction was sent, and the log has not answered: it may still be applied. "
            "Wait on with the error's `submission`, or look at what it writes"
        )
        self.submission = submission


class VerdictForgotten(OutcomeUnknown):
    """It was decided, so long ago that the verdict is not kept: look at what it wrote."""

    code = "limbo_verdict_forgotten"

    def __init__(self, position: int) -> None:
        super().__init__(
            f"position {position} is decided, but verdicts as old are not kept (rollbacks_kept): "
            f"look at the keys it wrote"
        )
        self.position = position


def refusal(rejected: Rejected) -> Refused:
    """The refusal that a `Rejected` stands for."""
    try:
        return refusal_of(rejected.code, rejected.args)
    except (LookupError, TypeError):
        # A newer node has a reason that this code does not know yet, or says more of one.
        return Refused(rejected.code, *rejected.args)
