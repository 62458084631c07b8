"""Promote, demote and rollback as an operator calls them on a node.

A change of owner names the term that it ends and the last position that it has seen settled, so
the log refuses one that was overtaken (`ownership.py`). What is left to do here is to look, to
wait, and to keep this node's own transactions out of the way:

1. One at a time (`InAnotherPromote`). Meanwhile this node is *busy*: what it has in flight is
   waited for, and what callers submit waits until it is over. So each of them is clearly before or
   behind. If the node is not the owner then, they are refused by name; none is left hanging.
2. `rest` "wait": a linearizable look gives the last position. When nothing up to it is pending any
   more, by whatever (acknowledgements, a lower quorum, a rollback), the command is proposed.
   `rest` "roll back": at once. What has its quorum is confirmed already: it always is.
3. At the deadline nothing has changed (`PromoteTimedOut`), unless the command was under way and has
   no answer: that is an OutcomeUnknown, and `status` tells.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from raftkv.errors import ReadTimeout
from raftkv.plugin import Host, Proposer, View

from .checking import writable
from .commands import (
    REASON_CHARS_MAX,
    Demote,
    Demoted,
    Promote,
    Promoted,
    RollBack,
    RolledBackTo,
    State,
)
from .errors import InAnotherPromote, PromoteTimedOut
from .metrics import Counters
from .refusals import InterferingPromote, NotOwner, NotSettled
from .status import owns
from .submitting import Submitting
from .views import state_of
from .waiting import Waiting

__all__ = ["Promoting", "Rest"]

Rest = Literal["wait", "roll back"]


class Promoting:
    """Changes of the owner by one node, and rollbacks on request."""

    def __init__(
        self,
        host: Host,
        proposer: Proposer,
        submitting: Submitting,
        waiting: Waiting,
        counters: Counters,
    ) -> None:
        self._host = host
        self._proposer = proposer
        self._submitting = submitting
        self._waiting = waiting
        self._counters = counters
        #: What is under way; "": nothing.
        self.doing = ""

    async def promote(self, rest: Rest, timeout_s: float) -> Promoted:
        """See `LimboApi.promote`."""
        with self._busy("promotion"):
            deadline = self._deadline(timeout_s)
            state = await self._look(deadline)
            if owns(self._host, state):
                return Promoted(state.term, state.confirmed, 0)
            upto = state.last if rest == "wait" else 0
            while True:
                await self._settled(state.term, upto, deadline)
                try:
                    done: Promoted = await self._proposer.until_verdict(
                        Promote(state.term, upto), deadline
                    )
                except NotSettled:
                    continue
                self._counters.add("promotes")
                return done

    async def demote(self, rest: Rest, timeout_s: float) -> Demoted:
        """See `LimboApi.demote`."""
        with self._busy("demotion"):
            deadline = self._deadline(timeout_s)
            state = await self._look(deadline)
            if state.owner != self._host.name:
                raise NotOwner(state.owner, state.term)
            upto = state.last if rest == "wait" else 0
            while True:
                await self._settled(state.term, upto, deadline)
                try:
                    done: Demoted = await self._proposer.until_verdict(
                        Demote(state.term, upto), deadline
                    )
                except NotSettled:
                    continue
                self._counters.add("demotes")
                return done

    async def rollback(
        self, position: int, reason: str, term: int | None, timeout_s: float
    ) -> RolledBackTo:
        """See `LimboApi.rollback`."""
        with self._busy("rollback"):
            deadline = self._deadline(timeout_s)
            state = await self._look(deadline)
            why = writable(reason[:REASON_CHARS_MAX])
            command = RollBack(position, state.term if term is None else term, why)
            done: RolledBackTo = await self._proposer.until_verdict(command, deadline)
            self._counters.add("rollback_requests")
            return done

    # --- the steps ---

    @contextmanager
    def _busy(self, doing: str) -> Iterator[None]:
        if self.doing:
            raise InAnotherPromote(self.doing)
        self.doing = doing
        self._submitting.hold()
        try:
            yield
        finally:
            self.doing = ""
            self._submitting.release()

    def _deadline(self, timeout_s: float) -> float:
        return self._host.runtime.monotonic() + timeout_s

    async def _look(self, deadline: float) -> State:
        """The newest state, with everything in it that this node has written."""
        if not await self._submitting.landed(deadline):
            raise ReadTimeout("what this node has submitted is still under way; nothing changed")
        left_s = max(0.001, deadline - self._host.runtime.monotonic())
        await self._host.barrier("linearizable", timeout_s=left_s)
        return state_of(self._host.view())

    async def _settled(self, term: int, upto: int, deadline: float) -> None:
        """Wait until nothing up to there is pending. Raises PromoteTimedOut, InterferingPromote."""

        def judge(view: View, state: State) -> State | None:
            open_ = 0 < state.head <= upto and state.term == term
            return None if open_ else state

        state = await self._waiting.until(judge, deadline)
        if state is None:
            raise PromoteTimedOut(term, state_of(self._host.view()).head)
        if state.term != term:
            raise InterferingPromote(state.owner, state.term)
