"""Registrations in doubt, and deletions that must happen although nobody waits for them.

A registration whose caller saw a time-out, or went away, may still be applied; its row would then
stand for ever. So its fate is fixed first (the session answers for (session, seq), and after "not
applied" that number can never be applied), and whatever was written is deleted by its exact row.
One task works through all of that, and retries until the cluster answers.

Nothing outlives the node: when its incarnation ends, its session ends too (nothing in doubt can be
applied any more), and its rows are fenced (nothing is left to delete). Work of an earlier
incarnation is therefore dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from itertools import islice
from typing import Any

import msgspec

from raftkv.errors import (
    NotApplied,
    OutcomeUnknown,
    Refused,
    SequenceTooFar,
    SessionExpired,
    StaleIncarnation,
)
from raftkv.plugin import Host

from .commands import Channel, Entry, Register, Registered, Unregister

__all__ = ["Doubt", "Reaper"]

# A cluster without a leader is asked again after 0.1 s, and then ever more rarely.
RETRY_FIRST_S = 0.1
RETRY_MAX_S = 5.0
# Claims of a race that is over go together: they share entries of the log.
DELETIONS_AT_ONCE = 64


class Doubt(msgspec.Struct):
    """A registration whose outcome the caller did not see: still running, or unknown."""

    command: Register
    incarnation: int
    task: asyncio.Task[Any] | None = None
    session: int = 0
    seq: int = 0

    @property
    def key(self) -> tuple[str, str]:
        return (self.command.client_id, self.command.channel)

    def wrote(self, row: Channel, node: str) -> bool:
        """Whether this may be the row of that registration."""
        return (
            row.channel == self.command.channel
            and row.node == node
            and row.incarnation == self.incarnation
        )


class Reaper:
    """Works off doubts and deletions in the background. One per node."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._doubts: dict[tuple[str, str], Doubt] = {}
        self._deletions: deque[tuple[int, Channel]] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._stopped = False

    def __len__(self) -> int:
        return len(self._doubts) + len(self._deletions)

    def doubt(self, doubt: Doubt) -> None:
        """Settle this registration, and delete what it wrote."""
        if doubt.task is not None:
            doubt.task.add_done_callback(_read)
        self._doubts[doubt.key] = doubt
        self._wake()

    def take(self, client_id: str, channel: str) -> Doubt | None:
        """The caller is back and takes the doubt over; it is no longer the reaper's."""
        return self._doubts.pop((client_id, channel), None)

    def delete(self, channel: Channel) -> None:
        """Delete this exact row, however long it takes to reach the log."""
        self._deletions.append((self._host.incarnation, channel))
        self._wake()

    async def resolve(self, doubt: Doubt, timeout_s: float | None = None) -> Registered | None:
        """What became of it: the registration if it was written and still stands, else None.

        Afterwards it cannot be applied any more. Raises `NotApplied` or `OutcomeUnknown` while
        the cluster does not answer; the doubt remains then.
        """
        await self._fix(doubt, timeout_s)
        view = self._host.view()
        entry: Entry | None = view.table("clients").get(doubt.command.client_id)
        if entry is None:
            return None
        if doubt.wrote(entry.owner, self._host.name):
            return Registered(entry.owner, None, entry.session_present, True, view.index)
        if entry.claim is not None and doubt.wrote(entry.claim.channel, self._host.name):
            self.delete(entry.claim.channel)
        return None

    async def _fix(self, doubt: Doubt, timeout_s: float | None) -> None:
        """Return once the command has been applied on this node, or never will be."""
        if doubt.incarnation != self._host.incarnation:
            return  # its session has ended
        if doubt.task is not None:
            try:
                await asyncio.shield(doubt.task)
                return
            except OutcomeUnknown as error:
                doubt.session, doubt.seq, doubt.task = error.session, error.seq, None
            except (NotApplied, Refused):
                return
            except asyncio.CancelledError:
                if not doubt.task.cancelled():
                    raise
                return  # the node is stopping: this incarnation ends, and all its rows do
        await self._host.outcome(doubt.session, doubt.seq, timeout_s=timeout_s)

    def stop(self) -> None:
        """The node stops, and with its incarnation everything ends that is listed here."""
        self._stopped = True

    def _wake(self) -> None:
        if self._stopped:
            return
        if self._worker is None or self._worker.done():
            self._worker = self._host.spawn(self._work(), "lcr-reaper")

    async def _work(self) -> None:
        delay_s = RETRY_FIRST_S
        while (self._doubts or self._deletions) and not self._stopped:
            try:
                if self._deletions:
                    await self._delete_some()
                else:
                    await self._settle_one()
            except (NotApplied, OutcomeUnknown, SequenceTooFar) as error:
                self._host.log.debug("registry clean-up waits: %s", error)
                await self._host.runtime.sleep(delay_s)
                delay_s = min(delay_s * 2, RETRY_MAX_S)
            else:
                delay_s = RETRY_FIRST_S

    async def _delete_some(self) -> None:
        """The oldest deletions, at once. Those that were not applied remain, in their order."""
        batch = list(islice(self._deletions, DELETIONS_AT_ONCE))
        ends = await asyncio.gather(
            *(self._delete(*each) for each in batch), return_exceptions=True
        )
        errors = [end for end in ends if isinstance(end, BaseException)]
        for _ in batch:
            self._deletions.popleft()
        failed = [each for each, end in zip(batch, ends, strict=True) if end is not None]
        self._deletions.extendleft(reversed(failed))
        if errors:
            raise errors[0]

    async def _delete(self, incarnation: int, channel: Channel) -> None:
        if incarnation == self._host.incarnation:
            with contextlib.suppress(SessionExpired, StaleIncarnation):  # fenced by now
                await self._host.propose(Unregister(channel))

    async def _settle_one(self) -> None:
        key, doubt = next(iter(self._doubts.items()))
        standing = await self.resolve(doubt)
        # A caller who came back meanwhile has taken the doubt, and with it the row.
        if self._doubts.get(key) is doubt:
            del self._doubts[key]
            if standing is not None:
                self.delete(standing.channel)


def _read(task: asyncio.Task[Any]) -> None:
    """Look at a result nobody may come to await, so that asyncio does not complain of that."""
    if not task.cancelled():
        task.exception()
