"""A session's part in the branches of distributed transactions: to attach, to work, to detach.

While a session is attached to a branch, what it publishes and accepts is gathered for the branch,
as for a TX, and staged at the latest when it detaches, suspending included. What could not be
staged makes the branch fail: the session then ends its part as failed, so that no coordinator can
commit the rest without it. Nor can one do so before: a branch in which a live session works cannot
be prepared.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from raftkv.errors import OutcomeUnknown, Refused, TooLarge

from .commands import Answered, End, Operation, Start
from .committing import NOT_ENCODABLE, Committing, cause_of
from .errors import TransactionAborted
from .life import Life
from .refusals import BranchRefused, SessionEnded
from .transaction import Transaction
from .xa import XaStatus, Xid, millis_of

__all__ = ["Attaching"]


class Attaching:
    """The branch of one session. `branch`: it is attached to it now; `last`: to the last one."""

    def __init__(self, life: Life, committing: Committing) -> None:
        self._life = life
        self._committing = committing
        self.branch: Transaction | None = None
        self.last: Transaction | None = None

    async def start(self, xid: Xid, join: bool, resume: bool, timeout_s: float | None) -> XaStatus:
        """A job of the session's line: attach. Raises `BranchRefused` kinds."""
        timeout_ms = None if timeout_s is None else millis_of(timeout_s)
        command = Start(self._life.id, xid, join, resume, timeout_ms)
        answer: Answered = await self._life.ask(command)
        status = XaStatus(answer.status)
        if status is XaStatus.OK:
            self.branch = self.last = Transaction(self._life.id, xid)
        return status

    def leave(self, xid: Xid, suspend: bool, fail: bool) -> Callable[[], Awaitable[XaStatus]]:
        """Detach: what is published from now on is not the branch's. The job that makes it so."""
        return partial(self._end, self._detached(xid, suspend, fail), xid, suspend, fail)

    def _detached(self, xid: Xid, suspend: bool, fail: bool) -> Transaction | None:
        """The branch, from now on left behind; None: it cannot be left in this way.

        Then the log has to say what is wrong with that, and it changes nothing.
        """
        branch = self.branch
        if branch is None or branch.xid != xid or (suspend and fail):
            return None
        self.branch = None
        return branch

    async def _end(
        self, branch: Transaction | None, xid: Xid, suspend: bool, fail: bool
    ) -> XaStatus:
        if branch is None:
            # A start may have been under way when the call was made.
            branch = self._detached(xid, suspend, fail)
        if branch is None:
            return await self._ask(xid, suspend, fail)
        packs = branch.content.take()
        tail = packs.pop() if packs else ()
        try:
            for pack in packs:
                await self._committing.stage_pack(branch, pack)
            if branch.aborted is None:
                return await self._ask(xid, suspend, fail, tail)
        except (BranchRefused, SessionEnded, OutcomeUnknown):
            branch.abort("session", "the session is not attached to it any more")
            raise
        except TransactionAborted as aborted:
            self._life.host.log.debug("txqueue: a branch ends as failed: %s", aborted.cause)
        except (Refused, TooLarge, *NOT_ENCODABLE) as error:
            branch.abort(*cause_of(error))
        return await self._ask(xid, suspend=False, fail=True)

    async def _ask(
        self, xid: Xid, suspend: bool, fail: bool, operations: tuple[Operation, ...] = ()
    ) -> XaStatus:
        command = End(self._life.id, xid, suspend, fail, operations)
        answer: Answered = await self._life.ask(command, must=True)
        return XaStatus(answer.status)
