"""What a consumer says of messages: acknowledged, or to be delivered again.

While one command is under way, what is said meanwhile gathers, and goes into the log together: a
program that acknowledges a thousand messages one by one, in as many tasks, takes a few commands.
Acknowledgements are true whoever says them and may be repeated, so one whose outcome is lost is
settled, and one that never happened is sent again, for as long as the consumer goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from raftkv.errors import Refused

from .commands import (
    FORMAT_EPOCHS,
    Ack,
    AckDelivered,
    Acked,
    AckTo,
    AckToDelivered,
    Release,
    Released,
    ReleaseDelivered,
)
from .consumer_life import ConsumerLife
from .counting import Counters
from .line import Job, Line
from .rows import ROWS_MAX

__all__ = ["Settling", "release_of"]


def release_of(life: ConsumerLife, positions: Sequence[int], epoch: int) -> Release:
    """The command that gives back what was delivered in `epoch`; below format 2 without it."""
    if life.host.view().version >= FORMAT_EPOCHS:
        return ReleaseDelivered(life.id, tuple(positions), epoch)
    return Release(life.id, tuple(positions))


class _Said(NamedTuple):
    """The part of a job: positions, and the epoch in which they were delivered."""

    epoch: int
    positions: tuple[int, ...]


class Settling:
    """What one consumer says, in the order in which it does."""

    def __init__(self, life: ConsumerLife, counters: Counters) -> None:
        self._life = life
        self._counters = counters
        works = {
            "ack": self._ack,
            "ack_to": self._ack_to,
            "release": self._release,
            "detach": self._detach,
        }
        self._line = Line(life.host, counters, "consumer", works)

    async def ack(self, positions: Sequence[int], epoch: int, timeout_s: float | None) -> int:
        """The mark, as of the last of these. `epoch`: in which they were delivered."""
        return max(await self._in_parts("ack", positions, epoch, timeout_s), default=0)

    async def ack_to(self, position: int, epoch: int, timeout_s: float | None) -> int:
        """The mark then."""
        mark: int = await self._line.do("ack_to", _Said(epoch, (position,)), timeout_s)
        return mark

    async def release(self, positions: Sequence[int], epoch: int, timeout_s: float | None) -> int:
        """How many of these it held. `epoch`: in which they were delivered."""
        return sum(await self._in_parts("release", positions, epoch, timeout_s))

    async def detach(self, timeout_s: float | None) -> None:
        """End it, after what was said before."""
        await self._line.do("detach", None, timeout_s, must=True)

    def end(self, error: Exception) -> None:
        """The consumer has ended."""
        self._line.fail_waiting(error)

    def stop(self) -> None:
        """The node stops."""
        self._line.stop()

    async def _in_parts(
        self, kind: str, positions: Sequence[int], epoch: int, timeout_s: float | None
    ) -> list[int]:
        runtime = self._life.host.runtime
        deadline = None if timeout_s is None else runtime.monotonic() + timeout_s
        said: list[int] = []
        for start in range(0, len(positions), ROWS_MAX):
            part = _Said(epoch, tuple(positions[start : start + ROWS_MAX]))
            left_s = None if deadline is None else deadline - runtime.monotonic()
            said.append(await self._line.do(kind, part, left_s, rows=len(part.positions)))
        return said

    # --- the work ---

    async def _ack(self, jobs: Sequence[Job]) -> None:
        epoch, positions = self._current(jobs)
        life = self._life
        command = Ack(life.topic, life.sub, positions, life.id)
        if life.host.view().version >= FORMAT_EPOCHS:
            command = AckDelivered(life.topic, life.sub, positions, life.id, epoch)
        acked = await self._together(jobs, command, self._ack)
        if acked is not None:
            self._counters.add("acked", len(positions))
            for job in jobs:
                job.succeed(acked.mark)

    async def _ack_to(self, jobs: Sequence[Job]) -> None:
        epoch, positions = self._current(jobs)
        life = self._life
        command = AckTo(life.topic, life.sub, positions[-1], life.id)
        if life.host.view().version >= FORMAT_EPOCHS:
            command = AckToDelivered(life.topic, life.sub, positions[-1], life.id, epoch)
        acked = await self._together(jobs, command, self._ack_to)
        if acked is not None:
            for job in jobs:
                job.succeed(acked.mark)

    def _current(self, jobs: Sequence[Job]) -> tuple[int, tuple[int, ...]]:
        """The newest epoch among these, and the positions, sorted, that were delivered in it.

        The others are void: this node has delivered something in a newer epoch.
        """
        epoch: int = max(job.part.epoch for job in jobs)
        current = [job.part.positions for job in jobs if job.part.epoch == epoch]
        self._counters.add("stale_acks", len(jobs) - len(current))
        return epoch, tuple(sorted({position for part in current for position in part}))

    async def _together(self, jobs: Sequence[Job], command: Ack | AckTo, work: Any) -> Acked | None:
        """For all of them, or, if that is refused, for each by itself."""
        try:
            acked: Acked = await self._life.ask(command, again=lambda: True)
        except Refused as error:
            if len(jobs) == 1 or self._life.ended:
                for job in jobs:
                    job.fail(error)
                return None
            for job in jobs:
                await work([job])
            return None
        self._counters.add("ack_commands")
        return acked

    async def _release(self, jobs: Sequence[Job]) -> None:
        epoch, positions = self._current(jobs)
        locks = self._life.host.view().table("locks")
        held: set[int] = set()
        shares: list[int] = []
        for job in jobs:
            mine = {p for p in job.part.positions if (self._life.id, p) in locks} - held
            mine = mine if job.part.epoch == epoch else set()
            held |= mine
            shares.append(len(mine))
        released: Released = await self._life.ask(
            release_of(self._life, positions, epoch), again=lambda: True
        )
        self._counters.add("nacked", released.done)
        for job, share in zip(jobs, shares, strict=True):
            job.succeed(released.done if len(jobs) == 1 else min(share, released.done))

    async def _detach(self, jobs: Sequence[Job]) -> None:
        await self._life.detach()
        self._life.end()
        for job in jobs:
            job.succeed(None)
