"""What callers on a node can get beside the refusals of the log (`refusals.py`).

Split by what the caller may do next:

    NotApplied       nothing happened and nothing will
        TransactionAborted   nothing of the transaction is visible anywhere, nor will be: do all of
                             it again, in a new one
        NotSent              the command waited for its turn until its time was over
    OutcomeUnknown   nothing is known, and the call has decided nothing
        TransactionUnknown   the commit is under way: `outcome(txid)` tells what becomes of it
        StillUnderWay        another command is
    Refused          a verdict, the same on every node (the refusals of apply)

The first and the third are the two ways in which a transaction can end without the caller having
heard "committed", and the whole difference is whether it may be repeated at once.
"""

from __future__ import annotations

from raftkv.errors import NotApplied, OutcomeUnknown

__all__ = ["NotSent", "StillUnderWay", "TransactionAborted", "TransactionUnknown"]


class TransactionAborted(NotApplied):
    """The transaction was rolled back, or can never be committed: surely nothing was applied.

    `txid`: of the TX, or the xid of a branch as text. `cause`: a word, for programs: the code of
    the refusal that it met ("txqueue_queue_full"), "session", "timeout", "vote", "late" or
    "participant". `reason`: for people.

    Every further call in that transaction raises it again, until it is ended by a commit or a
    rollback. Messages that it had accepted are the session's again, if the session lives.
    """

    code = "txqueue_transaction_aborted"

    def __init__(self, txid: str, cause: str, reason: str = "") -> None:
        super().__init__(txid, cause, reason)
        self.txid = txid
        self.cause = cause
        self.reason = reason

    def __str__(self) -> str:
        why = f": {self.reason}" if self.reason else ""
        return (
            f"transaction {self.txid} was rolled back ({self.cause}{why}), and nothing of it was "
            f"applied: it can be done again in a new one"
        )


class TransactionUnknown(OutcomeUnknown):
    """The commit was asked for, and its verdict is not known (yet). Do not repeat it blindly.

    While the session lives its node goes on with the commit. `await txq.outcome(txid)`, on any
    node, tells what became of it; so does `session.commit(txid)`, which waits for the verdict.
    """

    code = "txqueue_transaction_unknown"

    def __init__(self, txid: str) -> None:
        super().__init__(
            f"the commit of transaction {txid} is under way and nobody has said how it ends: ask "
            f"for the outcome of {txid} before anything of it is done again"
        )
        self.txid = txid


class NotSent(NotApplied):
    """The time was over before the command's turn came: earlier ones of the session go on."""

    code = "txqueue_not_sent"

    def __init__(self) -> None:
        super().__init__(
            "the earlier commands of this session took all the time: nothing was sent, try again"
        )


class StillUnderWay(OutcomeUnknown):
    """The time was over while the command was under way: it goes on, in its session's order.

    What comes later in the session comes after it. If that matters, look at what it was to change.
    """

    code = "txqueue_still_under_way"

    def __init__(self) -> None:
        super().__init__(
            "the command is under way and goes on; later ones of the session wait for it"
        )
