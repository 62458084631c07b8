"""Programs that lost an answer and do not ask: they send the same commit again, past the API.

The API asks for the outcome before it commits again, so a commit that stands in the log twice is
rare. Programs that speak to the log themselves, and proposals that the network holds back, make it
common: the log must say again what became of the transaction, and do nothing. `storm_check.py`
judges the answers and what the queues show.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from raftkv.errors import NodeFault, Refused
from raftkv.testing.host import HostCrashed
from raftkv.testing.storm_worlds import EXCUSED
from raftkv_txqueue.commands import AcceptOf, Acquire, Commit, Message, PublishTo

from .storm_programs import CALL_S, Programs

if TYPE_CHECKING:
    from .storm import Seat

__all__ = ["Careless"]


class Careless(Programs):
    """Each has a session of its own, and commits in it, everything twice or more."""

    kind = "careless"

    async def act(self, rng: random.Random, number: int) -> None:
        seat = self.storm.any_seat(rng)
        if seat is None or rng.random() < 0.5:
            return
        session = await self.opened(seat, "tx")
        try:
            for counter in range(1, rng.randint(2, 4)):
                operations = await self._operations(seat, session.id, rng)
                await self._commit(seat, Commit(session.id, counter, operations), rng)
        finally:
            await self.closed(seat, session)

    async def _operations(self, seat: Seat, session: int, rng: random.Random) -> tuple[Any, ...]:
        """Messages for one or two queues; and half of the time some that it accepts."""
        made: list[Any] = []
        for queue in rng.sample(("q1", "q2", "full", "drop", "side"), rng.choice((1, 1, 2))):
            self.storm.tags += 1
            made.append(PublishTo(queue, (Message(b"%d/twice" % self.storm.tags),)))
        if rng.random() < 0.5:
            queue = rng.choice(("q1", "q2", "retry"))
            got = await self._propose(seat, Acquire(session, queue, 2))
            if got.seqs:
                made.append(AcceptOf(queue, tuple(got.seqs)))
        return tuple(made)

    async def _commit(self, seat: Seat, command: Commit, rng: random.Random) -> None:
        answers = 0
        for _ in range(rng.choice((2, 2, 3))):
            try:
                await self._propose(seat, command)
            except (HostCrashed, NodeFault, Refused):
                raise
            except EXCUSED:
                continue
            self.marks["commit proposed again"] += answers > 0
            answers += 1

    async def _propose(self, seat: Seat, command: Any) -> Any:
        return await self.at(
            seat,
            f"propose {type(command).__name__}",
            lambda: seat.host.propose(command, timeout_s=CALL_S),
        )
