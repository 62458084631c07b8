"""The session flow of the linear registry: the seed's flow chart, for one connection.

1. The local copy is read (the seed's *LocalMax*). A newer connection there: no, and the log is not
   asked.
2. A predecessor is there and its session is wanted: `begin`, wherever it lives. A clean start wants
   nothing of it, and the log finds by itself whom it displaces.
3. `Open` compares and writes in the log. "Restart" and "ahead" name the real predecessor, possibly
   none: again from 2 with that one, `RETRIES_MAX` times at most. The channels begun in vain are let
   go on.
4. Registered: `end` gives what arrived since the begin. The log has decided, so this goes on until
   it answers or the time is up. Without a session to continue, the predecessor is discarded behind.

A `begin` that fails (the channel is gone, hangs, or its node cannot be reached) keeps nobody out:
the connection registers without the session (`resume=False`) and says that it was lost. But only
the log knows whether that channel was the real predecessor at all; a failed begin of another one
is of no account.

**Ticket and version** stay with the attempt: the first answer of the log that carries a ticket
gives the connection its place, and every further `Open` carries it (`order.py`). That is the
answer to its first `Open`, unless `begin` takes long: then a ticket is drawn meanwhile, for
otherwise those who wait for a channel that hangs would get their places in the order in which they
cease to wait.

**Whatever ends the attempt** early runs through one place (`_give_up`): what was begun is aborted,
the claim is deleted, and so is the row if there is one.

Unless the log has decided, or may have: then the session exists nowhere else, or may be waited for
under this channel's name. So when the caller is cancelled with an `Open` on its way or behind it,
or is told that the outcome is unknown, what became of it is found out behind, and step 4 is done
for a client who comes back (`ChannelManager.finish_behind`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from raftkv.errors import (
    NotApplied,
    OutcomeUnknown,
    RaftkvError,
    ReadTimeout,
    SessionExpired,
    StaleIncarnation,
)

from .commands import (
    Adopt,
    Ahead,
    BadTicket,
    Channel,
    InProgress,
    ModeChanged,
    NotAMember,
    Open,
    OutdatedLate,
    Registered,
    Restart,
)
from .order import carried
from .owner import NOTHING, ChannelGone, Failure
from .reaper import Doubt
from .result import OpenedSession
from .settings import keeps_older
from .takeover import Begun, NotSuccessor
from .wire import Contender, Handed

if TYPE_CHECKING:
    from .manager import Attempt, ChannelManager

__all__ = ["RETRIES_MAX", "Course", "LinearFlow", "Seen"]

# The seed's bound. With claims the newest connection needs two; more means that owners come and go.
RETRIES_MAX = 3
# The shortest time for which the log is asked; less could only end in doubt.
OPEN_MIN_S = 0.05
# A deadline that has passed, as a time-out.
LEFT_S_MIN = 0.001
# Between two attempts to enter a channel after a change of incarnation.
RETRY_S = 0.1
# A begin that takes longer costs an entry of the log, for the ticket. Usual ones take milliseconds.
TICKET_AFTER_S = 0.25


class Seen(msgspec.Struct, frozen=True):
    """What a node's own copies show of a client."""

    # Whose session is to be continued.
    predecessor: Channel | None
    # What the linear registry has: the log compares this one. None if only the old registry knows
    # the predecessor.
    registered: Channel | None


class Course(msgspec.Struct):
    """What one attempt has done so far, and would have to undo."""

    seen: Seen
    begun: Begun | None = None
    # Why the present predecessor could not be begun.
    failure: Failure | None = None
    claim: Channel | None = None
    registered: Registered | None = None
    # The answer, once the predecessor's session is here.
    opened: OpenedSession | None = None


class LinearFlow:
    """The flow under the mode "enabled". `seen` and `written` are where other modes differ."""

    def __init__(self, manager: ChannelManager) -> None:
        self._manager = manager
        self._host = manager.host
        self._api = manager.api

    # --- what a flow of both registries changes ---

    def seen(self, client_id: str) -> Seen:
        """LocalMax: at once, possibly stale."""
        owner = self._api.lookup_local(client_id)
        return Seen(owner, owner)

    def turned(self, client_id: str, real: Channel | None) -> Seen:
        """The log named the real owner, possibly none: whose session is to be continued now?"""
        return Seen(real, real)

    async def written(self, attempt: Attempt, registered: Registered) -> None:
        """The log has registered this connection; the predecessor is not ended yet."""

    async def begin(self, predecessor: Channel, contender: Contender, deadline: float) -> Begun:
        """Freeze the predecessor and copy its session. Raises `ChannelGone`."""
        return await self._manager.takeovers.begin(predecessor, contender, deadline)

    async def end(
        self, predecessor: Channel, registered: Registered, begun: Begun, deadline: float
    ) -> Handed:
        """What is still lacking of the session. Raises `ChannelGone` and `NotSuccessor`."""
        return await self._manager.takeovers.end(predecessor, registered, begun.freeze, deadline)

    def abort(self, begun: Begun) -> None:
        """The predecessor will not be ended by this connection; told in the background."""
        self._manager.takeovers.abort(begun.channel, begun.contender)

    def discard(self, predecessor: Channel) -> None:
        """End the predecessor in the background: its place is taken, its session not wanted."""
        self._manager.takeovers.discard_soon(predecessor)

    # --- Flow ---

    async def open(self, attempt: Attempt) -> OpenedSession | ModeChanged:
        """See `manager.Flow`."""
        course = Course(self.seen(attempt.client_id), claim=attempt.claim)
        try:
            opened = await self._run(attempt, course)
        except (asyncio.CancelledError, OutcomeUnknown):
            doubt = self._api.reaper.take(attempt.client_id, attempt.channel)
            if doubt is None and course.registered is None:
                self._give_up(attempt, course)
            else:
                self._manager.finish_behind(
                    attempt, lambda: self._settle_and_finish(attempt, course, doubt)
                )
            raise
        except Exception:
            self._give_up(attempt, course)
            raise
        if isinstance(opened, ModeChanged):
            # The attempt goes on with its ticket: what it registers will be the row of its claim.
            self._abort(course)
            attempt.claim = course.claim
        elif opened.outcome != "ok":
            self._give_up(attempt, course)
        return opened

    async def enter(self, row: Channel) -> Channel | None:
        """See `manager.Flow`."""
        key = (row.client_id, row.channel)
        if await self._manager.handover.bars(key):
            return None
        row = replace(row, node=self._host.name, incarnation=self._host.incarnation)
        answer: Registered | OutdatedLate
        try:
            answer = await self._host.propose(Adopt(row, True))
        except BadTicket:
            # Drawn in a history that was given up: the cluster was recovered by force.
            answer = await self._host.propose(Adopt(replace(row, ticket=0), True))
        if isinstance(answer, OutdatedLate):
            self._api.counters.add("adopt_refused")
            return None
        if key not in self._manager.opening and not self._manager.owner.is_alive(row):
            # It ended while the command was on its way.
            self._api.reaper.delete(answer.channel)
            return answer.channel
        self._api.counters.add("adopted")
        self._api.hold(answer.channel)
        self._manager.wrote(key, lcr=answer)
        return answer.channel

    async def find(self, client_id: str) -> Channel | None:
        """See `manager.Flow`."""
        try:
            return await self._api.lookup(client_id)
        except ReadTimeout:
            return self._api.lookup_local(client_id)

    # --- the chart ---

    async def _run(self, attempt: Attempt, course: Course) -> OpenedSession | ModeChanged:
        answer: Restart | Ahead | None = None
        for _ in range(RETRIES_MAX + 1):
            newer = self._api.newer_local(
                attempt.client_id, attempt.channel, attempt.version, attempt.ticket
            )
            if newer is not None:
                self._api.counters.add("outdated_early")
                return _refused("outdated_early", newer, attempt)
            kept = await self._kept(attempt, course)
            if kept is not None:
                self._api.counters.add("occupied")
                return _refused("occupied", kept, attempt)
            await self._begin(attempt, course)
            if self._manager.remaining_s(attempt) < OPEN_MIN_S:
                return _refused("timeout", course.seen.predecessor, attempt)
            attempt.attempts += 1
            verdict = await self._register(attempt, course)
            match verdict:
                case Registered():
                    return await self._finish(attempt, course, verdict)
                case Restart():
                    attempt.ticket, course.claim = verdict.claim.ticket, verdict.claim
                    attempt.version = carried(attempt.version, verdict)
                    answer = verdict
                    self._turn_to(attempt, course, verdict.predecessor)
                case Ahead():
                    attempt.ticket = verdict.ticket
                    attempt.version = carried(attempt.version, verdict)
                    answer = verdict
                    self._turn_to(attempt, course, verdict.predecessor)
                case OutdatedLate():
                    return _refused("outdated_late", verdict.newer, attempt)
                case InProgress():
                    return _refused("in_progress", verdict.claimant, attempt)
                case ModeChanged():
                    return verdict
                case None:
                    # This node has a new incarnation, and nothing of the former one can be written.
                    self._abort(course)
                    course.seen = self.seen(attempt.client_id)
        self._api.counters.add("retries_exhausted")
        outcome = "ahead" if isinstance(answer, Ahead) else "retries_exhausted"
        return _refused(outcome, course.seen.predecessor, attempt)

    async def _kept(self, attempt: Attempt, course: Course) -> Channel | None:
        """The older connection that stays, if the setting `older_connection` wants that.

        What is found here holds until the log compares: a channel that has lost its client gets
        none again, and `Open` names this predecessor or finds another one, who is asked then.
        """
        if not keeps_older(self._host.settings):
            return None
        takeovers = self._manager.takeovers
        for row in dict.fromkeys((course.seen.registered, course.seen.predecessor)):
            if row is not None and await takeovers.occupied(row, attempt.channel, attempt.deadline):
                return row
        return None

    async def _begin(self, attempt: Attempt, course: Course) -> None:
        """Freeze the predecessor, unless it is begun already or its session is not wanted."""
        course.failure = None
        predecessor = course.seen.predecessor
        if course.begun is not None or attempt.clean_start or predecessor is None:
            return
        contender = self._manager.takeovers.contender(attempt.channel)
        if _is_same(predecessor, attempt.client_id, contender):
            return  # registered already, and will be told so
        slow = self._host.runtime.call_later(TICKET_AFTER_S, self._draw_soon, attempt)
        try:
            course.begun = await self.begin(predecessor, contender, attempt.deadline)
        except ChannelGone as gone:
            # Without anything to take over nothing is lost.
            course.failure = None if gone.reason == NOTHING else gone.kind
        finally:
            slow.cancel()

    def _draw_soon(self, attempt: Attempt) -> None:
        if not attempt.ticket:
            self._host.spawn(self._draw(attempt), "lcr-ticket")

    async def _draw(self, attempt: Attempt) -> None:
        """Give the connection its place now. Without an answer it gets one with its `Open`."""
        try:
            drawn = await self._api.ticket(timeout_s=self._left_s(attempt))
        except RaftkvError as error:
            self._host.log.debug("lcr: no ticket was drawn: %s", error)
            return
        if not attempt.ticket:
            attempt.ticket = drawn.ticket
            attempt.version = drawn.at_ms if attempt.version is None else attempt.version

    def _left_s(self, attempt: Attempt) -> float:
        return max(self._manager.remaining_s(attempt), LEFT_S_MIN)

    async def _register(
        self, attempt: Attempt, course: Course
    ) -> Registered | OutdatedLate | Restart | Ahead | InProgress | ModeChanged | None:
        registered = course.seen.registered
        contender = self._manager.takeovers.contender(attempt.channel)
        if registered is not None and _is_same(registered, attempt.client_id, contender):
            registered = None
        command = Open(
            attempt.client_id,
            attempt.channel,
            registered,
            attempt.version,
            attempt.ticket,
            course.begun is not None,
            attempt.epoch,
            # A clean start that may find an older connection must say whom it expects to displace.
            attempt.clean_start and not keeps_older(self._host.settings),
        )
        try:
            verdict = await self._api.open(command, timeout_s=self._left_s(attempt))
        except (SessionExpired, StaleIncarnation):
            return None
        if isinstance(verdict, Registered):
            course.registered = verdict
        return verdict

    def _turn_to(self, attempt: Attempt, course: Course, real: Channel | None) -> None:
        """Another predecessor is the real one, or none."""
        course.seen = self.turned(attempt.client_id, real)
        if course.begun is not None and course.begun.channel != course.seen.predecessor:
            self._abort(course)

    # --- after the log has decided ---

    async def _settle_and_finish(
        self, attempt: Attempt, course: Course, doubt: Doubt | None
    ) -> OpenedSession | None:
        """Find out what the log decided, if that is not known, and go on. None: nothing written."""
        attempt.deadline = self._host.runtime.monotonic() + self._manager.options.open_timeout_s
        try:
            if doubt is not None:
                course.registered = await self._api.settle(doubt)
            if course.registered is None:
                self._give_up(attempt, course)
                return None
            opened = await self._finish(attempt, course, course.registered)
        except (Exception, asyncio.CancelledError):
            self._give_up(attempt, course)
            raise
        if opened.outcome != "ok":
            self._give_up(attempt, course)
        return opened

    async def _finish(
        self, attempt: Attempt, course: Course, registered: Registered
    ) -> OpenedSession:
        """Get the session, if there is one. May be done again from any point of it."""
        if course.opened is None:
            self._manager.wrote((attempt.client_id, attempt.channel), lcr=registered)
            await self.written(attempt, registered)
            course.opened = await self._take(attempt, course, registered)
        if course.opened.outcome != "ok":
            return course.opened
        return await self._still_registered(attempt, course.opened)

    async def _take(
        self, attempt: Attempt, course: Course, registered: Registered
    ) -> OpenedSession:
        """What becomes of the predecessor: ended, discarded, or none there."""
        predecessor = registered.took_over
        if predecessor is None and course.begun is not None:
            predecessor = course.begun.channel  # known to the old registry only
        opened = OpenedSession(
            outcome="ok",
            present=registered.session_present,
            channel=registered.channel,
            predecessor=predecessor,
            attempts=attempt.attempts,
        )
        if predecessor is not None:
            if registered.session_present or course.begun is not None:
                return await self._end(attempt, course, registered, opened)
            self.discard(predecessor)
        if course.failure is not None:
            return replace(opened, handover="lost", failure=course.failure)
        return opened

    async def _end(
        self, attempt: Attempt, course: Course, registered: Registered, opened: OpenedSession
    ) -> OpenedSession:
        """End the predecessor, and put its session together."""
        predecessor = ended = opened.predecessor
        assert predecessor is not None
        assert ended is not None
        try:
            if course.begun is None:
                # Registered by an attempt whose outcome was in doubt; its begin was aborted.
                contender = self._manager.takeovers.contender(attempt.channel)
                course.begun = await self.begin(predecessor, contender, attempt.deadline)
            # Where both registries are read, the log may know another predecessor, or none.
            ended = course.begun.channel
            handed = await self.end(predecessor, registered, course.begun, attempt.deadline)
        except NotSuccessor:
            owner = self._api.lookup_local(attempt.client_id)
            return _refused("outdated_late", owner, attempt)
        except ChannelGone as gone:
            content = None if course.begun is None else course.begun.content
            course.begun = None
            self.discard(ended)
            return replace(
                opened,
                present=True,
                session=content,
                predecessor=ended,
                handover="lost",
                failure=gone.kind,
            )
        content = course.begun.content if handed.content is None else handed.content
        course.begun = None
        return replace(
            opened,
            present=True,
            predecessor=ended,
            session=content,
            pendings=handed.pendings,
            handover="complete",
        )

    async def _still_registered(self, attempt: Attempt, opened: OpenedSession) -> OpenedSession:
        """The session is here; is this still the node's life in which it was registered?"""
        row = opened.channel
        until = self._host.runtime.monotonic() + self._manager.options.end_timeout_s
        until = max(until, attempt.deadline)
        while row is not None and row.incarnation != self._host.incarnation:
            try:
                row = await self.enter(row)
            except (NotAMember, SessionExpired, StaleIncarnation, NotApplied, OutcomeUnknown):
                # Out of reach, or that life is over, too, and the next one is not known yet.
                if self._host.runtime.monotonic() >= until:
                    raise
                await self._host.runtime.sleep(RETRY_S)
        if row is None:
            owner = self._api.lookup_local(attempt.client_id)
            return _refused("outdated_late", owner, attempt)
        return replace(opened, channel=row)

    # --- undoing ---

    def _abort(self, course: Course) -> None:
        if course.begun is not None:
            self.abort(course.begun)
            course.begun = None

    def _give_up(self, attempt: Attempt, course: Course) -> None:
        """Leave nothing behind: neither a frozen predecessor, nor a claim, nor a row."""
        self._abort(course)
        if course.registered is not None:
            key = (attempt.client_id, attempt.channel)
            written = self._manager.written.get(key)
            row = course.registered.channel if written is None else written.lcr
            if row is not None:
                self._api.reaper.delete(row)
            self._manager.ended(key)
        elif course.claim is not None:
            self._api.reaper.delete(course.claim)


def _is_same(row: Channel, client_id: str, contender: Contender) -> bool:
    """Whether the row is that of this very connection."""
    return (
        row.client_id == client_id
        and row.channel == contender.channel
        and row.node == contender.node
        and row.incarnation == contender.incarnation
    )


def _refused(outcome: str, rival: Channel | None, attempt: Attempt) -> OpenedSession:
    return OpenedSession(outcome, channel=rival, attempts=attempt.attempts)
