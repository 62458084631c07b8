"""Reading the queues on one node: figures, browsing, outcomes.

Reads that somebody may act upon are linearizable: they show everything that was answered before
they were asked, on whatever node. "local" shows this node's copy at once; whichever it is, a
transaction is in it whole or not at all.
"""

from __future__ import annotations

from raftkv.plugin import Consistency, Host

from .commands import ROWS_MAX, Queue
from .line import TIMEOUT_S
from .refusals import UnknownQueue, UnknownTransaction
from .status import QueueStatus, queue_rows, queue_status
from .views import Browsed, Fate, browse, outcome_of, queue_of

__all__ = ["Reading", "require_possible", "txid_parts"]


def txid_parts(txid: str) -> tuple[int, int]:
    """The session and the counter of a txid. Raises `UnknownTransaction`."""
    session, dot, counter = txid.partition(".")
    if not dot or not (_is_number(session) and _is_number(counter)):
        raise UnknownTransaction(txid)
    return int(session), int(counter)


def require_possible(queue: str) -> None:
    """No queue has a name that could not even be sent. Raises `UnknownQueue`."""
    if not queue.isascii():
        raise UnknownQueue(queue)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and 0 < len(text) < 20


class Reading:
    """Questions of one node. Times are seconds. All raise ReadTimeout."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def queues(self) -> tuple[QueueStatus, ...]:
        """All queues, by name, as this node's copy has them."""
        return queue_rows(self._host.view())

    async def depth(self, queue: str, consistency: Consistency, timeout_s: float) -> QueueStatus:
        """A queue's figures and limits. Raises `UnknownQueue`."""
        await self._host.barrier(consistency, timeout_s=timeout_s)
        view = self._host.view()
        row: Queue = queue_of(view, queue)
        return queue_status(view, queue, row)

    async def browse(
        self,
        queue: str,
        first: int,
        limit: int,
        everything: bool,
        consistency: Consistency,
        timeout_s: float,
    ) -> tuple[Browsed, ...]:
        """Messages from the seq `first` on. Raises `UnknownQueue`."""
        if not 1 <= limit <= ROWS_MAX:
            raise ValueError(f"limit is 1 to {ROWS_MAX} messages")
        await self._host.barrier(consistency, timeout_s=timeout_s)
        return browse(self._host.view(), queue, first, limit, everything)

    async def outcome(self, txid: str, timeout_s: float = TIMEOUT_S) -> Fate:
        """What became of a TX; final when it is "committed" or "rolled back"."""
        session, counter = txid_parts(txid)
        await self._host.barrier(timeout_s=timeout_s)
        return outcome_of(self._host.view(), session, counter)
