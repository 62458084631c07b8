"""What a transaction manager does with branches on a node: `txq.dtx`, XA's verbs.

    status = await txq.dtx.prepare(xid)              # XaStatus.OK: it is a promise now
    await txq.dtx.commit(xid)                        # on any node, also after all were restarted
    for branch in await txq.dtx.recover(): ...       # what waits for a decision

Sessions work in branches (`session.start`, `session.end`); a branch that they have ended belongs to
nobody, so every node does for the rest.

Rules of this file
1. Nothing here decides. A status is what the log answered; a time-out says that the answer is not
   known (`TransactionUnknown`), and the same call again gives it, or `outcome`.
2. A lost answer is settled before the command is proposed again, for the second commit of a branch
   that is gone would be told "unknown xid".
3. Reads that somebody may act upon (`recover`, `outcome`, `get_timeout`) are linearizable. A
   coordinator that did not see a prepared branch would never finish it.

The answer to `prepare` and to a one-phase commit comes when the participants have voted. Who waits
here is told by the tables: the branch is prepared, has failed, or is gone with its decision kept.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from raftkv.errors import OutcomeUnknown, Stopped
from raftkv.plugin import Host, Proposer, View
from raftkv.validation import checked

from . import views
from .commands import (
    ROWS_MAX,
    Answered,
    CommitBranch,
    DecisionRow,
    ForgetBranch,
    Heuristic,
    PrepareBranch,
    RollbackBranch,
    SetTimeout,
    State,
    TransactionRow,
    Voting,
)
from .contents import SEQS_DEFAULT, BranchContent, BranchPart, content_of, parts_of
from .errors import TransactionUnknown
from .metrics import Counters
from .refusals import UnknownXid
from .waiting import Waiting
from .xa import XaStatus, Xid, millis_of

__all__ = ["Branch", "BranchOutcome", "Dtx", "branch_of"]

#: Of calls that do not say how long they wait; those that wait for votes wait for these, too.
TIMEOUT_S: Final = 5.0

_ROLLED_BACK: Final = (XaStatus.RBROLLBACK, XaStatus.RBTIMEOUT)


class Branch(msgspec.Struct, frozen=True):
    """A branch that the cluster knows.

    `timeout_s` 0: none. `sessions` work in it now, `suspended` ones will again. `queues`: how many
    have content of it; `rows`: messages published and accepted; `bytes`: of those published;
    `content`: the same for each queue, `Dtx.content` has the seqs.
    `waits_for`: participants that have not voted yet. `why`: of one that has failed or can only be
    rolled back. Times are of the log's clock, in ms.
    """

    xid: Xid
    state: State
    opened_ms: int
    deadline_ms: int
    timeout_s: float
    sessions: tuple[int, ...]
    suspended: tuple[int, ...]
    queues: int
    rows: int
    bytes: int
    waits_for: tuple[str, ...]
    why: str
    content: tuple[BranchPart, ...] = ()


class BranchOutcome(msgspec.Struct, frozen=True):
    """What became of a branch; `state` "unknown": never heard of, or forgotten.

    `by` and `reason` as in `DecisionRow`; `index`: the log's entry that decided, 0: undecided.
    """

    xid: Xid
    state: State | Literal["unknown"]
    by: str = ""
    reason: str = ""
    at_ms: int = 0
    index: int = 0


@checked
class Dtx:
    """Branches, as one node asks for them. Times are seconds; `timeout_s` None: a few.

    All methods raise `BranchRefused` kinds (each with XA's code as `xa`; nothing has changed),
    `NotApplied` kinds (nothing happened) and `TransactionUnknown` (ask again).
    """

    def __init__(
        self, host: Host, proposer: Proposer, waiting: Waiting, counters: Counters
    ) -> None:
        self._host = host
        self._proposer = proposer
        self._waiting = waiting
        self._counters = counters

    # --- deciding ---

    async def prepare(self, xid: Xid, *, timeout_s: float | None = None) -> XaStatus:
        """Have it promised that the branch can be committed, whatever happens from now on.

        OK; RDONLY: there was nothing in it, and it is forgotten; RBROLLBACK: it cannot be done, and
        its content is gone: roll it back; RBTIMEOUT: it took too long, and it is forgotten.
        """
        deadline = self._deadline(timeout_s, votes=True)
        while True:
            answer = await self._propose(PrepareBranch(xid), xid, deadline)
            if isinstance(answer, Answered):
                status = XaStatus(answer.status)
                if status in (XaStatus.OK, XaStatus.RDONLY):
                    self._counters.add("prepared")
                return self._told(status)
            await self._votes(answer, xid, deadline)

    async def commit(
        self, xid: Xid, one_phase: bool = False, *, timeout_s: float | None = None
    ) -> XaStatus:
        """Commit a prepared branch, or with `one_phase` one that is ended and not prepared.

        OK: done on all nodes at once, and the xid is free. One-phase also RBROLLBACK and RBTIMEOUT:
        it was rolled back, and is forgotten. HEURCOM, HEURRB: an operator has decided before; it is
        kept until `forget`.
        """
        deadline = self._deadline(timeout_s, votes=one_phase)
        command = CommitBranch(xid, one_phase)
        while True:
            answer = await self._propose(command, xid, deadline)
            if isinstance(answer, Voting):
                await self._votes(answer, xid, deadline)
                view = self._host.view()
                row = view.table("transactions").get(answer.number)
                if row is not None and row.state == "failed":
                    continue  # asked again it tells how, and is forgotten
                return self._decision(view, xid, answer.number)
            status = XaStatus(answer.status)
            if status == XaStatus.OK:
                self._counters.add("dtx_committed")
            return self._told(status)

    async def rollback(self, xid: Xid, *, timeout_s: float | None = None) -> XaStatus:
        """Roll a branch back that all sessions have ended.

        OK; RBTIMEOUT: its time-out did before; HEURCOM, HEURRB: an operator has decided before.
        """
        answer = await self._propose(RollbackBranch(xid), xid, self._deadline(timeout_s))
        status = XaStatus(answer.status)
        if status == XaStatus.OK:
            self._counters.add("dtx_rolled_back")
        return self._told(status)

    async def forget(self, xid: Xid, *, timeout_s: float | None = None) -> XaStatus:
        """Let go of a branch that an operator has decided; the coordinator has taken note."""
        answer = await self._propose(ForgetBranch(xid), xid, self._deadline(timeout_s))
        return XaStatus(answer.status)

    async def heuristic_commit(
        self, xid: Xid, reason: str = "", *, timeout_s: float | None = None
    ) -> XaStatus:
        """Commit a prepared branch without its coordinator, which is told when it comes back.

        The other branches of the global transaction may be decided otherwise. `reason` is shown to
        whoever asks for the outcome.
        """
        return await self._heuristic(Heuristic(xid, True, reason), timeout_s)

    async def heuristic_rollback(
        self, xid: Xid, reason: str = "", *, timeout_s: float | None = None
    ) -> XaStatus:
        """The same with a rollback."""
        return await self._heuristic(Heuristic(xid, False, reason), timeout_s)

    async def _heuristic(self, command: Heuristic, timeout_s: float | None) -> XaStatus:
        answer = await self._propose(command, command.xid, self._deadline(timeout_s))
        self._counters.add("heuristics")
        return XaStatus(answer.status)

    # --- time-outs ---

    async def set_timeout(
        self, xid: Xid, seconds: float, *, timeout_s: float | None = None
    ) -> XaStatus:
        """From now on the branch has this time until it is prepared; 0: no limit.

        Raises `InvalidArgument` (above the setting dtx_timeout_max_ms), and IllegalState for one
        that is prepared.
        """
        command = SetTimeout(xid, millis_of(seconds))
        answer = await self._propose(command, xid, self._deadline(timeout_s))
        return XaStatus(answer.status)

    async def get_timeout(self, xid: Xid, *, timeout_s: float | None = None) -> float:
        """What it was started with, or set to; 0: none. Raises UnknownXid, ReadTimeout."""
        await self._host.barrier("linearizable", timeout_s=timeout_s)
        view = self._host.view()
        number = view.table("branches").get(xid.key)
        if number is None:
            raise UnknownXid(str(xid))
        row: TransactionRow = view.table("transactions")[number]
        return row.timeout_ms / 1000

    # --- looking ---

    async def recover(self, *, timeout_s: float | None = None) -> tuple[Branch, ...]:
        """Branches that wait for a decision, and those that an operator has decided, by xid.

        Raises ReadTimeout.
        """
        await self._host.barrier("linearizable", timeout_s=timeout_s)
        view = self._host.view()
        return tuple(branch_of(view, xid, row) for xid, row in views.recover(view))

    async def outcome(self, xid: Xid, *, timeout_s: float | None = None) -> BranchOutcome:
        """What became of it, or what it is now: the one that has the xid now comes first.

        Decisions are kept up to the setting decisions_kept. Raises ReadTimeout.
        """
        await self._host.barrier("linearizable", timeout_s=timeout_s)
        view = self._host.view()
        number = view.table("branches").get(xid.key)
        decision = views.decision_of(view, xid)
        if number is not None:
            row: TransactionRow = view.table("transactions")[number]
            if not row.state.startswith("heuristically") or decision is None:
                return BranchOutcome(xid, row.state, row.cause, row.reason)
            return _outcome(xid, row.state, decision)
        if decision is None:
            return BranchOutcome(xid, "unknown")
        return _outcome(xid, decision.verdict, decision)

    async def content(
        self,
        xid: Xid,
        *,
        queue: str = "",
        first: int = 1,
        limit: int = SEQS_DEFAULT,
        timeout_s: float | None = None,
    ) -> tuple[BranchContent, ...]:
        """What the branch publishes and accepts in each queue, or in one `queue`, linearizably.

        Of each queue the seqs of at most `limit` accepted messages from `first` on; `next` is the
        seq to go on from. Raises UnknownXid, ReadTimeout, ValueError for another `limit` than 1 to
        `ROWS_MAX`.
        """
        if not 1 <= limit <= ROWS_MAX:
            raise ValueError(f"limit is 1 to {ROWS_MAX} messages of each queue")
        await self._host.barrier("linearizable", timeout_s=timeout_s)
        view = self._host.view()
        number = view.table("branches").get(xid.key)
        if number is None:
            raise UnknownXid(str(xid))
        return content_of(view, number, view.table("transactions")[number], queue, first, limit)

    def branches(self) -> tuple[Branch, ...]:
        """All branches that this node's copy knows, by xid."""
        view = self._host.view()
        return tuple(branch_of(view, xid, row) for xid, row in views.branches(view))

    # --- parts ---

    async def _propose(self, command: msgspec.Struct, xid: Xid, deadline: float) -> Any:
        try:
            return await self._proposer.until_verdict(command, deadline)
        except OutcomeUnknown:
            raise TransactionUnknown(str(xid)) from None

    async def _votes(self, voting: Voting, xid: Xid, deadline: float) -> None:
        """Wait until the participants have voted, or failed to."""
        try:
            if await self._waiting.decided(voting.number, deadline):
                return
        except Stopped:
            raise TransactionUnknown(str(xid)) from None
        raise TransactionUnknown(str(xid))

    def _decision(self, view: View, xid: Xid, number: int) -> XaStatus:
        """What the votes for a one-phase commit came to; the branch is gone."""
        decision = views.decision_of(view, xid, number)
        if decision is None:
            raise TransactionUnknown(str(xid))
        if decision.verdict == "committed":
            self._counters.add("dtx_committed")
            return XaStatus.OK
        timeout = decision.by == "timeout"
        return self._told(XaStatus.RBTIMEOUT if timeout else XaStatus.RBROLLBACK)

    def _told(self, status: XaStatus) -> XaStatus:
        if status in _ROLLED_BACK:
            self._counters.add("dtx_rolled_back")
        return status

    def _deadline(self, timeout_s: float | None, *, votes: bool = False) -> float:
        if timeout_s is None:
            timeout_s = TIMEOUT_S
            if votes:
                timeout_s += self._host.settings["prepare_timeout_ms"] / 1000
        return self._host.runtime.monotonic() + timeout_s


def branch_of(view: View, xid: Xid, row: TransactionRow) -> Branch:
    """A branch's row as people and programs read it."""
    return Branch(
        xid=xid,
        state=row.state,
        opened_ms=row.opened_ms,
        deadline_ms=row.deadline_ms,
        timeout_s=row.timeout_ms / 1000,
        sessions=tuple(one.session for one in row.associations if not one.suspended),
        suspended=tuple(one.session for one in row.associations if one.suspended),
        queues=len(row.parts),
        rows=row.rows,
        bytes=row.bytes,
        waits_for=tuple(one.node for one in row.participants if not one.voted)
        if row.state == "preparing"
        else (),
        why=row.rollback_only or row.reason,
        content=parts_of(view, row),
    )


def _outcome(xid: Xid, state: State, decision: DecisionRow) -> BranchOutcome:
    return BranchOutcome(xid, state, decision.by, decision.reason, decision.at_ms, decision.index)
