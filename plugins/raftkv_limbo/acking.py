"""What this node tells the others about the queue: its acknowledgements, vetoes and declaration.

A node acknowledges a position when it has applied it, if it is a core has it on its own disk, and
its validators had no objection. Nothing is said while nothing is pending, while Raft's commit is
the quorum, or by a node that nobody counts.

Rules of this file
1. One acknowledgement is under way at a time, for the newest position there is: the slower the log,
   the more transactions one of them stands for.
2. Its answer does not matter. What this node has acknowledged stands in the tables; as long as that
   is less than it should be, it is said again. So a lost answer, a new life or a snapshot need no
   code of their own.
3. Validators are run in the order of positions, each position once unless it failed. A failure is
   repeated after a pause, and decides nothing (`validators.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final

from raftkv.errors import RaftkvError, Stopped
from raftkv.plugin import RETRY_FIRST_S, RETRY_MAX_S, Host, View

from . import commands
from .checking import writable
from .commands import Ack, Declare
from .metrics import Counters
from .quorum import counts
from .validators import Proposal, ValidatorCancelled, Validators, Veto, place_of
from .views import fate, is_fast, newest_sync, participant_of, state_of, waiting_entries

__all__ = ["Acking"]

# Entries taken from the queue at once to be validated.
CHUNK: Final = 64
# A validator that fails is said again after so long.
SAID_AGAIN_S: Final = 60.0


class Acking:
    """Speaks for one node."""

    def __init__(self, host: Host, zone: str, validators: Validators, counters: Counters) -> None:
        self._host = host
        self._zone = zone
        self._validators = validators
        self._counters = counters
        self._wake = asyncio.Event()
        # By validator: up to where it has approved all sync positions, in this process.
        self._approved: dict[str, int] = {}
        self._delay_s = RETRY_FIRST_S
        # A validator has failed, and none is run again before a pause is over.
        self._resting = False
        self._failing_s = RETRY_FIRST_S
        self._said: dict[str, float] = {}

    def wake(self) -> None:
        """Something may be to be said."""
        self._wake.set()

    def restored(self) -> None:
        """A snapshot, which may be of another history with other transactions at the positions
        that validators have approved: they are asked anew."""
        self._approved = {}
        self.wake()

    async def run(self) -> None:
        while True:
            self._wake.clear()
            try:
                said = await self._say()
            except Stopped:
                return
            except RaftkvError as error:
                # No leader, a lost answer, a life that has ended: look again, and say it again.
                self._host.log.debug("limbo: an ack waits: %s", type(error).__name__)
                await self._pause()
                continue
            self._delay_s = RETRY_FIRST_S
            if not said:
                await self._wake.wait()

    async def _pause(self) -> None:
        await self._host.runtime.sleep(self._delay_s)
        self._delay_s = min(2 * self._delay_s, RETRY_MAX_S)

    async def _say(self) -> bool:
        """Say what is next to be said; False: nothing is."""
        host = self._host
        if not host.incarnation:
            return False
        view = host.view()
        if self._declared(view) != (self._zone, tuple(self._validators)):
            await host.propose(Declare(self._zone, tuple(self._validators)))
            return True
        if not state_of(view).head or is_fast(view):
            return False
        validators = [name for name in view.settings["quorum_validators"] if name in self]
        if not self._matters(view, validators):
            return False
        if validators:
            upto = await self._validated(validators)
        else:
            upto = newest_sync(view)
        if not self._is_news(host.view(), upto, validators):
            return False
        # What others have committed is applied here, too, perhaps before this disk has it.
        await host.stored(host.view().table("entries")[upto].index)
        if not self._is_news(host.view(), upto, validators):
            return False
        self._counters.add("acks")
        await host.propose(Ack(upto, tuple(validators)))
        return True

    def __contains__(self, name: str) -> bool:
        return name in self._validators

    def _declared(self, view: View) -> tuple[str, tuple[str, ...]]:
        row = participant_of(view, self._host.name)
        return ("", ()) if row is None else (row.zone, row.validators)

    def _matters(self, view: View, validators: list[str]) -> bool:
        """Whether somebody counts what this node acknowledges."""
        member = view.members.get(self._host.name)
        return (
            bool(validators)
            or (member is not None and counts(member, view))
            or self._zone in view.settings["quorum_zones"]
        )

    def _is_news(self, view: View, upto: int, validators: list[str]) -> bool:
        state = state_of(view)
        if not 0 < state.head <= upto:
            return False  # it was settled meanwhile
        row = participant_of(view, self._host.name)
        if row is None or row.acked < upto:
            return True
        approvals = view.table("approvals")
        return any(approvals.get((name, self._host.name), 0) < upto for name in validators)

    # --- validators ---

    async def _validated(self, validators: list[str]) -> int:
        """Run them on what they have not seen; up to where all have approved.

        Comes back with what there is so far after a veto, a failure, or some entries.
        """
        host = self._host
        upto = min(self._approved.get(name, 0) for name in validators)
        if self._resting:
            return upto
        approved = self._approved
        chunk = waiting_entries(host.view(), upto + 1, CHUNK)
        for position, entry in chunk:
            proposal = Proposal(position, entry.writes, entry.term)
            for name in validators:
                if approved.get(name, 0) >= position:
                    continue
                if entry.sync:
                    try:
                        if not await self._ask(name, proposal):
                            return upto
                    except Veto as veto:
                        await self._veto(name, position, veto.reason)
                        return upto
                    except Exception as error:
                        # Tell what was approved before it, and look again after a pause.
                        self._failed(name, error)
                        return upto
                approved[name] = position
            if not entry.sync:
                continue
            upto = position
            self._failing_s = RETRY_FIRST_S
            if fate(host.view(), position) != "pending":
                self.wake()  # the queue is another one by now
                return upto
        if len(chunk) == CHUNK:
            self.wake()
        return upto

    async def _ask(self, name: str, proposal: Proposal) -> bool:
        """Run one validator; False: its answer matters no more, and it was cancelled.

        Raises what it raises.
        """
        if not self._is_asked(name, proposal.position):
            return False
        answer = self._validators.ask(name, proposal)
        if answer is None:
            return True
        raised: list[Exception] = []
        # A task of its own: what is cancelled in it does not end this one.
        task = self._host.spawn(_finish(answer, raised), f"validator {name}")
        task.add_done_callback(lambda _: self.wake())
        try:
            while not task.done():
                await self._wake.wait()
                self._wake.clear()
                if not self._is_asked(name, proposal.position):
                    return False
        finally:
            task.cancel()
            self.wake()  # what came in between is not looked at yet
        if task.cancelled():
            raise ValidatorCancelled
        if raised:
            raise raised[0]
        return True

    def _is_asked(self, name: str, position: int) -> bool:
        view = self._host.view()
        return name in view.settings["quorum_validators"] and fate(view, position) == "pending"

    async def _veto(self, name: str, position: int, reason: str) -> None:
        self._counters.add("vetoes")
        await self._host.propose(commands.Veto(position, name, writable(reason)))
        self.wake()

    def _rested(self) -> None:
        self._resting = False
        self.wake()

    def _failed(self, name: str, error: Exception) -> None:
        self._counters.add("validator_failures")
        where, now = place_of(error), self._host.runtime.monotonic()
        self._resting = True
        self._host.runtime.call_later(self._failing_s, self._rested)
        self._failing_s = min(2 * self._failing_s, RETRY_MAX_S)
        if now - self._said.get(where, -SAID_AGAIN_S) >= SAID_AGAIN_S:
            self._said[where] = now
            self._host.log.error(
                "the limbo's validator %s failed (%s): it decides nothing, and is run again",
                name,
                where,
            )


async def _finish(answer: Awaitable[None], raised: list[Exception]) -> None:
    """Its errors are for who asked: a task that fails is logged with their text."""
    try:
        await answer
    except Exception as error:
        raised.append(error)
