"""Bugs to be planted into what decides: votes, branches, and what a node tells its callers.

`planted.py` has the others, and says what they are for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from msgspec.structs import replace

from raftkv.errors import NotApplied
from raftkv.plugin import Proposer
from raftkv.testing.patching import replaced
from raftkv_txqueue import (
    branches,
    dtx,
    ending,
    observers,
    reading,
    session,
    sweeping,
    transactions,
    views,
    voting,
    waiting,
)
from raftkv_txqueue.commands import Sweep, Vote
from raftkv_txqueue.errors import TransactionAborted

from .planting import BUGS, applying, everywhere, nothing, patching, wrapping

__all__ = ["BUGS"]


# Votes --------------------------------------------------------------------------------------------


wrapping(
    "first-yes-decides",
    "one participant's yes is enough",
    transactions,
    "has_all_votes",
)(lambda has_all_votes: lambda row: True)
everywhere("participants", transactions, branches)(
    "nobody-is-asked", "a transaction is decided without those who take part"
)(lambda participants: lambda ctx: ())


@wrapping(
    "vote-of-another-life",
    "a vote counts whatever life of the node it comes from, and whoever sends it",
    transactions,
    "voted",
)
def _vote_of_another_life(voted: Callable[..., Any]) -> Callable[..., Any]:
    def broken(row: Any, origin: Any) -> Any:
        yes = [replace(one, voted=True) for one in row.participants]
        return replace(row, participants=tuple(yes))

    return broken


@contextlib.contextmanager
def _no_means_yes() -> Iterator[None]:
    def wrap(vote: Callable[..., Any]) -> Callable[..., Any]:
        return lambda command, ctx: vote(replace(command, yes=True), ctx)

    with applying(Vote, wrap):
        yield


patching("no-means-yes", "a participant's no is counted as a yes", _no_means_yes)
wrapping(
    "participant-may-go",
    "nobody looks whether a participant has left before its vote",
    sweeping,
    "is_gone",
)(lambda is_gone: lambda ctx, row: "")


@wrapping(
    "failure-approves",
    "an observer that fails to prepare counts as one that could",
    voting.Voting,
    "_ask",
)
def _failure_approves(ask: Callable[..., Awaitable[str]]) -> Callable[..., Awaitable[str]]:
    async def broken(self: voting.Voting, *given: Any) -> str:
        await ask(self, *given)
        return ""

    return broken


@wrapping(
    "observers-are-not-asked",
    "a node votes without asking its observers",
    voting.Voting,
    "_ask",
)
def _observers_are_not_asked(ask: Callable[..., Awaitable[str]]) -> Callable[..., Awaitable[str]]:
    async def broken(self: voting.Voting, *given: Any) -> str:
        return ""

    return broken


@wrapping(
    "observers-miss-the-last",
    "observers are not told the last operations before the close",
    observers.Observation,
    "take",
)
def _observers_miss_the_last(take: Callable[..., None]) -> Callable[..., None]:
    def broken(self: observers.Observation, rows: Any, view: Any) -> None:
        take(self, rows[:-1], view)
        self.heard = max([self.heard, *(row[0] + 1 for row in rows)])

    return broken


# Branches -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def _prepared_times_out() -> Iterator[None]:
    def wrap(sweep: Callable[..., Any]) -> Callable[..., Any]:
        def broken(command: Any, ctx: Any) -> Any:
            for number, row in list(ctx.table("transactions").scan()):
                if row.state == "prepared" and row.opened_ms + 500 <= ctx.now:
                    transactions.roll_back(ctx, number, row, "timeout", "it took too long")
            return sweep(command, ctx)

        return broken

    with applying(Sweep, wrap):
        yield


patching(
    "prepared-times-out",
    "the time-out of a branch goes on when it is prepared",
    _prepared_times_out,
)


@wrapping(
    "prepared-dies-with-a-node",
    "the end of a node's life rolls prepared branches back",
    ending,
    "life_changed",
)
def _prepared_dies_with_a_node(life_changed: Callable[..., Any]) -> Callable[..., Any]:
    def broken(change: Any, ctx: Any) -> None:
        life_changed(change, ctx)
        if change.ended is None:
            return
        for number, row in list(ctx.table("transactions").scan()):
            if row.state == "prepared":
                transactions.roll_back(ctx, number, row, "session", "its node is gone")

    return broken


@wrapping(
    "recover-forgets-the-newest",
    "recover() does not show the branch that was prepared last",
    views,
    "recover",
)
def _recover_forgets_the_newest(recover: Callable[..., Any]) -> Callable[..., Any]:
    return lambda view: tuple(recover(view))[:-1]


@wrapping(
    "recover-from-a-copy",
    "recover() shows what this node has, however old it is",
    dtx.Dtx,
    "recover",
)
def _recover_from_a_copy(recover: Callable[..., Any]) -> Callable[..., Any]:
    async def broken(self: dtx.Dtx, *, timeout_s: float | None = None) -> Any:
        view = self._host.view()
        return tuple(dtx.branch_of(view, xid, row) for xid, row in views.recover(view))

    return broken


@wrapping(
    "heuristic-is-forgotten",
    "what an operator decided is forgotten when the coordinator commits",
    branches,
    "_heuristically",
)
def _heuristic_is_forgotten(heuristically: Callable[..., Any]) -> Callable[..., Any]:
    def broken(row: Any) -> Any:
        return None if heuristically(row) is None else branches._OK

    return broken


@wrapping(
    "doomed-is-prepared",
    "a branch that can only be rolled back is prepared",
    branches,
    "_known",
)
def _doomed_is_prepared(known: Callable[..., Any]) -> Callable[..., Any]:
    def broken(ctx: Any, xid: Any) -> Any:
        number, row = known(ctx, xid)
        return number, replace(row, rollback_only="")

    return broken


wrapping(
    "busy-is-prepared",
    "a branch is prepared although a session works in it",
    branches,
    "_require_ended",
)(lambda require_ended: nothing)


# Nodes --------------------------------------------------------------------------------------------


class _Late(TransactionAborted):
    """What a planted bug raises instead of TransactionUnknown."""

    def __init__(self, txid: str) -> None:
        super().__init__(txid, "late", "its time is over")


patching(
    "time-out-decides",
    "a caller whose time is over is told that nothing was applied",
    lambda: replaced(session, "TransactionUnknown", _Late),
)


@wrapping(
    "sent-again",
    "a command without an answer is sent once more, without asking what became of it",
    Proposer,
    "_settled",
)
def _sent_again(settled: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def broken(self: Proposer, *given: Any) -> Any:
        raise NotApplied("it has no answer")

    return broken


@wrapping(
    "outcome-from-a-copy",
    "an outcome is what this node has, however old it is",
    reading.Reading,
    "outcome",
)
def _outcome_from_a_copy(outcome: Callable[..., Any]) -> Callable[..., Any]:
    async def broken(self: reading.Reading, txid: str, *given: Any, **more: Any) -> Any:
        id_, counter = reading.txid_parts(txid)
        return views.outcome_of(self._host.view(), id_, counter)

    return broken


wrapping(
    "waiters-forgotten",
    "nobody tells those who wait for votes that there is a decision",
    waiting.Waiting,
    "_look_at_votes",
)(lambda look: nothing)
